//! Tasks of the workspace that cargo does not have.

#![forbid(unsafe_code)]

mod tidy;

use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
Tasks of the workspace that cargo does not have

usage: cargo xtask tidy

  tidy   check the style that CONTRIBUTING.md promises; prints FILE:LINE: RULE: problem

Exit status: 0 if all is tidy, 1 if there are problems, 2 for a wrong command.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(root()),
        ["-h" | "--help" | "help"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{HELP}");
            ExitCode::from(2)
        }
    }
}

/// The repository's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package is below the root")
}
