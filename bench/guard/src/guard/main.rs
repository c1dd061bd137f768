//! Instructions per packet, held against stored baselines.

mod baseline;
mod counters;
mod history;
mod report;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use clap::Parser;

use crate::baseline::Baseline;
use crate::counters::COUNTERS;
use crate::report::Report;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Counts the instructions that the engines take per packet, and compares them with a baseline
#[derive(Parser)]
#[command(name = "guard")]
struct Args {
    /// Only counters whose names begin with one of these
    counters: Vec<String>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a count is more than 5 % above its baseline, has none, or a baseline was
    /// raised without a new reason
    #[arg(long, conflicts_with = "update")]
    check: bool,
    /// Write the counts that have changed into the baseline
    #[arg(long, requires = "reason")]
    update: bool,
    /// Why they have changed: stands beside each of them from then on
    #[arg(long, requires = "update")]
    reason: Option<String>,
    /// Where the baseline is
    #[arg(long, default_value = "bench/guard/baseline.toml")]
    baseline: PathBuf,
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.counters.is_empty() || self.counters.iter().any(|start| name.starts_with(start))
    }
}

fn main() -> ExitCode {
    status("guard", guard(&Args::parse()))
}

fn guard(args: &Args) -> Result<bool> {
    let wanted: Vec<_> = COUNTERS.iter().filter(|counter| args.wants(counter.name)).collect();
    if wanted.is_empty() {
        return Err("there is no such counter".into());
    }
    let rustc = rustc_version()?;
    let mut baseline = Baseline::load(&args.baseline, args.update)?;
    let counts = counters::count(&wanted)?;
    if let Some(reason) = &args.reason {
        baseline.update(&counts, &rustc, reason, args.counters.is_empty())?;
        std::fs::write(&args.baseline, baseline.to_text())?;
    }
    let compared: Baseline = baseline.only(|name| args.wants(name));
    let silent = history::raised_without_reason(&args.baseline, &compared);
    let report = Report::new(&compared, &counts, silent);
    print!("{}", report.text());
    if compared.rustc != rustc {
        println!("counted with rustc {rustc}; the baseline is of {}", compared.rustc);
    }
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}

/// The version of the compiler that builds this repository: another one makes other instructions.
fn rustc_version() -> Result<String> {
    let output = std::process::Command::new("rustc").arg("--version").output();
    let output = output.map_err(|error| format!("rustc: {error}"))?;
    let text = String::from_utf8(output.stdout)?;
    let version = text.split(' ').nth(1).ok_or("rustc does not say its version")?;
    Ok(version.trim().to_owned())
}
