//! Measures reductions and Hadamard transforms against a plain copy of the same buffers, in one
//! run.
//!
//! Everything runs on one core. Rounds are interleaved, so that a slow moment of a shared machine
//! hits all alike; medians are compared. Rates are GB/s of the tensor.

mod buffers;
mod paper;
mod report;
mod transforms;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::report::Report;

/// Measures what collectives compute on one core, against a plain copy.
#[derive(Parser)]
#[command(name = "kernels")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Encoding and decoding by the Hadamard transform
    Hadamard(Measure),
    /// Reductions by type and operation
    Reduce(Measure),
    /// Figure 7 and Table 3 of the OptiNIC paper: the error after losses, and time by blocks
    Paper(paper::Paper),
}

#[derive(clap::Args)]
struct Measure {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Rounds; medians over them are compared
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Only rows whose name contains this text, and the copy
    #[arg(long, default_value = "")]
    only: String,
    /// The CPU to run on
    #[arg(long, default_value_t = 0)]
    cpu: usize,
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Hadamard(args) => measure(&args, transforms::hadamard()),
        Command::Reduce(args) => measure(&args, transforms::reduce()),
        Command::Paper(args) => {
            paper::run(&args);
            ExitCode::SUCCESS
        }
    }
}

/// Runs all rounds and prints the report.
fn measure(args: &Measure, mut suite: transforms::Suite) -> ExitCode {
    if let Err(e) = bowline_bench_sys::pin(args.cpu) {
        eprintln!("kernels: CPU {}: {e}", args.cpu);
        return ExitCode::FAILURE;
    }
    suite.rows.retain(|row| row.name == "copy" || row.name.contains(&args.only));
    let mut report = Report::new(args.runs, suite.bars);
    for _ in 0..args.runs {
        for place in &mut suite.places {
            for row in &suite.rows {
                report.add(place.name, &row.name, place.rate(&row.run));
            }
        }
    }
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    if args.check && !report.holds() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
