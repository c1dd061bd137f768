//! What the checks come to.

use std::fmt::Write;

use bowline_bench_common::bars::{self, Bar};
use serde::Serialize;

use crate::grid::{Comparison, MEAN_BAR, P999_BAR};
use crate::paper::Statement;
use crate::timing::{HEATMAP_BAR_S, POINT_BAR_MS, Timing};

/// Everything.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) samples: u32,
    pub(crate) seed: u64,
    pub(crate) grid: Vec<Comparison>,
    pub(crate) statements: Vec<Statement>,
    pub(crate) timing: Timing,
}

/// Points that a comparison must have at least.
const MIN_POINTS: usize = 200;

impl Report {
    /// Whether all bars hold.
    pub(crate) fn holds(&self) -> bool {
        bars::hold(&self.bars())
    }

    fn bars(&self) -> Vec<Bar> {
        let outside = self.grid.iter().filter(|row| !row.holds()).count();
        let unproved = self.statements.iter().filter(|s| !s.holds).count();
        let Timing { slowest_point_ms, heatmap_s, .. } = self.timing;
        vec![
            Bar::at_least("points compared with draws", self.grid.len() as f64, MIN_POINTS as f64),
            Bar::at_most("points outside of their limits", outside as f64, 0.0),
            Bar::at_most("statements of the paper that do not hold", unproved as f64, 0.0),
            Bar::at_most("slowest point, ms", slowest_point_ms, POINT_BAR_MS),
            Bar::at_most("heatmap of 40 x 40, s", heatmap_s, HEATMAP_BAR_S),
        ]
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        bars::json(&self.bars(), self)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            out,
            "model against {} draws a point (bars: mean {} %, p99.9 {} %)",
            self.samples,
            MEAN_BAR * 100.0,
            P999_BAR * 100.0
        );
        let _ = writeln!(
            out,
            "{:<10} {:>7} {:>12} {:>13} {:>16} {:>8}",
            "scheme", "points", "worst mean", "worst p99.9", "p99.9 at a jump", "outside"
        );
        let mut schemes: Vec<&str> = self.grid.iter().map(|row| row.scheme).collect();
        schemes.sort_unstable();
        schemes.dedup();
        for scheme in schemes {
            let rows = || self.grid.iter().filter(|row| row.scheme == scheme);
            let worst = |errors: &mut dyn Iterator<Item = f64>| {
                errors.map(f64::abs).fold(0.0, f64::max) * 100.0
            };
            let _ = writeln!(
                out,
                "{:<10} {:>7} {:>10.3} % {:>11.3} % {:>16} {:>8}",
                scheme,
                rows().count(),
                worst(&mut rows().map(|row| row.mean_error)),
                worst(&mut rows().filter(|r| r.jump_s.is_none()).map(|row| row.p999_error)),
                rows().filter(|row| row.jump_s.is_some()).count(),
                rows().filter(|row| !row.holds()).count()
            );
        }
        for row in self.grid.iter().filter(|row| !row.holds()) {
            let _ = writeln!(
                out,
                "OUTSIDE: {} {} bytes, {} bit/s, {} km, chunk loss {}: mean {:+.3} %, p99.9 {:+.3} %",
                row.scheme,
                row.bytes,
                row.bandwidth_bps,
                row.distance_km,
                row.chunk_loss,
                row.mean_error * 100.0,
                row.p999_error * 100.0
            );
        }
        let _ = writeln!(out, "\nthe paper's statements, 400 Gbit/s and 3750 km");
        for statement in &self.statements {
            let holds = bars::verdict(statement.holds);
            let _ = writeln!(out, "{}\n    model: {}: {holds}", statement.paper, statement.model);
        }
        let timing = &self.timing;
        let _ = writeln!(
            out,
            "\nslowest point: {}\n\
             choosing for one message of 128 MiB: {:.1}, {:.1}, {:.1} µs at 1e-6, 1e-3, 2e-2",
            timing.slowest_point, timing.choice_us[0], timing.choice_us[1], timing.choice_us[2]
        );
        out + &bars::text(&self.bars())
    }
}
