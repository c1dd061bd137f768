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

/// Consecutive frames of a train to which each branch makes the same changes.
pub(super) struct Run {
    pub(super) train: usize,
    /// Their numbers among the frames to copy.
    frames: Range<usize>,
    /// If the frames have been rewritten into copies: the changes that lead back.
    back: Option<Edit>,
}

impl Run {
    /// Rewrites the frames, in the bytes of their train, into the copies for one branch, or back
    /// into themselves. They may be the copies for another branch now.
    fn rewrite(&mut self, copied: &[Copied], edit: Option<Edit>, train: &mut [u8]) {
        let frames = &copied[self.frames.clone()];
        let back = edit.map(|edit| frames[0].replicas.undo(&edit));
        let step = match (edit, std::mem::replace(&mut self.back, back)) {
            (Some(edit), Some(back)) => edit.after(&back),
            (Some(step), None) | (None, Some(step)) => step,
            (None, None) => return,
        };
        for frame in frames {
            step.apply(&mut train[frame.place.clone()]);
        }
    }
}

/// Trains that are rewritten where they lie.
pub(super) trait Trains {
    /// The bytes of a train that is about to be rewritten, its first frame by `first`.
    fn train(&mut self, number: usize, first: &Edit) -> &mut [u8];
}

impl Trains for TxBatch {
    fn train(&mut self, number: usize, first: &Edit) -> &mut [u8] {
        let prefix = first.prefix().unwrap_or(GROUP_PREFIX);
        self.redirect(number, (first.flow.dst, first.flow.dst_port, prefix))
    }
}

/// Copies trains.
pub struct Copier {
    handle: Handle,
    /// Whether frames for no group are sent unchanged; otherwise they are dropped.
    passes: bool,
    copied: Vec<Copied>,
    runs: Vec<Run>,
    /// Number of frames that were passed to the engine.
    judged: usize,
    pub(super) forwarding: Forwarding,
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
        Copier { handle, passes, copied: Vec::new(), runs: Vec::new(), judged: 0, forwarding }
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
        self.runs.clear();
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
                    self.record(Copied { replicas, train: number, place, summed_id });
                }
                Verdict::Pass if self.passes => out.push(&flow, tos, summed_id, frame),
                Verdict::Pass | Verdict::Taken => {}
            }
            ip_id.skip(1);
        }
    }

    fn record(&mut self, frame: Copied) {
        let number = self.copied.len();
        match self.runs.last_mut() {
            Some(run)
                if run.train == frame.train
                    && self.copied[run.frames.start].replicas.is_edited_as(&frame.replicas) =>
            {
                run.frames.end = number + 1;
            }
            _ => {
                let frames = number..number + 1;
                self.runs.push(Run { train: frame.train, frames, back: None });
            }
        }
        self.copied.push(frame);
    }

    /// The runs of frames to copy, train by train.
    pub(super) fn trains(&self) -> impl Iterator<Item = &[Run]> {
        self.runs.chunk_by(|a, b| a.train == b.train)
    }

    /// Number of a train's frames to copy.
    pub(super) fn len_of(train: &[Run]) -> usize {
        train.iter().map(|run| run.frames.len()).sum()
    }

    /// Where the copies of a train's first frame go.
    pub(super) fn aim_of(&self, train: &[Run]) -> &Replicas {
        &self.copied[train[0].frames.start].replicas
    }

    /// Whether copies of all frames of a train go to the same places. Frames of two groups may
    /// share a train, because they come from one socket and go to another.
    pub(super) fn has_one_aim(&self, train: &[Run]) -> bool {
        let aim = self.aim_of(train);
        train.iter().all(|run| self.copied[run.frames.start].replicas.goes_with(aim))
    }

    /// The branches that get a copy of each frame, if all frames have the same branches, and those
    /// of a train the same group.
    pub(super) fn shared_branches(&self) -> Option<u64> {
        let branches = self.copied.first()?.replicas.branch_set();
        let is_shared =
            |train: &[Run]| self.aim_of(train).branch_set() == branches && self.has_one_aim(train);
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

    /// Rewrites the trains, where they lie, into the copies for one branch, except those that do
    /// not go there.
    pub(super) fn rewrite<T: Trains + ?Sized>(
        &mut self,
        engine: &mut Switch,
        branch: usize,
        trains: &mut T,
    ) {
        let copied = &self.copied;
        for train in self.runs.chunk_by_mut(|a, b| a.train == b.train) {
            let aim = &copied[train[0].frames.start].replicas;
            if aim.branch_set() >> branch & 1 == 0 {
                continue;
            }
            // `None` for all frames of the train: the group ended since the engine decided.
            let Some(first) = engine.edit(aim, branch) else { continue };
            let bytes = trains.train(train[0].train, &first);
            for run in train {
                let edit = engine.edit(&copied[run.frames.start].replicas, branch);
                run.rewrite(copied, edit, bytes);
            }
        }
    }

    /// Rewrites all trains back.
    pub(super) fn restore<T: Trains + ?Sized>(&mut self, trains: &mut T) {
        for train in self.runs.chunk_by_mut(|a, b| a.train == b.train) {
            let Some(first) = train[0].back else { continue };
            let bytes = trains.train(train[0].train, &first);
            for run in train {
                run.rewrite(&self.copied, None, bytes);
            }
        }
    }
}

/// The bits of a set, in order.
pub(super) fn bits(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| set >> bit & 1 != 0)
}
