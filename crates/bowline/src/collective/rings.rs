//! Rings in memory that the ranks of a host share.

use std::sync::Arc;

use bowline_collective::{Group, Rank};
use bowline_device as device;
use bowline_io::{SharedMemory, Ticket};
use bowline_nic::{Buffer, Rnic};

use super::rendezvous::PeerEnd;
use super::{CommTransport, Communicator};
use crate::Error;

/// The rings for the messages of all peers, one after the other, in rank order.
pub(super) struct Rings {
    memory: SharedMemory,
    rank: Rank,
    ranks: u32,
    ring_bytes: usize,
}

impl Rings {
    /// Moves the rings of a rank to shared memory; `None` if there can be none, and they stay where
    /// they are.
    pub(super) fn create(
        nic: &mut dyn Rnic,
        group: &mut Group,
        (rank, ranks): (Rank, u32),
    ) -> Option<Rings> {
        let ring_bytes = group.shared_ring_bytes();
        let len = ring_bytes.checked_mul(ranks as usize)?;
        let memory = SharedMemory::create(len, device::random_bytes().ok()?).ok()?;
        let rings = Rings { memory, rank, ranks, ring_bytes };
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            let ring = rings.part(&rings.memory, peer)?;
            group.place_ring(nic, peer, ring).ok()?;
        }
        Some(rings)
    }

    /// What peers need to map them.
    pub(super) fn ticket(&self) -> Ticket {
        self.memory.ticket()
    }

    /// The ring of a peer that this rank writes to, if it can be mapped.
    pub(super) fn of_peer(&self, peer: &PeerEnd) -> Option<Arc<Buffer>> {
        let len = self.ring_bytes * self.ranks as usize;
        let theirs = SharedMemory::open(peer.rings.as_ref()?, len).ok()?;
        self.part(&theirs, self.rank)
    }

    /// The ring for the messages of a rank.
    fn part(&self, memory: &SharedMemory, of: Rank) -> Option<Arc<Buffer>> {
        memory.part(self.ring_bytes * of as usize, self.ring_bytes)
    }
}

impl Communicator {
    /// Agrees with every other rank on whether both have mapped each other's rings. If so, nothing
    /// can be lost between the two, and operations with bounds need no XP there. All ranks must
    /// call it.
    pub(super) fn agree_on_memory(&self) -> Result<(), Error> {
        let member = &self.shared.member;
        if self.shared.options.transport != CommTransport::Xp {
            return Ok(());
        }
        let mut reached = member.reached()?;
        let told = self.gather_bytes(&RankSet::of(&reached, self.size()).0)?;
        let sets = told.chunks(RankSet::len(self.size())).map(|set| RankSet(set.to_vec()));
        let sets: Vec<_> = sets.collect();
        reached.retain(|peer| sets.get(*peer as usize).is_some_and(|set| set.has(self.rank())));
        member.bring_near(&reached)
    }
}

/// A set of ranks, with a bit for each.
struct RankSet(Vec<u8>);

impl RankSet {
    /// Length in bytes, for a group of `ranks`.
    fn len(ranks: u32) -> usize {
        ranks.div_ceil(8) as usize
    }

    fn of(members: &[Rank], ranks: u32) -> RankSet {
        let mut bits = vec![0; RankSet::len(ranks)];
        members.iter().for_each(|rank| bits[*rank as usize / 8] |= 1 << (rank % 8));
        RankSet(bits)
    }

    fn has(&self, rank: Rank) -> bool {
        self.0.get(rank as usize / 8).is_some_and(|bits| bits >> (rank % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set = RankSet::of(&[0, 7, 8, 12], 13);
        assert_eq!(set.0.len(), RankSet::len(13));
        let found: Vec<_> = (0..100).filter(|rank| set.has(*rank)).collect();
        assert_eq!(found, [0, 7, 8, 12]);
        assert!(!RankSet::of(&[], 0).has(0));
    }
}
