//! What the measurements come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use bowline_bench_common::samples::median;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Packets per CPU second must be at least this many times the older commit's.
const SPEED_BAR: f64 = 2.0;
/// The large tree must fit.
const MEMORY_BAR_MIB: u64 = 8 << 10;

/// What a driver printed.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Sample {
    hosts: u64,
    /// CPU seconds.
    seconds: f64,
    events: u64,
    /// Packets that reached an engine.
    delivered: u64,
    /// Packets that went over a link, each counted once per link.
    hops: u64,
    lost: u64,
    rss_mib: u64,
}

/// One kind of run, by turns.
pub(crate) struct Case {
    pub(crate) mtu: u32,
    pub(crate) now: Vec<Sample>,
    pub(crate) before: Vec<Sample>,
}

/// What the large tree took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    hosts: u64,
    rss_mib: u64,
}

impl Memory {
    pub(crate) fn of(sample: &Sample) -> Memory {
        Memory { hosts: sample.hosts, rss_mib: sample.rss_mib }
    }
}

/// All of it.
pub(crate) struct Report {
    pub(crate) cases: Vec<Case>,
    pub(crate) memory: Memory,
    pub(crate) runs: u32,
}

/// One case in numbers: per CPU second, in the fastest round of each. Other processes only ever add
/// to the time, by what they do to the caches.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    mtu: u32,
    packets: u64,
    links: u64,
    events_per_s: f64,
    packets_per_s: f64,
    before_events_per_s: Option<f64>,
    before_packets_per_s: Option<f64>,
    /// Of packets per second.
    ratio: Option<f64>,
    /// The same of the median round.
    median_ratio: Option<f64>,
    /// Whether the older commit did the same work.
    is_same_work: bool,
}

impl Case {
    fn row(&self) -> Row {
        let first = self.now[0];
        let rate = |samples: &[Sample], what: fn(&Sample) -> u64| {
            samples.iter().map(|s| what(s) as f64 / s.seconds).max_by(f64::total_cmp)
        };
        let packets_per_s = rate(&self.now, |s| s.delivered).unwrap_or(f64::NAN);
        let before_packets_per_s = rate(&self.before, |s| s.delivered);
        let ratio = before_packets_per_s.map(|before| packets_per_s / before);
        let is_same_work =
            self.before.iter().all(|s| (s.delivered, s.hops, s.lost) == work(&first));
        Row {
            mtu: self.mtu,
            packets: first.delivered,
            links: first.hops,
            events_per_s: rate(&self.now, |s| s.events).unwrap_or(f64::NAN),
            packets_per_s,
            before_events_per_s: rate(&self.before, |s| s.events),
            before_packets_per_s,
            ratio,
            median_ratio: (!self.before.is_empty())
                .then(|| seconds(&self.before) / seconds(&self.now)),
            is_same_work,
        }
    }
}

fn work(sample: &Sample) -> (u64, u64, u64) {
    (sample.delivered, sample.hops, sample.lost)
}

/// CPU seconds of the median round.
fn seconds(samples: &[Sample]) -> f64 {
    let seconds: Vec<f64> = samples.iter().map(|s| s.seconds).collect();
    median(&seconds)
}

impl Report {
    fn rows(&self) -> Vec<Row> {
        self.cases.iter().map(Case::row).collect()
    }

    /// Whether all bars hold.
    pub(crate) fn holds(&self) -> bool {
        bars::hold(&self.bars())
    }

    /// A case for which the older commit did other work holds nothing.
    fn bars(&self) -> Vec<Bar> {
        let rows = self.rows().into_iter().map(|row| {
            let name = format!("packets per CPU second at MTU {}, to the older commit's", row.mtu);
            Bar::at_least(name, row.ratio, SPEED_BAR).unless(!row.is_same_work)
        });
        let name = format!("MiB of memory for {} hosts", self.memory.hosts);
        let memory = Bar::at_most(name, self.memory.rss_mib as f64, MEMORY_BAR_MIB as f64);
        rows.chain([memory]).collect()
    }

    /// For people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "54 hosts, per CPU second      events  packets delivered  before: events  packets  ratio\n",
        );
        for row in self.rows() {
            let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.0}"));
            let ratio = row.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let _ = writeln!(
                text,
                "MTU {:<22} {:>10} {:>18} {:>15} {:>8} {:>6}",
                row.mtu,
                number(Some(row.events_per_s)),
                number(Some(row.packets_per_s)),
                number(row.before_events_per_s),
                number(row.before_packets_per_s),
                ratio,
            );
        }
        for row in self.rows() {
            if let Some(ratio) = row.median_ratio {
                let _ = writeln!(text, "at MTU {}, in the median round: {ratio:.2}", row.mtu);
            }
        }
        text + &bars::text(&self.bars())
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let more = json!({ "cases": self.rows(), "memory": self.memory, "runs": self.runs });
        bars::json(&self.bars(), more)
    }
}
