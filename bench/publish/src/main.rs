//! Draws the charts of the documents from what benches have measured: see
//! `bench/publish/README.md`.

#![forbid(unsafe_code)]

mod spec;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use bowline_bench_common::bars::{self, Bar};
use clap::Parser;
use serde_json::json;

const SPECS: &str = "docs/results/charts";
const RESULTS: &str = "docs/results";
const DRAWINGS: &str = "docs/img";

/// Draws the charts of the documents
#[derive(Parser)]
#[command(name = "publish")]
struct Args {
    /// Write nothing, and exit with 1 if a drawing is out of date
    #[arg(long)]
    check: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = publish(args.check).map(|stale| {
        if stale > 0 {
            eprintln!("{stale} out of date: run bench/publish/run and commit {DRAWINGS}");
        }
        let bars = [Bar::at_most("drawings out of date", stale as f64, 0.0)];
        if args.json {
            println!("{}", bars::json(&bars, json!({})));
        }
        bars::hold(&bars)
    });
    bars::status("publish", outcome)
}

/// Draws every chart; with `check` it writes nothing and counts the drawings that are out of date.
fn publish(check: bool) -> Result<usize, Box<dyn Error>> {
    let mut specs: Vec<_> =
        fs::read_dir(SPECS)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    specs.retain(|path| path.extension().is_some_and(|e| e == "json"));
    specs.sort();
    let mut stale = 0;
    for path in specs {
        let read = |name: &str| fs::read_to_string(Path::new(RESULTS).join(name));
        let svg = spec::draw(&fs::read_to_string(&path)?, read)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.file_stem().unwrap_or_default();
        let drawing = Path::new(DRAWINGS).join(name).with_extension("svg");
        if fs::read_to_string(&drawing).is_ok_and(|old| old == svg) {
            continue;
        }
        if check {
            eprintln!("{}: out of date", drawing.display());
            stale += 1;
        } else {
            fs::write(&drawing, svg)?;
            println!("{}", drawing.display());
        }
    }
    Ok(stale)
}
