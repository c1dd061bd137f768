//! The progress of a transfer: a bar for terminals, lines for logs, events for programs.

use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar};
use serde_json::json;

use crate::output;

/// How often progress is reported.
const EVERY: Duration = Duration::from_secs(1);

/// The user's choice of output during a transfer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Show {
    /// Lines on stderr, even without a terminal.
    pub(super) lines: bool,
    /// Events as JSON on stdout.
    pub(super) json: bool,
    /// Only errors.
    pub(super) quiet: bool,
}

/// Counts the bytes of one transfer.
pub(super) struct Meter {
    show: Show,
    verb: &'static str,
    bar: ProgressBar,
    total: u64,
    moved: u64,
    started: Instant,
    told: Instant,
}

impl Meter {
    pub(super) fn new(show: Show, verb: &'static str, total: u64) -> Meter {
        let bar = if show.quiet || show.json || show.lines {
            ProgressBar::hidden()
        } else {
            output::progress_bytes(total, verb)
        };
        let now = Instant::now();
        Meter { show, verb, bar, total, moved: 0, started: now, told: now }
    }

    /// Adds bytes that have been moved.
    pub(super) fn add(&mut self, bytes: u64) {
        self.moved += bytes;
        self.bar.inc(bytes);
        if (self.show.lines || self.show.json) && self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            self.tell();
        }
    }

    fn tell(&self) {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = self.moved as f64 / seconds.max(1e-9);
        let left = (self.total - self.moved.min(self.total)) as f64 / rate.max(1.0);
        if self.show.json {
            let event = json!({
                "version": output::JSON_VERSION, "event": "progress", "moved_bytes": self.moved,
                "total_bytes": self.total, "rate_bps": rate * 8.0, "left_s": left,
            });
            println!("{event}");
        } else {
            let percent = 100.0 * self.moved as f64 / self.total.max(1) as f64;
            let (moved, total) = (HumanBytes(self.moved), HumanBytes(self.total));
            let gbps = rate * 8e-9;
            let verb = self.verb;
            eprintln!(
                "{verb} {moved} of {total} ({percent:.0} %), {gbps:.2} Gbit/s, {left:.0} s left"
            );
        }
    }

    pub(super) fn finish(&self) {
        if self.show.lines && !self.show.json {
            self.tell();
        }
        self.bar.finish_and_clear();
    }
}
