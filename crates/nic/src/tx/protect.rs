//! Packets of sealed flows: see [`SealPackets`].
//!
//! The packet is copied out of registered memory to its place in the batch and encrypted there,
//! while it is in the L1 cache. Copying and encrypting in one pass would need a borrow of memory
//! that its owner may write.

use core::fmt;

use bowline_wire::{ICRC_LEN, SEALED_TAG_LEN, SealedHeader};

use super::{Flow, HeaderBuf, TxBatch, TxPacket, lengths};
use crate::memory::Segment;
use crate::seal::SealPackets;
use crate::time::Time;

/// Bytes that sealing adds to a packet.
const OVERHEAD: usize = SealedHeader::LEN + SEALED_TAG_LEN;
/// Bytes after the ciphertext: tag and ICRC field.
const TRAILER: usize = SEALED_TAG_LEN + ICRC_LEN;

/// What seals a flow's packets.
pub(super) struct Protection(Box<dyn SealPackets>);

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protection")
    }
}

impl Flow {
    /// Whether its packets are sealed.
    #[inline]
    pub(crate) fn is_protected(&self) -> bool {
        self.protection.is_some()
    }

    /// Sets or removes the sealer of what is sent from now on.
    pub(crate) fn protect(&mut self, sealer: Option<Box<dyn SealPackets>>) {
        self.protection = sealer.map(Protection);
    }

    /// Takes out the sealer.
    pub(crate) fn take_sealer(&mut self) -> Option<Box<dyn SealPackets>> {
        self.protection.take().map(|protection| protection.0)
    }

    /// Passes the time to the sealer.
    #[inline]
    pub(crate) fn set_time(&mut self, now: Time) {
        if let Some(Protection(sealer)) = &mut self.protection {
            sealer.set_time(now);
        }
    }
}

impl TxBatch {
    /// [`TxBatch::push`] for a sealed flow.
    #[inline(never)]
    pub(super) fn push_protected(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[Segment],
    ) -> u64 {
        let (len, pad) = protected_lengths(header, payload);
        self.join_burst(&flow.key, flow.tos | ecn, header.bytes[5], len);
        let to = (&mut self.packets, &mut self.bytes);
        protect(flow, header, payload, (len, pad), to);
        u64::from(len)
    }

    /// [`TxBatch::push_run`] for a sealed flow.
    #[inline(never)]
    pub(super) fn push_protected_run(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        mut payload: Segment,
        payload_len: u32,
    ) -> (u32, u64) {
        let mut header = *header;
        let (mut packets, mut bytes) = (0, 0);
        while let Some((piece, rest)) = payload.split_at(payload_len) {
            assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
            bytes += self.push_protected(flow, ecn, &header, &[piece]);
            header.next_psn();
            packets += 1;
            payload = rest;
        }
        (packets, bytes)
    }

    /// [`TxBatch::push_late`] for a sealed flow.
    pub(super) fn push_protected_late(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[Segment],
    ) -> u64 {
        assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
        let (len, pad) = protected_lengths(header, payload);
        if self.join_late(flow, flow.tos | ecn, header, len).is_none() {
            return self.push_protected(flow, ecn, header, payload);
        }
        let to = (&mut self.late.packets, &mut self.late.bytes);
        protect(flow, header, payload, (len, pad), to);
        self.capacity -= 1;
        u64::from(len)
    }
}

/// A sealed packet's length, BTH to ICRC field, and its padding.
fn protected_lengths(header: &HeaderBuf, payload: &[Segment]) -> (u32, u8) {
    let (len, pad) = lengths(header, payload);
    (len + OVERHEAD as u32, pad)
}

/// Assembles a packet of `len` bytes, padded and sealed.
fn protect(
    flow: &mut Flow,
    header: &HeaderBuf,
    payload: &[Segment],
    (len, pad): (u32, u8),
    (packets, bytes): (&mut Vec<TxPacket>, &mut Vec<u8>),
) {
    let start = bytes.len();
    packets.push(TxPacket {
        start: start as u32,
        len,
        header_len: SealedHeader::LEN as u8,
        trailer_len: TRAILER as u8,
        alike: false,
    });
    bytes.reserve(len as usize);
    bytes.extend_from_slice(&[0; SealedHeader::LEN]);
    bytes.extend_from_slice(header.as_slice());
    for segment in payload {
        segment.append(bytes);
    }
    bytes.extend_from_slice(&[0; 3][..usize::from(pad)]);
    bytes.extend_from_slice(&[0; TRAILER]);
    let end = bytes.len() - ICRC_LEN;
    if let Some(Protection(sealer)) = &mut flow.protection {
        sealer.seal(&mut bytes[start..end]);
    }
}
