//! Copies of packets that middleware forwards: the port below may not take them at once.

use bowline_nic::{Time, TxBatch, TxCaps};
use bowline_wire::FlowKey;

use super::{Port, PortError};

/// How soon to try again when the port below is full.
const RETRY_NS: u64 = 50_000;

/// A batch being forwarded to the port below, and its remainder while that port is full.
pub(crate) struct Outbox {
    batch: TxBatch,
    blocked: bool,
}

impl Outbox {
    /// An outbox for a port with these capabilities, of at most `capacity` packets.
    pub(crate) fn new(caps: TxCaps, capacity: usize) -> Outbox {
        Outbox { batch: TxBatch::new(caps, capacity), blocked: false }
    }

    /// How many more packets fit.
    pub(crate) fn room(&self) -> usize {
        self.batch.room()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Whether the port below has not taken everything yet; until it has, nothing may be pushed.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Adds a complete packet: see [`TxBatch::push_summed`].
    pub(crate) fn push(&mut self, key: &FlowKey, tos: u8, summed_id: u16, frame: &[u8]) {
        self.batch.push_summed(key, tos, summed_id, frame);
    }

    /// Adds a complete packet without an ICRC: see [`TxBatch::push_unsummed`].
    pub(crate) fn push_unsummed(&mut self, key: &FlowKey, tos: u8, frame: &[u8]) {
        self.batch.push_unsummed(key, tos, frame);
    }

    /// Offers everything to the port below.
    pub(crate) fn send(&mut self, now: Time, port: &mut impl Port) -> Result<(), PortError> {
        let taken = port.send(now, &self.batch, 0)?;
        self.blocked = taken < self.batch.bursts().len();
        if self.blocked {
            self.batch.forget(taken);
        } else {
            self.batch.clear();
        }
        Ok(())
    }

    /// Drops everything; returns the number of packets dropped.
    pub(crate) fn discard(&mut self) -> usize {
        let count = self.batch.len();
        self.batch.clear();
        self.blocked = false;
        count
    }

    /// When to offer again what the port below could not take.
    pub(crate) fn retry_at(&self, now: Time) -> Option<Time> {
        self.blocked.then(|| now.plus_nanos(RETRY_NS))
    }
}
