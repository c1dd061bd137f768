//! The report of a run.

use std::error::Error;

use bowline_wan::{DirectionReport, Report};
use serde::Serialize;

/// A run and its result.
#[derive(Serialize)]
pub(super) struct Outcome {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) report: Report,
    pub(super) seed: u64,
    pub(super) late_limit_us: f64,
    /// `null` if there was no command, or if it was terminated.
    pub(super) left_status: Option<i32>,
    pub(super) right_status: Option<i32>,
    /// Why the run is not to be trusted.
    pub(super) refused: Option<String>,
}

impl Outcome {
    pub(super) fn print(&self, json: bool) -> Result<(), Box<dyn Error>> {
        if let Some(why) = &self.refused {
            eprintln!("bowline: invalid run: {why}");
        }
        if json {
            println!("{}", serde_json::to_string(self)?);
            return Ok(());
        }
        println!(
            "link up for {:.1} s, MTU {}, superpackets: {}",
            self.report.seconds,
            self.report.mtu,
            match (self.report.tso, self.report.uso) {
                (true, true) => "TCP and UDP",
                (true, false) => "TCP",
                _ => "none",
            }
        );
        print_direction("to the right", &self.report.to_right, self.report.seconds);
        print_direction("to the left", &self.report.to_left, self.report.seconds);
        Ok(())
    }
}

fn print_direction(way: &str, direction: &DirectionReport, seconds: f64) {
    let c = &direction.counters;
    println!(
        "{way:12}  {} packets in {} reads, {} bytes; {} lost, {} tail drops, queue at most {} bytes",
        c.segments, c.packets, c.bytes, c.lost, c.tail_drops, c.peak_queue_bytes
    );
    let others = [
        ("duplicated", c.duplicated),
        ("reordered", c.reordered),
        ("corrupted", c.corrupted),
        ("malformed", c.malformed),
    ];
    let others: Vec<String> =
        others.iter().filter(|o| o.1 > 0).map(|(what, n)| format!("{n} {what}")).collect();
    if !others.is_empty() {
        println!("{:12}  {}", "", others.join(", "));
    }
    println!(
        "{:12}  release delay: p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs; read delay: p99 {:.0} µs; \
         {:.0} % of a core",
        "",
        direction.late_p50_us,
        direction.late_p99_us,
        direction.late_max_us,
        direction.read_late_p99_us,
        100.0 * direction.cpu_s / seconds.max(1e-9)
    );
}
