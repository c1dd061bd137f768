//! Measures the receive back end of SDR: packets a second from completions into chunk bitmaps.
//!
//! A stream of messages of 4096 packets, 16 open at a time, with some packets overtaken, some that
//! come twice and some that come when their message is over. Opening, checking and closing messages
//! counts. Rounds are interleaved, so that a slow moment of a shared machine hits all alike;
//! medians are compared.

mod lanes;
mod report;
mod stream;

use std::error::Error;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use clap::Parser;

use crate::lanes::{Dealing, run};
use crate::report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Measures packets a second into SDR's bitmaps, with chunks of 1 to 64 packets, on one core and on
/// two.
#[derive(Parser)]
#[command(name = "bitmap")]
struct Args {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Rounds; medians over them are compared
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Messages of a round, of 4096 packets each
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(32..))]
    messages: u64,
    /// The CPUs of the two lanes
    #[arg(long, num_args = 2, default_values_t = [0, 1])]
    cpus: Vec<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    status("bitmap", measure(&args))
}

/// Runs all rounds and prints the report; `false` if `--check` found a bar that does not hold.
fn measure(args: &Args) -> Result<bool> {
    let mut report = Report::new(args.runs);
    let messages = args.messages.next_multiple_of(2);
    for _ in 0..args.runs {
        for chunk_shift in 0..=6 {
            for dealing in Dealing::ALL {
                let rate = run(dealing, chunk_shift, messages, [args.cpus[0], args.cpus[1]])?;
                report.add(chunk_shift, dealing, rate);
            }
        }
    }
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}
