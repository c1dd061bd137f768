//! `bowline collective`: collective operations between ranks, modelled on nccl-tests.

mod args;
mod data;
mod launch;
mod measure;
mod report;

use std::error::Error;
use std::process::ExitCode;

use bowline::rendezvous;

pub(crate) use args::CollectiveArgs;

/// Number of ranks by default.
const DEFAULT_RANKS: u32 = 2;

/// Starts the ranks, or runs as one of them.
pub(crate) fn run(args: &CollectiveArgs) -> Result<ExitCode, Box<dyn Error>> {
    args.sizes()?;
    args.bounds()?;
    let launched = rendezvous::rank_from_env()?.is_some();
    if args.member || (launched && args.ranks.is_none()) {
        return measure::run(args);
    }
    launch::run(args.ranks.unwrap_or(DEFAULT_RANKS), args.seal)
}
