//! Rings in memory that the ranks of a host share.

use std::sync::Arc;

use bowline_collective::{Group, Rank};
use bowline_device as device;
use bowline_io::{SharedMemory, Ticket};
use bowline_nic::{Buffer, Rnic};

use super::rendezvous::PeerEnd;

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
