//! Packets that share one call to a port.

use core::net::IpAddr;

use bowline_wire::FlowKey;

use super::{PeerEngine, TxCaps};

/// Packets that go out in one call: one destination, equal lengths, the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Destination address.
    pub dst: IpAddr,
    /// The peer's UDP port.
    pub dst_port: u16,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// UDP payload of every packet but the last.
    pub segment_len: u32,
    /// UDP payload of all of them together.
    pub bytes: u32,
    /// Steering group of the receiver: the top byte of the destination QPN. A burst arrives as a
    /// unit, so it must be for one receiving process.
    pub(super) prefix: u8,
    /// Its packets have ICRCs.
    pub(super) summed: bool,
    pub(super) first: u32,
    pub(super) count: u32,
    /// Most packets that it may have; a shorter packet can only be the last, and closes it.
    pub(super) limit: u32,
}

impl Burst {
    /// A burst of one packet of `len` bytes, which may grow to `limit`.
    pub(super) fn of_one(key: &FlowKey, tos: u8, prefix: u8, len: u32, limit: u32) -> Burst {
        Burst {
            dst: key.dst,
            dst_port: key.dst_port,
            tos,
            segment_len: len,
            bytes: len,
            prefix,
            summed: true,
            first: 0,
            count: 1,
            limit,
        }
    }

    /// Adds a packet of `len` bytes if it fits; returns its place.
    #[inline]
    pub(super) fn join(
        &mut self,
        key: &FlowKey,
        tos: u8,
        prefix: u8,
        len: u32,
        caps: &TxCaps,
    ) -> Option<u16> {
        let fits = self.dst == key.dst
            && self.tos == tos
            && self.prefix == prefix
            && self.dst_port == key.dst_port
            && len <= self.segment_len
            && self.count < self.limit
            && self.bytes + len <= caps.max_burst_bytes;
        if !fits {
            return None;
        }
        if len < self.segment_len {
            self.limit = 0;
        }
        self.bytes += len;
        self.count += 1;
        Some((self.count - 1) as u16)
    }

    /// Number of packets.
    pub fn packet_count(&self) -> usize {
        self.count as usize
    }

    /// The process at the destination: the top byte of the destination QPN.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether its packets have ICRCs; on a path that cannot corrupt them the field is zero
    /// ([`CleanPaths`](super::CleanPaths)).
    #[inline]
    pub fn is_summed(&self) -> bool {
        self.summed
    }

    /// The destination engine.
    pub fn peer(&self) -> PeerEngine {
        (self.dst, self.dst_port, self.prefix)
    }
}
