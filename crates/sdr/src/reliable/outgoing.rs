//! A message being sent.

use bowline_nic::{Sge, Time};

use super::scratch::Scratch;
use super::shape::Shape;
use super::stripe::Memory;
use super::wire::Begin;
use super::{MAX_PROBE_NS, MIN_BEGIN_NS, MIN_PROBE_NS};
use crate::path::PathStats;
use crate::scheme::{Part, SchemeSender};
use crate::send::{Injected, SendHandle};

pub(super) struct Outgoing {
    pub(super) id: u64,
    pub(super) shape: Shape,
    pub(super) memory: Memory,
    pub(super) begin: Begin,
    /// One per place of the message, used or not.
    pub(super) handles: Vec<SendHandle>,
    /// Whether places for parity alternate with those for data.
    pub(super) has_parity_subs: bool,
    pub(super) parity: Option<Scratch>,
    /// Taken out while it is called.
    pub(super) machine: Option<Box<dyn SchemeSender>>,
    /// When it was handed in.
    pub(super) posted: Time,
    pub(super) started: bool,
    pub(super) timer: Option<Time>,
    /// When to tell the receiver again that the message has begun, which also asks for an answer,
    /// and the next interval.
    pub(super) probe_at: Option<Time>,
    pub(super) probe_ns: u64,
    /// When it was started, or the peer last said something about it.
    pub(super) heard: Time,
    /// Bytes, with parity, of which the first transmission has not left yet. Retransmissions count
    /// too: this only has to reach zero at some time.
    pub(super) unsent: u64,
    /// The end of the message has left, and the receiver has been reminded of it.
    pub(super) reminded: bool,
    pub(super) resent: u64,
    pub(super) failed: bool,
    /// Members that have not confirmed all of it, as a bit set.
    pub(super) lacking: u64,
    /// Members that have not said anything about it, as a bit set: they may not know that it has
    /// begun.
    pub(super) unaware: u64,
}

impl Outgoing {
    /// When a started message has something due.
    pub(super) fn due(&self, timeout_ns: u64) -> Time {
        let soonest = [self.timer, self.probe_at].into_iter().flatten().min();
        soonest.unwrap_or(Time::NEVER).min(self.heard.plus_nanos(timeout_ns))
    }

    /// Some of it has left: while that is so, a receiver that knows of it need not be probed.
    pub(super) fn postpone_probe(&mut self, now: Time, rtt_ns: u64) {
        if self.probe_at.is_none() {
            // Later than an answer is due, so that no receiver is asked in vain what it lacks; and
            // early enough for an answer before a scheme takes its absence for loss.
            self.probe_ns = (rtt_ns / 2 * 3).clamp(MIN_BEGIN_NS, MAX_PROBE_NS);
        } else if self.reminded || self.unaware != 0 {
            // Only messages from the receiver count: the message could otherwise be sent in vain
            // from beginning to end, and retransmissions for lack of an answer would never end.
            return;
        }
        self.probe_at = Some(now.plus_nanos(self.probe_ns));
    }

    /// How long a receiver that knows of it may be silent before it is probed.
    pub(super) fn silence_ns(&self, path: &PathStats) -> u64 {
        let rtts = if self.reminded {
            // All of it has left: a receiver asks for what it lacks each round trip, and the notice
            // that it lacks nothing may be lost.
            path.smoothed_rtt_ns.unwrap_or(0) / 2 * 3
        } else {
            path.rtt_ns.unwrap_or(0) * 3
        };
        rtts.clamp(MIN_PROBE_NS, MAX_PROBE_NS)
    }

    pub(super) fn data_sub(&self, group: u32) -> usize {
        group as usize * (1 + usize::from(self.has_parity_subs))
    }

    pub(super) fn parity_sub(&self, group: u32) -> usize {
        self.data_sub(group) + 1
    }

    /// Where a parity chunk is, if the scheme has memory for parity.
    pub(super) fn parity_sge(&self, group: u32, index: u32) -> Option<Sge> {
        parity_sge(self.parity.as_ref()?, &self.shape, group, index)
    }

    /// The chunks whose last byte is among those that have left.
    pub(super) fn parts(&self, sub: usize, injected: &Injected) -> Vec<Part> {
        let chunk_bytes = u64::from(self.shape.chunk_bytes);
        let (from, to) = (injected.offset, injected.offset + u64::from(injected.len));
        let first = (from / chunk_bytes) as u32;
        let per_group = 1 + usize::from(self.has_parity_subs);
        let group = (sub / per_group) as u32;
        if group >= self.shape.groups() {
            return Vec::new();
        }
        if sub % per_group == 1 {
            let end = u64::from(self.shape.parity_bytes(group));
            let ends_here = |index: u32| {
                let end = u64::from(index) * chunk_bytes + end;
                from < end.max(1) && end <= to
            };
            let indices = first..self.shape.parity_chunks(group);
            return indices
                .take_while(|i| u64::from(*i) * chunk_bytes < to)
                .filter(|i| ends_here(*i))
                .map(|index| Part::Parity { group, index })
                .collect();
        }
        let chunks = self.shape.group(group);
        let base = self.shape.group_bytes(group).start;
        (chunks.start + first..chunks.end)
            .take_while(|c| self.shape.chunk(*c).start - base <= to)
            .filter(|c| {
                let end = self.shape.chunk(*c).end - base;
                end <= to && (from < end || end == 0)
            })
            .map(Part::Data)
            .collect()
    }
}

/// Where a parity chunk of a group is in a scratch buffer.
pub(super) fn parity_sge(scratch: &Scratch, shape: &Shape, group: u32, index: u32) -> Option<Sge> {
    if index >= shape.m {
        return None;
    }
    let at =
        (u64::from(group) * u64::from(shape.m) + u64::from(index)) * u64::from(shape.chunk_bytes);
    Some(Sge::new(scratch.key, at, shape.parity_bytes(group)))
}
