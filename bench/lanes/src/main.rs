//! Measures what a second lane, on a second core, is worth.
//!
//! Everything is one process: a sender's device and a receiver's, joined by ports in memory, so
//! that no kernel shares its locks between the lanes. A worker has a lane of both devices and
//! drives them inline, pinned to a core of its own. Variants take turns within a round, so that a
//! slow minute hits all of them, and ratios are taken within a round.
//!
//! What a machine can give at all is measured beside it: two pairs of devices that have nothing in
//! common, one on each core.

mod pair;
mod report;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use bowline_bench_common::bars;
use clap::Parser;

use pair::{Carrier, Shape, throughput};
use report::{Report, Variant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Cores from which on lanes over UDP are measured as well: four for each end.
const CORES_FOR_UDP: usize = 8;
/// WRITEs of these sizes, of one packet each.
const SIZES: [u32; 2] = [4096, 64];

/// Compares the throughput of devices with one lane and with several.
///
/// Prints millions of packets a second, and ratios to one lane: two lanes with a completion queue
/// each (bar: 1.85), two lanes with one completion queue for both (1.7), and, as a bound, two
/// devices that share nothing. With eight cores or more also four lanes over UDP (3.2).
#[derive(Parser)]
#[command(
    name = "lanes",
    after_help = "Examples:\n  bench/lanes/run\n  bench/lanes/run --seconds 2 --runs 9 --json --check"
)]
struct Args {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Rounds; medians over them are reported
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = measure(&args).map(|report| {
        print!("{}", report.table());
        if args.json {
            println!("{}", report.json());
        }
        !args.check || bars::hold(&report.bars())
    });
    bars::status("lanes", outcome)
}

fn measure(args: &Args) -> Result<Report> {
    let cores = std::thread::available_parallelism()?.get();
    if cores < 2 {
        return Err("two lanes need two cores: this machine lends one".into());
    }
    if !(0.05..=60.0).contains(&args.seconds) {
        let got = args.seconds;
        return Err(format!("invalid --seconds {got}: between 0.05 and 60, e.g. 0.5").into());
    }
    let run = Duration::from_secs_f64(args.seconds);
    let memory =
        |lanes, one_cq, devices| Shape { carrier: Carrier::Memory, lanes, one_cq, devices };
    let udp = |lanes| Shape { carrier: Carrier::Udp, lanes, one_cq: false, devices: 1 };
    let mut report = Report::new(cores >= CORES_FOR_UDP);
    for round in 1..=args.runs {
        eprintln!("round {round} of {}", args.runs);
        for size in SIZES {
            let mut add = |variant, shape: Shape| -> Result<()> {
                report.add(size, variant, throughput(&shape, size, run)?);
                Ok(())
            };
            add(Variant::One, memory(1, false, 1))?;
            add(Variant::TwoCqs, memory(2, false, 1))?;
            add(Variant::OneCq, memory(2, true, 1))?;
            add(Variant::Apart, memory(1, false, 2))?;
            if cores >= CORES_FOR_UDP {
                add(Variant::UdpOne, udp(1))?;
                add(Variant::UdpFour, udp(4))?;
            }
        }
    }
    Ok(report)
}
