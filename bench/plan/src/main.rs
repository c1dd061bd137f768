//! The planner against messages drawn at random, against what the paper says, and against the
//! clock.

mod grid;
mod paper;
mod report;
mod timing;

use std::error::Error;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use clap::Parser;

use report::Report;

/// Check the planner: model against sampling, the paper's statements, and how fast it answers
///
/// Takes about half a minute with the defaults.
#[derive(Parser)]
#[command(
    name = "plan",
    after_help = "Examples:\n  \
    bench/plan/run --check\n  \
    bench/plan/run --samples 10000 --json"
)]
struct Args {
    /// Messages drawn for each point of the grid
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..))]
    samples: u32,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Fail if a bar does not hold
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    status("plan", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let report = Report {
        samples: args.samples,
        seed: args.seed,
        grid: grid::compare(args.samples, args.seed)?,
        statements: paper::statements(args.seed)?,
        timing: timing::measure()?,
    };
    print!("{}", report.text());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}
