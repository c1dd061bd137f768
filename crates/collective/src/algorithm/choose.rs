//! Choice of the algorithm.

use super::Algorithm;
use crate::hosts::{Grid, Hosts};
use crate::request::Operation;

/// The algorithms that an operation supports.
pub(crate) fn known(operation: &Operation) -> &'static [Algorithm] {
    use Algorithm::{Bruck, Direct, Exchange, Halving, Multicast, Ring, Tree, TwoLevel};
    match operation {
        Operation::Allreduce { .. } => &[Exchange, Direct, Ring, Halving, Tree, TwoLevel],
        Operation::ReduceScatter { .. } => &[Direct, Ring],
        Operation::Allgather { .. } => &[Direct, Ring, Bruck],
        Operation::AllToAll { .. } => &[Direct, Bruck],
        Operation::Broadcast { .. } => &[Direct, Ring, Tree, Multicast],
        Operation::Reduce { .. } => &[Direct, Tree],
        Operation::Barrier => &[Bruck],
        Operation::AllToAllV { .. }
        | Operation::Gather { .. }
        | Operation::Scatter { .. }
        | Operation::Send { .. }
        | Operation::Recv { .. } => &[Direct],
    }
}

/// Bytes that take as long to send as a round trip takes.
const ROUND_TRIP_BYTES: usize = 32 << 10;
/// Up to this many ranks, every rank sends to all others at once.
const FEW_RANKS: usize = 16;
/// Above this size, two ranks no longer both reduce everything.
const PAIR_BYTES: usize = 256 << 10;

/// Chooses an algorithm. The choice depends only on what all ranks know, so that all ranks make the
/// same one.
pub(crate) fn choose(operation: &Operation, element: usize, hosts: &Hosts) -> Algorithm {
    let ranks = hosts.ranks() as usize;
    let few = ranks <= FEW_RANKS;
    let small = |count: usize| count.saturating_mul(element) <= ROUND_TRIP_BYTES;
    match *operation {
        Operation::Allreduce { count } => {
            allreduce(count.saturating_mul(element), ranks, hosts.grid())
        }
        Operation::ReduceScatter { .. } | Operation::Allgather { .. } if few => Algorithm::Direct,
        Operation::Allgather { count } if small(count) => Algorithm::Bruck,
        Operation::ReduceScatter { .. } | Operation::Allgather { .. } => Algorithm::Ring,
        Operation::AllToAll { count } if !few && small(count.saturating_mul(ranks)) => {
            Algorithm::Bruck
        }
        Operation::Broadcast { .. } | Operation::Reduce { .. } if ranks > 4 => Algorithm::Tree,
        Operation::Barrier => Algorithm::Bruck,
        _ => Algorithm::Direct,
    }
}

fn allreduce(bytes: usize, ranks: usize, grid: Option<&Grid>) -> Algorithm {
    if ranks <= 2 {
        // Both algorithms send equally many bytes. With two rounds each rank reduces only half,
        // which pays off for long messages.
        return if bytes <= PAIR_BYTES { Algorithm::Exchange } else { Algorithm::Direct };
    }
    // How many more bytes exchange sends than direct: bytes * (N − 1) * (1 − 2 / N).
    let excess = (bytes.saturating_mul(ranks - 1) / ranks).saturating_mul(ranks - 2);
    if excess <= ROUND_TRIP_BYTES {
        Algorithm::Exchange
    } else if grid.is_some_and(|grid| suits_two_levels(grid, bytes)) {
        Algorithm::TwoLevel
    } else if ranks <= FEW_RANKS {
        Algorithm::Direct
    } else if bytes <= ROUND_TRIP_BYTES {
        Algorithm::Tree
    } else if bytes / ranks <= ROUND_TRIP_BYTES {
        Algorithm::Halving
    } else {
        Algorithm::Ring
    }
}

/// Whether hosts should reduce locally before they talk to each other. This sends as many bytes as
/// other algorithms, but the fewest between hosts. For short messages among many ranks, the number
/// of messages costs more than this saves.
fn suits_two_levels(grid: &Grid, bytes: usize) -> bool {
    let few = |count: usize| count <= FEW_RANKS;
    let is_long = few(grid.members().len()) || bytes > ROUND_TRIP_BYTES;
    few(grid.hosts()) && few(grid.each()) && is_long
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_known() {
        for ranks in [1, 2, 3, 4, 16, 17, 1000] {
            for count in [0, 1, 1000, 100_000, 10_000_000, usize::MAX] {
                for operation in [
                    Operation::Allreduce { count },
                    Operation::ReduceScatter { count },
                    Operation::Allgather { count },
                    Operation::AllToAll { count },
                    Operation::Broadcast { count, root: 0 },
                    Operation::Reduce { count, root: 0 },
                    Operation::Gather { count, root: 0 },
                    Operation::Barrier,
                ] {
                    let chosen = choose(&operation, 4, &Hosts::one(ranks));
                    assert!(known(&operation).contains(&chosen), "{operation:?}: {chosen}");
                }
            }
        }
    }

    #[test]
    fn messages_grow_from_one_round_to_a_ring() {
        let chosen = |count, ranks| choose(&Operation::Allreduce { count }, 4, &Hosts::one(ranks));
        assert_eq!(chosen(2 << 10, 4), Algorithm::Exchange);
        assert_eq!(chosen(64 << 10, 4), Algorithm::Direct);
        assert_eq!(chosen(64 << 10, 2), Algorithm::Exchange, "as few bytes as in two rounds");
        assert_eq!(chosen(2 << 10, 64), Algorithm::Tree);
        assert_eq!(chosen(64 << 10, 64), Algorithm::Halving);
        assert_eq!(chosen(64 << 20, 64), Algorithm::Ring);
    }

    #[test]
    fn hosts_with_several_ranks_each_reduce_first() {
        let chosen = |count, hosts: &Hosts| choose(&Operation::Allreduce { count }, 4, hosts);
        let pairs = |hosts: u32| Hosts::new((0..2 * hosts).map(|rank| rank % hosts));
        assert_eq!(chosen(64 << 10, &pairs(2)), Algorithm::TwoLevel);
        assert_eq!(chosen(2 << 10, &pairs(2)), Algorithm::Exchange, "one round is shorter");
        assert_eq!(chosen(2 << 10, &pairs(16)), Algorithm::Tree);
        assert_eq!(chosen(64 << 20, &pairs(16)), Algorithm::TwoLevel);
        assert_eq!(chosen(64 << 20, &pairs(17)), Algorithm::Ring, "too many hosts at once");
        assert_eq!(chosen(64 << 10, &Hosts::new([0, 0, 0, 1])), Algorithm::Direct);
    }
}
