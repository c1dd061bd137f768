//! What the measurements come to.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

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
    bar_mib: u64,
    holds: bool,
}

impl Memory {
    pub(crate) fn of(sample: &Sample) -> Memory {
        let (hosts, rss_mib) = (sample.hosts, sample.rss_mib);
        Memory { hosts, rss_mib, bar_mib: MEMORY_BAR_MIB, holds: rss_mib <= MEMORY_BAR_MIB }
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
    bar: f64,
    holds: bool,
}

#[derive(Serialize)]
struct Json {
    cases: Vec<Row>,
    memory: Memory,
    runs: u32,
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
            bar: SPEED_BAR,
            holds: is_same_work && ratio.is_some_and(|ratio| ratio >= SPEED_BAR),
        }
    }
}

fn work(sample: &Sample) -> (u64, u64, u64) {
    (sample.delivered, sample.hops, sample.lost)
}

/// CPU seconds of the median round.
fn seconds(samples: &[Sample]) -> f64 {
    let mut seconds: Vec<f64> = samples.iter().map(|s| s.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

impl Report {
    fn rows(&self) -> Vec<Row> {
        self.cases.iter().map(Case::row).collect()
    }

    /// Whether all bars hold.
    pub(crate) fn holds(&self) -> bool {
        self.memory.holds && self.rows().iter().all(|row| row.holds)
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
            let _ = match row.ratio {
                Some(ratio) => writeln!(
                    text,
                    "speed at MTU {}: {ratio:.2} times, in the median round {:.2} (bar: at least {SPEED_BAR}) {}",
                    row.mtu,
                    row.median_ratio.unwrap_or(f64::NAN),
                    verdict(row.holds),
                ),
                None => writeln!(text, "speed at MTU {}: nothing to compare with", row.mtu),
            };
        }
        let memory = &self.memory;
        let _ = writeln!(
            text,
            "memory of {} hosts: {} MiB (bar: at most {} MiB) {}",
            memory.hosts,
            memory.rss_mib,
            memory.bar_mib,
            verdict(memory.holds),
        );
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let json = Json { cases: self.rows(), memory: self.memory, runs: self.runs };
        serde_json::to_string(&json).expect("numbers and names are JSON")
    }
}

fn verdict(holds: bool) -> &'static str {
    if holds { "holds" } else { "DOES NOT HOLD" }
}
