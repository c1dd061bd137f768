//! The `bowline` program.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bowline_cli::main()
}
