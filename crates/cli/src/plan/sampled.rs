//! Randomly sampled completion times, as a check on the model.

use bowline_plan::{Sampler, Scheme, Transfer};
use bowline_planner::Times;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::args::named;

/// Completion times of a number of messages.
pub(super) fn times(
    transfer: &Transfer,
    scheme: &Scheme,
    samples: u32,
    seed: u64,
) -> Result<Times, String> {
    let sampler = Sampler::new(transfer, scheme).map_err(named)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Ok(Times::of_draws(&sampler.sorted(samples as usize, &mut rng)))
}
