//! `bowline collective`: collective operations between ranks, in the manner of nccl-tests.

mod args;
mod data;
mod launch;
mod measure;
mod report;

use std::error::Error;
use std::process::ExitCode;

use bowline::rendezvous;

pub(crate) use args::CollectiveArgs;

/// Ranks unless told otherwise.
const DEFAULT_RANKS: u32 = 2;

/// Starts ranks, or is one.
pub(crate) fn run(args: &CollectiveArgs) -> Result<ExitCode, Box<dyn Error>> {
    args.sizes()?;
    args.bounds()?;
    let launched = rendezvous::rank_from_env()?.is_some();
    if args.member || (launched && args.ranks.is_none()) {
        return measure::run(args);
    }
    launch::run(args.ranks.unwrap_or(DEFAULT_RANKS), args.seal)
}
