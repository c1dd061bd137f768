//! A scheme's view of its message, and its operations on it.

use std::ops::Range;

use bowline_codes::{ChunkSet, Code};
use bowline_nic::{PdId, Rnic, Sge, Time};

use super::incoming::Incoming;
use super::outbox::{Outbox, PREFIX};
use super::outgoing::Outgoing;
use super::shape::Shape;
use super::stripe::Memory;
use super::wire::Message;
use crate::control::MAX_CONTROL;
use crate::path::PathStats;
use crate::qp::SdrQp;
use crate::scheme::Part;
use crate::send::Source;

/// Longest message from one end of a scheme to the other.
pub const MAX_TELL: usize = MAX_CONTROL - 16;
// Its length, its kind and its message's number precede it.
const _: () = assert!(MAX_TELL + PREFIX + 1 + 8 <= MAX_CONTROL);

/// Assumed round trip until one is measured.
const UNKNOWN_RTT_NS: u64 = 50_000_000;
/// Shortest round trip to assume: below that, scheduling delays of the hosts dominate, and clocks
/// are read once for many packets.
const MIN_RTT_NS: u64 = 1_000_000;

fn rtt_ns(path: &PathStats) -> u64 {
    path.smoothed_rtt_ns.unwrap_or(UNKNOWN_RTT_NS).max(MIN_RTT_NS)
}

/// Where a data chunk is.
fn data_sge(memory: &Memory, shape: &Shape, chunk: u32) -> Sge {
    let bytes = shape.chunk(chunk);
    let Source { key, addr } = memory.at(bytes.start);
    Sge::new(key, addr, (bytes.end - bytes.start) as u32)
}

/// A scheme's view of the sending end of a message.
pub struct SendCx<'a> {
    pub(super) now: Time,
    pub(super) nic: &'a mut dyn Rnic,
    pub(super) sdr: &'a mut SdrQp,
    pub(super) outbox: &'a mut Outbox,
    pub(super) pd: PdId,
    pub(super) message: &'a mut Outgoing,
    pub(super) member: usize,
}

impl SendCx<'_> {
    /// Number of receivers: one, or the members of a group.
    pub fn members(&self) -> usize {
        self.sdr.members()
    }

    /// Members that were not evicted, as a bit set.
    pub fn live_members(&self) -> u64 {
        self.sdr.live_members()
    }

    /// The member that sent the control message, in
    /// [`SchemeSender::control`](crate::SchemeSender::control).
    pub fn member(&self) -> usize {
        self.member
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The message's chunks and groups.
    pub fn shape(&self) -> &Shape {
        &self.message.shape
    }

    /// What is known about the path.
    pub fn path(&self) -> PathStats {
        self.sdr.path()
    }

    /// The round trip to assume, measured or default.
    pub fn rtt_ns(&self) -> u64 {
        rtt_ns(&self.sdr.path())
    }

    /// Queues a chunk behind everything queued.
    pub fn send(&mut self, part: Part) {
        self.queue(part, false);
    }

    /// Queues a chunk ahead of all first transmissions.
    pub fn send_again(&mut self, part: Part) {
        self.message.resent += 1;
        self.queue(part, true);
    }

    fn queue(&mut self, part: Part, urgent: bool) {
        let shape = self.message.shape;
        let (sub, offset, len, source) = match part {
            Part::Data(chunk) if chunk < shape.chunks() => {
                let group = shape.group_of(chunk);
                let bytes = shape.chunk(chunk);
                let source = self.message.memory.at(bytes.start);
                let offset = bytes.start - shape.group_bytes(group).start;
                (self.message.data_sub(group), offset, bytes.end - bytes.start, source)
            }
            Part::Parity { group, index }
                if group < shape.groups() && index < shape.parity_chunks(group) =>
            {
                let Some(sge) = self.message.parity_sge(group, index) else { return };
                let source = Source { key: bowline_nic::MrKey(sge.lkey), addr: sge.addr };
                let offset = u64::from(index) * u64::from(shape.chunk_bytes);
                (self.message.parity_sub(group), offset, sge.len.into(), source)
            }
            _ => return,
        };
        let handle = self.message.handles[sub];
        // It fails only for a finished message, which needs nothing more.
        let _ = self.sdr.send_continue(handle, offset, len, source, urgent);
    }

    /// Adds a run of data chunks of one group to the group's parity, which is initialized by the
    /// group's first chunk. Longer runs cost less per chunk.
    pub fn encode(&mut self, code: &Code, chunks: Range<u32>) {
        let shape = self.message.shape;
        let group = shape.group_of(chunks.start);
        let parity: Option<Vec<Sge>> = (0..shape.parity_chunks(group))
            .map(|index| self.message.parity_sge(group, index))
            .collect();
        let Some(parity) = parity else { return };
        let memory = self.message.memory;
        let sge = |chunk| data_sge(&memory, &shape, chunk);
        let data: Vec<Sge> = chunks.clone().map(sge).collect();
        let first = (chunks.start - shape.group(group).start) as usize;
        let coded = self.nic.with_slices(self.pd, &data, &parity, |data, parity| {
            if first == 0 {
                parity.iter_mut().for_each(|chunk| chunk.fill(0));
            }
            code.update_run(first, data, parity).is_ok()
        });
        if coded != Ok(true) {
            // The caller's memory is gone: sending it will fail as well, and report it.
            self.message.failed = true;
        }
    }

    /// Sends a message to the receiving end: at most [`MAX_TELL`] bytes, which may be lost.
    pub fn tell(&mut self, bytes: &[u8]) {
        let message = Message::ToReceiver(self.message.id, &bytes[..bytes.len().min(MAX_TELL)]);
        self.outbox.push(self.nic, self.now, self.sdr, message);
    }

    /// When to call [`SchemeSender::timeout`](crate::SchemeSender::timeout); there is one timer.
    pub fn set_timer(&mut self, at: Option<Time>) {
        self.message.timer = at;
    }
}

/// A scheme's view of the receiving end of a message.
pub struct RecvCx<'a> {
    pub(super) now: Time,
    pub(super) nic: &'a mut dyn Rnic,
    pub(super) sdr: &'a mut SdrQp,
    pub(super) outbox: &'a mut Outbox,
    pub(super) pd: PdId,
    pub(super) message: &'a mut Incoming,
    pub(super) shape: &'a Shape,
    pub(super) wire_ns: u64,
}

impl RecvCx<'_> {
    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The message's chunks and groups.
    pub fn shape(&self) -> &Shape {
        self.shape
    }

    /// What is known about the path.
    pub fn path(&self) -> PathStats {
        self.sdr.path()
    }

    /// The round trip to assume, measured or default.
    pub fn rtt_ns(&self) -> u64 {
        rtt_ns(&self.sdr.path())
    }

    /// How long the message, with parity, takes on the wire, by the sender's estimate.
    pub fn wire_ns(&self) -> u64 {
        self.wire_ns
    }

    /// Whether a chunk has arrived.
    pub fn has(&self, part: Part) -> bool {
        let (sub, bit) = match part {
            Part::Data(chunk) => {
                let group = self.shape.group_of(chunk);
                (self.message.data_sub(group), chunk - self.shape.group(group).start)
            }
            Part::Parity { group, index } => (self.message.parity_sub(group), index),
        };
        let handle = self.message.handles.get(sub).copied().flatten();
        handle.and_then(|h| self.sdr.recv_bitmap(h).ok()).is_some_and(|bits| bits.get(bit))
    }

    /// Which chunks of a group have arrived: its data chunks first, then its parity chunks.
    pub fn present(&self, group: u32) -> ChunkSet {
        let data = self.shape.group(group).len();
        let mut present = ChunkSet::EMPTY;
        let parity = self.shape.parity_chunks(group) as usize;
        let subs = [
            (self.message.data_sub(group), 0, data),
            (self.message.parity_sub(group), data, parity),
        ];
        for (sub, at, count) in subs {
            let handle = self.message.handles.get(sub).copied().flatten();
            let Some(bits) = handle.and_then(|h| self.sdr.recv_bitmap(h).ok()) else { continue };
            for word in 0..count.div_ceil(64) {
                let left = count - word * 64;
                let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
                present.insert_bits(at + word * 64, bits.word(word as u32) & mask);
            }
        }
        present
    }

    /// One past the highest data chunk that has arrived, or `known` if that is more.
    pub fn high_data(&self, known: u32) -> u32 {
        let last = self.message.top_group().min(self.shape.groups() - 1);
        for group in (self.shape.group_of(known)..=last).rev() {
            let data = ChunkSet::first(self.shape.group(group).len());
            let last = self.present(group).intersection(&data).iter().last();
            if let Some(last) = last {
                return known.max(self.shape.group(group).start + last as u32 + 1);
            }
        }
        known
    }

    /// Reconstructs a group's missing data chunks from those that are `present`, in place; `false`
    /// if they do not suffice.
    pub fn reconstruct(&mut self, code: &Code, group: u32, present: &ChunkSet) -> bool {
        let Ok(plan) = code.plan(present) else { return false };
        let data = self.shape.group(group);
        let sge = |index: usize| -> Option<Sge> {
            match index.checked_sub(data.len()) {
                None => Some(data_sge(&self.message.memory, self.shape, data.start + index as u32)),
                Some(parity) => self.message.parity_sge(self.shape, group, parity as u32),
            }
        };
        let sources: Option<Vec<Sge>> = plan.sources().iter().map(|i| sge(*i)).collect();
        let missing: Option<Vec<Sge>> = plan.missing().iter().map(|i| sge(*i)).collect();
        let (Some(sources), Some(missing)) = (sources, missing) else { return false };
        self.message.recovered += missing.len() as u64;
        let done = self.nic.with_slices(self.pd, &sources, &missing, |sources, missing| {
            plan.apply(sources, missing).is_ok()
        });
        done == Ok(true)
    }

    /// Sends a message to the sending end: at most [`MAX_TELL`] bytes, which may be lost.
    pub fn tell(&mut self, bytes: &[u8]) {
        let message = Message::ToSender(self.message.id, &bytes[..bytes.len().min(MAX_TELL)]);
        self.outbox.push(self.nic, self.now, self.sdr, message);
    }

    /// When to call [`SchemeReceiver::timeout`](crate::SchemeReceiver::timeout); there is one
    /// timer.
    pub fn set_timer(&mut self, at: Option<Time>) {
        self.message.timer = at;
    }

    /// The whole message has arrived.
    pub fn complete(&mut self) {
        self.message.complete = true;
    }
}
