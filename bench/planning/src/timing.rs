//! How fast `bowline plan` answers.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Serialize;

/// Longest that one point, and a heatmap of 40 by 40, may take.
pub(crate) const POINT_BAR_MS: f64 = 100.0;
pub(crate) const HEATMAP_BAR_S: f64 = 10.0;

#[derive(Serialize)]
pub(crate) struct Timing {
    /// Of points from 128 KiB to 2 TiB and 1e-8 to 0.5 of chunks lost, the slowest, start and end of
    /// the process included; the better of two runs each.
    pub(crate) slowest_point_ms: f64,
    pub(crate) slowest_point: String,
    pub(crate) heatmap_s: f64,
}

/// Runs the program that was built beside this one.
pub(crate) fn measure() -> Result<Timing, Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name("bowline");
    let run = |arguments: &[&str]| -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        let status = Command::new(&program)
            .args(["plan", "--bandwidth", "400Gbps", "--rtt", "25ms", "--json"])
            .args(arguments)
            .stdout(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("bowline plan {arguments:?}: {status}").into());
        }
        Ok(started.elapsed().as_secs_f64())
    };
    let mut timing = Timing { slowest_point_ms: 0.0, slowest_point: String::new(), heatmap_s: 0.0 };
    for size in ["128KiB", "128MiB", "8GiB", "2TiB"] {
        for loss in ["1e-8", "1e-5", "1e-3", "0.1", "0.5"] {
            let point = ["--size", size, "--chunk-loss", loss];
            let ms = 1e3 * run(&point)?.min(run(&point)?);
            if ms > timing.slowest_point_ms {
                timing.slowest_point_ms = ms;
                timing.slowest_point = format!("{size} at {loss}");
            }
        }
    }
    let grid = ["--size", "128MiB", "--chunk-loss", "1e-5", "--heatmap"];
    timing.heatmap_s = run(&grid)?;
    Ok(timing)
}
