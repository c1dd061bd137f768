//! Bandwidth: as many messages as the queues hold, all the time.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::args::{Spec, Test};
use super::report::BandwidthRow;
use super::rig::{Poller, Rig, qp_and_message};
use crate::output;

/// The peak is the best stretch of at least this length.
const PEAK_WINDOW: Duration = Duration::from_millis(50);
/// Runs longer than this show their progress.
const PROGRESS_FROM: Duration = Duration::from_secs(2);

/// A receiver that has counted nothing for so long has all that arrives.
const SETTLED: Duration = Duration::from_millis(20);
const MAX_SETTLING: Duration = Duration::from_secs(1);

/// One QP's messages.
#[derive(Clone, Default)]
struct Flow {
    posted: u64,
    completed: u64,
}

/// Sends messages of `bytes` and measures.
pub(crate) fn client(rig: &Rig, bytes: u32) -> Result<BandwidthRow, Box<dyn Error>> {
    let spec = &rig.spec;
    let depth = u64::from(spec.tx_depth);
    let signal_every = (depth / 4).max(1);
    let mut goal = Goal::new(spec);
    let mut flows = vec![Flow::default(); rig.qps.len()];
    let mut poller = Poller::new(&rig.cq);
    let start = Instant::now();
    let mut meter = Meter::new(start, bytes);
    loop {
        let end = goal.messages_per_qp(start);
        let mut open = false;
        for (qp, flow) in flows.iter_mut().enumerate() {
            // When time is up, what was posted last may be unsignaled: one more closes the run.
            let unclosed =
                end == 0 && flow.posted > flow.completed && flow.posted % signal_every != 0;
            let last = if end == 0 { flow.posted + u64::from(unclosed) } else { end };
            let room = depth - (flow.posted - flow.completed);
            let until = last.min(flow.posted + if unclosed { 1 } else { room });
            if until > flow.posted {
                rig.post_messages(qp, bytes, flow.posted..until, |n| {
                    (n + 1) % signal_every == 0 || n + 1 == last
                })?;
                flow.posted = until;
            }
            open |= flow.completed < last;
        }
        if !open {
            break;
        }
        let got = poller.poll()?;
        if got.is_empty() {
            poller.idle()?;
            continue;
        }
        let mut completed = 0;
        for completion in got {
            let (qp, message) = qp_and_message(completion);
            completed += message + 1 - flows[qp].completed;
            flows[qp].completed = message + 1;
        }
        meter.add(completed);
    }
    Ok(meter.finish())
}

/// Answers a client: keeps receives posted where the test needs them, and the device going.
pub(crate) fn server(rig: &Rig, done: &AtomicBool) -> Result<(), Box<dyn Error>> {
    if rig.spec.test != Test::SendBw {
        // One-sided operations need nothing from this program: the device's own thread answers.
        return Ok(());
    }
    let mut poller = Poller::new(&rig.cq);
    let mut consumed = vec![0; rig.qps.len()];
    while !done.load(Ordering::Acquire) {
        let got = poller.poll()?;
        for completion in got {
            consumed[qp_and_message(completion).0] += 1;
        }
        for (qp, count) in consumed.iter_mut().enumerate().filter(|(_, c)| **c > 0) {
            rig.post_receives(qp, std::mem::take(count))?;
        }
    }
    Ok(())
}

/// Message bytes that this end has received.
pub(crate) fn received_bytes(rig: &Rig) -> Result<u64, Box<dyn Error>> {
    Ok(rig.device.counters()?.rx_message_bytes)
}

/// The same once nothing more comes: what the client sent last may still be in this end's socket.
pub(crate) fn settled_bytes(rig: &Rig) -> Result<u64, Box<dyn Error>> {
    let start = Instant::now();
    let mut bytes = received_bytes(rig)?;
    loop {
        std::thread::sleep(SETTLED);
        let now = received_bytes(rig)?;
        if now == bytes || start.elapsed() > MAX_SETTLING {
            return Ok(now);
        }
        bytes = now;
    }
}

/// When to stop, and a bar that shows how far it is.
pub(super) struct Goal {
    iters: u64,
    duration: Option<Duration>,
    bar: Option<indicatif::ProgressBar>,
}

impl Goal {
    pub(super) fn new(spec: &Spec) -> Goal {
        let duration = spec.duration;
        let bar = duration
            .filter(|d| *d > PROGRESS_FROM)
            .map(|d| output::progress(d.as_millis() as u64, &spec.test.name()));
        Goal { iters: spec.iters, duration, bar }
    }

    /// How many messages each QP sends; 0 when time is up.
    pub(super) fn messages_per_qp(&mut self, start: Instant) -> u64 {
        let Some(duration) = self.duration else {
            return self.iters;
        };
        let elapsed = start.elapsed();
        if let Some(bar) = &self.bar {
            bar.set_position(elapsed.as_millis() as u64);
        }
        if elapsed < duration { u64::MAX >> 16 } else { 0 }
    }
}

/// Counts completed messages over time.
pub(super) struct Meter {
    bytes: u32,
    start: Instant,
    window_start: Instant,
    in_window: u64,
    peak_per_sec: f64,
    total: u64,
    last: Instant,
}

impl Meter {
    pub(super) fn new(start: Instant, bytes: u32) -> Meter {
        Meter {
            bytes,
            start,
            window_start: start,
            in_window: 0,
            peak_per_sec: 0.0,
            total: 0,
            last: start,
        }
    }

    pub(super) fn add(&mut self, messages: u64) {
        self.last = Instant::now();
        self.total += messages;
        self.in_window += messages;
        let window = self.last - self.window_start;
        if window >= PEAK_WINDOW {
            self.peak_per_sec = self.peak_per_sec.max(self.in_window as f64 / window.as_secs_f64());
            (self.window_start, self.in_window) = (self.last, 0);
        }
    }

    pub(super) fn finish(self) -> BandwidthRow {
        let average_per_sec = self.total as f64 / (self.last - self.start).as_secs_f64().max(1e-9);
        let gbps = |per_sec: f64| per_sec * f64::from(self.bytes) * 8.0 / 1e9;
        BandwidthRow {
            bytes: self.bytes,
            iterations: self.total,
            // A run shorter than a window has no better stretch than itself.
            bw_peak_gbps: gbps(self.peak_per_sec.max(average_per_sec)),
            bw_average_gbps: gbps(average_per_sec),
            msg_rate_mpps: average_per_sec / 1e6,
            delivered: None,
        }
    }
}
