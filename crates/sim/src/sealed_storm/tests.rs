use super::run_seed;
use crate::attack::Attacker;
use crate::storm::testing::{is_repeatable, without_violation};

/// Enough for a change that breaks protection to be seen before it is pushed.
const SEEDS: u64 = 100;

#[test]
fn no_seed_breaks_a_rule() {
    let totals = without_violation(SEEDS, |seed| run_seed(seed, Attacker::Always));
    // A storm that exercises nothing proves nothing.
    let (coverage, nic) = (&totals.coverage, &totals.coverage.nic);
    let rolled = coverage.keys > 10 * SEEDS && coverage.nonces > 500 * SEEDS;
    assert!(rolled, "{} nonces, {} keys", coverage.nonces, coverage.keys);
    for (name, count) in [
        ("unsealed packets", nic.drop_unsealed),
        ("old epochs", nic.drop_epoch),
        ("replays", nic.drop_replayed),
        ("forgeries", nic.drop_forged),
        ("retransmissions", nic.retransmitted_packets),
        ("moves", coverage.failover.moves),
        ("FEC repairs", coverage.fec.recovered),
        ("reconnects", coverage.reconnects),
    ] {
        assert!(count > 10, "{name}: {count}");
    }
    let sealed = coverage.attack.iter().filter(|(name, _)| name.starts_with("sealed"));
    for (name, count) in sealed {
        assert!(count > 100, "{name}: {count}");
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    is_repeatable(|seed| run_seed(seed, Attacker::Always));
}
