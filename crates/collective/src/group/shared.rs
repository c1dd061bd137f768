//! Rings in memory that two ranks of a host share.
//!
//! A sender that has mapped the receiver's ring copies each message into its slot. A message
//! without payload over RC, with the usual immediate data, then says that it is there. This saves
//! what packets cost: a copy, headers, and acknowledgements of each burst. Either direction of a
//! connection may be shared, or none.
//!
//! The sender leaves the number and the length of each message behind the slots. Like everything in
//! the ring they may be anything at any time: they are read once, and compared with what is
//! expected. The number shows that the message is there: whoever can forge a packet, but not write
//! the ring, announces nothing but what was in the slot before.

use std::sync::Arc;

use bowline_nic::{Access, Buffer, Region, Rnic, Sge, Time};

use super::{Group, GroupConfig, GroupError, express};
use crate::Rank;

/// Bytes of a ring that peers address: slots, XP slots and areas for requests.
fn packet_bytes(config: &GroupConfig) -> usize {
    express::nack_offset(config, config.express_slots)
}

/// What the sender leaves about a message: the low half of its number, and its length.
fn mark(number: u64, len: u32) -> u64 {
    number << 32 | u64::from(len)
}

/// Where the mark of the message in a slot is.
fn mark_at(config: &GroupConfig, slot: u16) -> usize {
    packet_bytes(config).next_multiple_of(64) + 8 * usize::from(slot)
}

impl Group {
    /// Length of a ring that two ranks can share, in whole pages.
    pub fn shared_ring_bytes(&self) -> usize {
        mark_at(&self.config, self.config.slots).next_multiple_of(Buffer::ALIGN)
    }

    /// Puts the ring for a peer's messages into memory that the peer may map. For groups without a
    /// scheme, before this rank makes its offers.
    ///
    /// # Errors
    /// If the memory is too short, the group has a scheme, or there is no such peer.
    pub fn place_ring(
        &mut self,
        nic: &mut dyn Rnic,
        peer: Rank,
        ring: Arc<Buffer>,
    ) -> Result<(), GroupError> {
        self.check_ring(&ring)?;
        let (pd, bytes) = (self.pd, packet_bytes(&self.config));
        let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        let too_short = GroupError::Config { what: "length of a ring", value: ring.len() as u64 };
        let region = Region::part(Arc::clone(&ring), 0, bytes).ok_or(too_short)?;
        let key = nic.register(pd, region, 0, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        // Cannot fail: it is ours, and nothing uses it yet.
        let _ = nic.deregister(link.key);
        (link.key, link.rkey, link.ring, link.is_shared) = (key, nic.rkey(key), ring, true);
        Ok(())
    }

    /// From now on, messages to a peer go through its ring, which is mapped here.
    ///
    /// # Errors
    /// If the memory is too short, the group has a scheme, or there is no such peer.
    pub fn reach_ring(&mut self, peer: Rank, ring: Arc<Buffer>) -> Result<(), GroupError> {
        self.check_ring(&ring)?;
        let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
        link.ok_or(GroupError::NoPeer(peer))?.far_ring = Some(ring);
        self.engine.copy_to(peer);
        Ok(())
    }

    /// Sends messages of operations with bounds through the rings as well, instead of over XP, in
    /// both directions between this rank and a peer: nothing is lost there. For groups whose other
    /// end does the same, before the first such operation.
    ///
    /// # Errors
    /// If there is no such peer, or one end has not mapped the other's ring.
    pub fn bring_near(&mut self, peer: Rank) -> Result<(), GroupError> {
        let link = self.links.get(peer as usize).and_then(Option::as_ref);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        if !link.is_shared || link.far_ring.is_none() {
            return Err(GroupError::Config {
                what: "rank beyond shared memory",
                value: peer.into(),
            });
        }
        self.engine.bring_near(peer);
        Ok(())
    }

    /// Whether messages to a peer go through its ring.
    pub fn reaches(&self, to: Rank) -> bool {
        self.far_ring(to).is_some()
    }

    /// How many peers' rings are mapped here.
    pub fn mapped_rings(&self) -> u32 {
        self.links.iter().flatten().filter(|link| link.far_ring.is_some()).count() as u32
    }

    fn check_ring(&self, ring: &Buffer) -> Result<(), GroupError> {
        let invalid = |what, value| Err(GroupError::Config { what, value });
        if self.config.scheme.is_some() {
            return invalid("shared ring beside a scheme", 1);
        }
        if ring.len() < self.shared_ring_bytes() {
            return invalid("length of a ring", ring.len() as u64);
        }
        Ok(())
    }

    fn far_ring(&self, to: Rank) -> Option<&Arc<Buffer>> {
        self.links.get(to as usize)?.as_ref()?.far_ring.as_ref()
    }

    /// Copies a message into a slot of a peer's ring, and tells the peer.
    pub(super) fn write_shared(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (to, slot): (Rank, u16),
        src: Sge,
        imm: u32,
    ) {
        let at = usize::from(slot) * self.config.slot_bytes as usize;
        let ring = self.far_ring(to).filter(|_| src.len <= self.config.slot_bytes);
        let Some(ring) = ring else { return self.engine.give_up(now) };
        let copy = nic.with_slices(self.pd, &[src], &[], |reads, _| ring.write_at(at, reads[0]));
        if copy.is_err() {
            return self.engine.give_up(now);
        }
        let number = self.engine.sent_to(to).wrapping_sub(1);
        ring.store_u64(mark_at(&self.config, slot), mark(number, src.len));
        self.note(nic, now, to, imm);
    }

    /// The length of the message that a peer says is in its next slot; one that no message has, if
    /// it is not there.
    pub(super) fn shared_len(&self, from: Rank, imm: u32) -> usize {
        let link = self.links.get(from as usize).and_then(Option::as_ref);
        let Some(link) = link.filter(|link| link.is_shared && self.engine.is_data(imm)) else {
            return 0;
        };
        let number = self.engine.arrived_from(from);
        let slot = (number % u64::from(self.config.slots)) as u16;
        let found = link.ring.load_u64(mark_at(&self.config, slot));
        match found as u32 {
            len if found == mark(number, len) => len as usize,
            _ => usize::MAX,
        }
    }
}
