//! Runs the permutation driver of this tree and of an older commit by turns, and compares their
//! speed; then builds a large tree and looks at its memory.
//!
//! Both drivers do the same work: as many packets over as many links. What is compared is CPU time,
//! since on a shared machine the time that others had the core says nothing.

mod report;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bowline_bench_common::bars::status;
use clap::Parser;

use crate::report::{Case, Memory, Report, Sample};

/// Ports of the switches of a fat tree with 54 hosts, and of one with 1,024.
const SMALL_K: u32 = 6;
const LARGE_K: u32 = 16;
/// WRITEs of each host in the large tree: enough for every queue to have been used.
const LARGE_MESSAGES: u32 = 4;
const MTUS: [u32; 2] = [1024, 4096];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Compares the simulator with itself at an older commit: a fat tree of 54 hosts, each WRITEs to
/// another over RC. Then measures the memory of a fat tree of 1,024 hosts.
#[derive(Parser)]
#[command(name = "sim")]
struct Args {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold, or if there is nothing to compare with
    #[arg(long)]
    check: bool,
    /// Rounds; the fastest of each are compared
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// WRITEs of 64 KiB that each host sends
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    messages: u32,
    /// CPU to run on; none to leave that to the scheduler
    #[arg(long)]
    cpu: Option<usize>,
    /// The driver of this tree
    #[arg(long)]
    driver: PathBuf,
    /// The driver of the older commit
    #[arg(long)]
    baseline: Option<PathBuf>,
}

fn main() -> ExitCode {
    status("sim", measure(&Args::parse()))
}

/// Runs all rounds and prints the report; `false` if `--check` found a bar that does not hold.
fn measure(args: &Args) -> Result<bool> {
    if let Some(cpu) = args.cpu {
        // The drivers inherit it.
        bowline_bench_common::pin(cpu)?;
    }
    let mut cases = MTUS.map(|mtu| Case { mtu, now: Vec::new(), before: Vec::new() });
    for run in 1..=args.runs {
        eprintln!("round {run} of {}", args.runs);
        for case in &mut cases {
            if let Some(baseline) = &args.baseline {
                case.before.push(drive(baseline, SMALL_K, args.messages, case.mtu)?);
            }
            case.now.push(drive(&args.driver, SMALL_K, args.messages, case.mtu)?);
        }
    }
    eprintln!("the large tree");
    let large = drive(&args.driver, LARGE_K, LARGE_MESSAGES, MTUS[0])?;
    let report = Report { cases: cases.into(), memory: Memory::of(&large), runs: args.runs };
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}

fn drive(driver: &Path, k: u32, messages: u32, mtu: u32) -> Result<Sample> {
    let args = [k, messages, mtu].map(|n| n.to_string());
    let output = Command::new(driver).args(&args).output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} {}: {text}", driver.display(), args.join(" ")).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
