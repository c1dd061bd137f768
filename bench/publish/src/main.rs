//! Draws the charts of the documents from what benches have measured: see
//! `bench/publish/README.md`.

#![forbid(unsafe_code)]

mod spec;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

const SPECS: &str = "docs/results/charts";
const RESULTS: &str = "docs/results";
const DRAWINGS: &str = "docs/img";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let check = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--check"] => true,
        _ => {
            eprintln!("usage: bench/publish/run [--check]");
            return ExitCode::from(2);
        }
    };
    match publish(check) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(stale) => {
            eprintln!("{stale} out of date: run bench/publish/run and commit {DRAWINGS}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
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
