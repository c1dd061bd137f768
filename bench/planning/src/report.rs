//! What the checks come to.

use std::fmt::Write;

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
        self.grid.len() >= MIN_POINTS
            && self.grid.iter().all(Comparison::holds)
            && self.statements.iter().all(|s| s.holds)
            && self.timing.slowest_point_ms <= POINT_BAR_MS
            && self.timing.heatmap_s <= HEATMAP_BAR_S
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
            let holds = if statement.holds { "holds" } else { "DOES NOT HOLD" };
            let _ = writeln!(out, "{}\n    model: {}: {holds}", statement.paper, statement.model);
        }
        let timing = &self.timing;
        let verdict = |holds: bool| if holds { "holds" } else { "DOES NOT HOLD" };
        let _ = writeln!(
            out,
            "\nslowest point: {:.0} ms, {} (bar: {POINT_BAR_MS} ms) {}\n\
             heatmap of 40 x 40: {:.2} s (bar: {HEATMAP_BAR_S} s) {}\n\
             choosing for one message of 128 MiB: {:.1}, {:.1}, {:.1} µs at 1e-6, 1e-3, 2e-2",
            timing.slowest_point_ms,
            timing.slowest_point,
            verdict(timing.slowest_point_ms <= POINT_BAR_MS),
            timing.heatmap_s,
            verdict(timing.heatmap_s <= HEATMAP_BAR_S),
            timing.choice_us[0],
            timing.choice_us[1],
            timing.choice_us[2]
        );
        out
    }
}
