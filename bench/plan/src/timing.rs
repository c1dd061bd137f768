//! How fast `bowline plan` answers.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::Instant;

use bowline_plan::{Goal, Link, Loss, Message, Scheme, Transfer, choose};
use serde::Serialize;

/// Longest that one point, and a heatmap of 40 by 40, may take.
pub(crate) const POINT_BAR_MS: f64 = 100.0;
pub(crate) const HEATMAP_BAR_S: f64 = 10.0;

#[derive(Serialize)]
pub(crate) struct Timing {
    /// Of points from 128 KiB to 2 TiB and 1e-8 to 0.5 of chunks lost, the slowest, start and end
    /// of the process included; the best of three runs each, because others share the machine.
    pub(crate) slowest_point_ms: f64,
    pub(crate) slowest_point: String,
    pub(crate) heatmap_s: f64,
    /// Choosing one of four schemes by their means, as a message would: 128 MiB at losses of 1e-6,
    /// 1e-3 and 2e-2.
    pub(crate) choice_us: [f64; 3],
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
    let mut timing = Timing {
        slowest_point_ms: 0.0,
        slowest_point: String::new(),
        heatmap_s: 0.0,
        choice_us: [1e-6, 1e-3, 2e-2].map(choice_us),
    };
    for size in ["128KiB", "128MiB", "8GiB", "2TiB"] {
        for loss in ["1e-8", "1e-5", "1e-3", "0.1", "0.5"] {
            let point = ["--size", size, "--chunk-loss", loss];
            let ms = 1e3 * run(&point)?.min(run(&point)?).min(run(&point)?);
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

/// Microseconds that a choice takes, the best of some.
fn choice_us(chunk_loss: f64) -> f64 {
    const SCHEMES: [&str; 4] = ["sr-nack", "sr-rto", "ec-xor", "ec-mds"];
    const TIMES: u32 = 200;
    let schemes = SCHEMES.map(|name| Scheme::named(name).expect("a known name"));
    let link = Link { bandwidth_bps: 400e9, rtt_s: 25e-3, loss: Loss::Chunk(chunk_loss) };
    let each = (0..TIMES).map(|_| {
        let started = Instant::now();
        let transfer = Transfer::new(link, Message::new(128 << 20)).expect("a legal transfer");
        let chosen = choose(&transfer, &schemes, Goal::Mean).expect("legal schemes");
        std::hint::black_box(chosen);
        started.elapsed().as_secs_f64() * 1e6
    });
    each.fold(f64::INFINITY, f64::min)
}
