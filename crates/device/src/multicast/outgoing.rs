//! Queues copies for a port, in trains.

use std::ops::Range;

use bowline_io::{Port, PortError};
use bowline_multicast::{Arrival, Edit, GROUP_PREFIX, Replicas, Switch, Verdict};
use bowline_nic::{IpId, Time, TxBatch, TxCaps};
use bowline_wire::FlowKey;

use super::forwarding::Forwarding;

/// Maximum number of packets in a batch.
const BATCH_PACKETS: usize = 1024;
/// Maximum number of waiting batches for one branch. Further copies are dropped, and retransmitted
/// by the sender.
const MAX_BATCHES: usize = 64;

/// Outgoing packets, branch by branch. Each member gets its packets in one piece, as it would from
/// a dedicated sender. If the branches took turns, a burst each, each member would be woken for
/// every burst.
pub struct Outgoing {
    caps: TxCaps,
    /// The first queue holds packets that are for no branch.
    queues: Vec<Queue>,
}

/// The packets for one branch, in sending order.
struct Queue {
    batches: Vec<TxBatch>,
    /// The first batch that has not been sent.
    first: usize,
    /// The batch that is being filled; those after it are empty.
    current: usize,
}

impl Queue {
    fn new(caps: TxCaps) -> Queue {
        Queue { batches: vec![TxBatch::new(caps, BATCH_PACKETS)], first: 0, current: 0 }
    }

    fn is_empty(&self) -> bool {
        self.batches[self.current].is_empty()
    }

    /// A batch with room, unless too much is waiting.
    fn batch(&mut self, caps: TxCaps) -> Option<&mut TxBatch> {
        if self.batches[self.current].is_full() {
            if self.current + 1 == MAX_BATCHES {
                return None;
            }
            self.current += 1;
            if self.current == self.batches.len() {
                self.batches.push(TxBatch::new(caps, BATCH_PACKETS));
            }
        }
        self.batches.get_mut(self.current)
    }

    fn send(&mut self, now: Time, port: &mut dyn Port) -> Result<bool, PortError> {
        for batch in &mut self.batches[self.first..=self.current] {
            let taken = port.send(now, batch, 0)?;
            if taken < batch.bursts().len() {
                batch.forget(taken);
                return Ok(false);
            }
            batch.clear();
            self.first += 1;
        }
        (self.first, self.current) = (0, 0);
        Ok(true)
    }
}

impl Outgoing {
    /// An empty queue for a port with these capabilities.
    pub fn new(caps: TxCaps) -> Outgoing {
        Outgoing { caps, queues: vec![Queue::new(caps)] }
    }

    /// Whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// Appends a whole packet whose ICRC was computed for IP identification `summed_id`.
    pub fn push(&mut self, flow: &FlowKey, tos: u8, summed_id: u16, frame: &[u8]) {
        if let Some(batch) = self.queues[0].batch(self.caps) {
            batch.push_summed(flow, tos, summed_id, frame);
        }
    }

    /// Appends a whole packet that goes through shared memory and has no ICRC.
    pub fn push_unsummed(&mut self, flow: &FlowKey, tos: u8, frame: &[u8]) {
        if let Some(batch) = self.queues[0].batch(self.caps) {
            batch.push_unsummed(flow, tos, frame);
        }
    }

    /// The batch for a branch's next packet, unless too much is waiting.
    fn branch(&mut self, branch: usize) -> Option<&mut TxBatch> {
        while self.queues.len() <= branch + 1 {
            self.queues.push(Queue::new(self.caps));
        }
        self.queues[branch + 1].batch(self.caps)
    }

    /// Offers everything to the port. Returns `false` if the port is full. Nothing may be pushed
    /// until it has taken the rest.
    ///
    /// # Errors
    /// If the port is broken.
    pub fn send(&mut self, now: Time, port: &mut dyn Port) -> Result<bool, PortError> {
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_empty()) {
            if !queue.send(now, port)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Frames that arrived together. Each has `frame_len` bytes, except the last, which may be shorter.
#[derive(Clone, Copy)]
pub struct Train<'a> {
    /// Addresses and ports.
    pub flow: FlowKey,
    /// TOS or traffic class.
    pub tos: u8,
    /// All frames, one after the other.
    pub bytes: &'a [u8],
    /// The length of a frame.
    pub frame_len: usize,
    /// What is known about the first frame's IPv4 identification.
    pub ip_id: IpId,
}

/// How an engine handles a frame: [`Switch::handle_frame`], or a part of it.
pub type Handle = fn(&mut Switch, Time, &Arrival<'_>) -> Verdict;

/// A frame to copy.
pub(super) struct Copied {
    pub(super) replicas: Replicas,
    /// Its train, and its position in the train.
    pub(super) train: usize,
    pub(super) place: Range<usize>,
    /// The IP identification for which its ICRC was computed.
    summed_id: u16,
}

/// Copies trains.
pub struct Copier {
    handle: Handle,
    /// Whether frames for no group are sent unchanged; otherwise they are dropped.
    passes: bool,
    pub(super) copied: Vec<Copied>,
    /// Number of frames that were passed to the engine.
    judged: usize,
    pub(super) forwarding: Forwarding,
}

/// Whether copies of all frames of a train go to the same places. Frames of two groups may share a
/// train, because they come from one socket and go to another.
pub(super) fn has_one_aim(train: &[Copied]) -> bool {
    train.iter().all(|copied| copied.replicas.goes_with(&train[0].replicas))
}

impl Copier {
    /// For a switch with its own address, which forwards only to groups.
    pub fn of_switch() -> Copier {
        Copier::new(Switch::handle_frame, false)
    }

    /// For the port of a sender.
    pub fn of_port() -> Copier {
        Copier::new(Switch::handle_data, true)
    }

    fn new(handle: Handle, passes: bool) -> Copier {
        let forwarding = Forwarding::default();
        Copier { handle, passes, copied: Vec::new(), judged: 0, forwarding }
    }

    /// Passes a train to the engine, and copies it branch by branch, so that it stays a train.
    pub fn copy(&mut self, now: Time, engine: &mut Switch, train: &Train<'_>, out: &mut Outgoing) {
        self.clear();
        self.judge(now, engine, 0, train, out);
        self.copy_out(engine, 0, train, u64::MAX, out);
    }

    /// Forgets earlier decisions.
    pub(super) fn clear(&mut self) {
        self.copied.clear();
        self.judged = 0;
    }

    /// Passes a train to the engine, and records which of its frames to copy.
    pub(super) fn judge(
        &mut self,
        now: Time,
        engine: &mut Switch,
        number: usize,
        train: &Train<'_>,
        out: &mut Outgoing,
    ) {
        let Train { flow, tos, bytes, mut ip_id, .. } = *train;
        let frame_len = train.frame_len.max(1);
        for (index, frame) in bytes.chunks(frame_len).enumerate() {
            self.judged += 1;
            let (known, summed_id) = match ip_id {
                IpId::Known(id) => (Some(id), id),
                IpId::Guess(id) => (None, id),
                // The frame is for one peer on this host, because groups are reached over the
                // network.
                IpId::Unsummed => {
                    if self.passes {
                        out.push_unsummed(&flow, tos, frame);
                    }
                    continue;
                }
            };
            match (self.handle)(engine, now, &Arrival { flow, ip_id: known, bytes: frame }) {
                Verdict::Replicate(replicas) => {
                    let start = index * frame_len;
                    let place = start..start + frame.len();
                    self.copied.push(Copied { replicas, train: number, place, summed_id });
                }
                Verdict::Pass if self.passes => out.push(&flow, tos, summed_id, frame),
                Verdict::Pass | Verdict::Taken => {}
            }
            ip_id.skip(1);
        }
    }

    /// The frames to copy, train by train.
    pub(super) fn trains(&self) -> impl Iterator<Item = &[Copied]> {
        self.copied.chunk_by(|a, b| a.train == b.train)
    }

    /// The branches that get a copy of each frame, if all frames have the same branches, and those
    /// of a train the same group.
    pub(super) fn shared_branches(&self) -> Option<u64> {
        let branches = self.copied.first()?.replicas.branch_set();
        let is_shared =
            |train: &[Copied]| train[0].replicas.branch_set() == branches && has_one_aim(train);
        let is_whole = self.copied.len() == self.judged;
        (is_whole && self.trains().all(is_shared)).then_some(branches)
    }

    /// Copies a train to some of the branches.
    pub(super) fn copy_out(
        &self,
        engine: &mut Switch,
        number: usize,
        train: &Train<'_>,
        among: u64,
        out: &mut Outgoing,
    ) {
        let copied = || self.copied.iter().filter(|copied| copied.train == number);
        let branches = copied().fold(0, |all, copied| all | copied.replicas.branch_set()) & among;
        for branch in bits(branches) {
            for Copied { replicas, place, summed_id, .. } in copied() {
                if replicas.branch_set() >> branch & 1 == 0 {
                    continue;
                }
                let Some(edit) = engine.edit(replicas, branch) else { continue };
                let frame = &train.bytes[place.clone()];
                let Some(batch) = out.branch(branch) else { continue };
                let rewrite = |packet: &mut [u8]| edit.apply(packet);
                let (tos, frame) = (train.tos, (frame, edit.prefix()));
                batch.push_rewritten(&edit.flow, tos, *summed_id, frame, rewrite);
            }
        }
    }

    /// Rewrites the bursts of a batch in place into the copies for one branch. Every frame must be
    /// one that the engine has decided to copy. `edits` then contains the way back.
    pub(super) fn redirect(
        &self,
        engine: &mut Switch,
        branch: usize,
        batch: &mut TxBatch,
        edits: &mut Vec<Edit>,
    ) {
        edits.clear();
        for of_train in self.trains() {
            let first = &of_train[0];
            let mut frames = of_train.iter();
            let Some(to) = engine.edit(&first.replicas, branch) else { continue };
            let prefix = to.prefix().unwrap_or(GROUP_PREFIX);
            batch.redirect(first.train, (to.flow.dst, to.flow.dst_port, prefix), |packet| {
                let Some(copied) = frames.next() else { return };
                let Some(edit) = engine.edit(&copied.replicas, branch) else { return };
                edit.apply(packet);
                edits.push(copied.replicas.undo(&edit));
            });
        }
    }

    /// Restores the original bursts.
    pub(super) fn restore(&self, batch: &mut TxBatch, edits: &[Edit]) {
        let mut edits = edits.iter();
        for of_train in self.trains() {
            let Some(Edit { flow, .. }) = edits.as_slice().first().copied() else { return };
            let to = (flow.dst, flow.dst_port, GROUP_PREFIX);
            batch.redirect(of_train[0].train, to, |packet| {
                if let Some(edit) = edits.next() {
                    edit.apply(packet);
                }
            });
        }
    }
}

/// The bits of a set, in order.
pub(super) fn bits(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| set >> bit & 1 != 0)
}
