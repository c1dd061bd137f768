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

use bowline_bench_common::bars::{self, Bar};
use clap::{Parser, ValueEnum};
use serde_json::{Map, Value};

use crate::report::Report;

/// Measures what collectives compute on one core, against a plain copy.
#[derive(Parser)]
#[command(name = "kernels")]
struct Args {
    /// Which parts; `hadamard` and `reduce` unless given
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Rounds of `hadamard` and `reduce`; medians over them are compared
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Only rows of `hadamard` and `reduce` whose name contains this text, and the copy
    #[arg(long, default_value = "")]
    only: String,
    /// The CPU to run on
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    #[command(flatten)]
    paper: paper::Paper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Encoding and decoding by the Hadamard transform
    Hadamard,
    /// Reductions by type and operation
    Reduce,
    /// Figure 7 and Table 3 of the OptiNIC paper: the error after losses, and time by blocks
    Paper,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Hadamard => "hadamard",
            Part::Reduce => "reduce",
            Part::Paper => "paper",
        }
    }
}

fn main() -> ExitCode {
    bars::status("kernels", run(&Args::parse()))
}

/// Measures all parts and prints what was found; `false` if `--check` found a bar that does not
/// hold.
fn run(args: &Args) -> Result<bool, String> {
    bowline_bench_common::pin(args.cpu).map_err(|e| format!("CPU {}: {e}", args.cpu))?;
    let parts =
        if args.parts.is_empty() { &[Part::Hadamard, Part::Reduce] } else { &args.parts[..] };
    let (mut bars, mut found): (Vec<Bar>, Map<String, Value>) = Default::default();
    for part in parts {
        let json = match part {
            Part::Hadamard => measure(args, transforms::hadamard(), &mut bars),
            Part::Reduce => measure(args, transforms::reduce(), &mut bars),
            Part::Paper => paper::run(&args.paper),
        };
        found.insert(part.name().to_owned(), json);
    }
    if args.json {
        println!("{}", bars::json(&bars, found));
    }
    Ok(!args.check || bars::hold(&bars))
}

/// Runs all rounds and prints the report.
fn measure(args: &Args, mut suite: transforms::Suite, bars: &mut Vec<Bar>) -> Value {
    suite.rows.retain(|row| row.name == "copy" || row.name.contains(&args.only));
    let mut report = Report::new(args.runs, suite.ratios);
    for _ in 0..args.runs {
        for place in &mut suite.places {
            for row in &suite.rows {
                report.add(place.name, &row.name, place.rate(&row.run));
            }
        }
    }
    print!("{}", report.table());
    bars.extend(report.bars());
    report.json()
}
