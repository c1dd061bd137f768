//! Copies on their way to a port, in trains.

use std::ops::Range;

use bowline_io::{Port, PortError};
use bowline_multicast::{Arrival, Edit, GROUP_PREFIX, Replicas, Switch, Verdict};
use bowline_nic::{IpId, Time, TxBatch, TxCaps};
use bowline_wire::FlowKey;

/// Packets of one batch.
const BATCH_PACKETS: usize = 1024;
/// Batches for one branch that wait at most. Copies beyond are dropped, and sent again by the
/// sender.
const MAX_BATCHES: usize = 64;

/// Packets on their way out, branch by branch: each member gets what is for it in one piece, as it
/// would from a sender of its own. By turns, a burst each, it would be woken for every one.
pub struct Outgoing {
    caps: TxCaps,
    /// First what is for no branch.
    queues: Vec<Queue>,
}

/// Packets for one branch, in the order in which they leave.
struct Queue {
    batches: Vec<TxBatch>,
    /// The first that has not left.
    first: usize,
    /// The one that is being filled; those behind it are empty.
    current: usize,
}

impl Queue {
    fn new(caps: TxCaps) -> Queue {
        Queue { batches: vec![TxBatch::new(caps, BATCH_PACKETS)], first: 0, current: 0 }
    }

    fn is_empty(&self) -> bool {
        self.batches[self.current].is_empty()
    }

    /// A batch with room, unless too much waits.
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
    /// Nothing yet, for a port with these capabilities.
    pub fn new(caps: TxCaps) -> Outgoing {
        Outgoing { caps, queues: vec![Queue::new(caps)] }
    }

    /// Whether everything has left.
    pub fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// Appends a whole packet whose ICRC is for IP identification `summed_id`.
    pub fn push(&mut self, flow: &FlowKey, tos: u8, summed_id: u16, frame: &[u8]) {
        if let Some(batch) = self.queues[0].batch(self.caps) {
            batch.push_summed(flow, tos, summed_id, frame);
        }
    }

    /// Appends a whole packet that goes through memory, and has no ICRC.
    pub fn push_unsummed(&mut self, flow: &FlowKey, tos: u8, frame: &[u8]) {
        if let Some(batch) = self.queues[0].batch(self.caps) {
            batch.push_unsummed(flow, tos, frame);
        }
    }

    /// The batch for a branch's next packet, unless too much waits.
    fn branch(&mut self, branch: usize) -> Option<&mut TxBatch> {
        while self.queues.len() <= branch + 1 {
            self.queues.push(Queue::new(self.caps));
        }
        self.queues[branch + 1].batch(self.caps)
    }

    /// Offers everything to the port; `false` if that is full. Until it has taken the rest, nothing
    /// may be pushed.
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

/// Frames that came together: `frame_len` bytes each but the last, which may be shorter.
#[derive(Clone, Copy)]
pub struct Train<'a> {
    /// Addresses and ports.
    pub flow: FlowKey,
    /// TOS or traffic class.
    pub tos: u8,
    /// All frames, one behind the other.
    pub bytes: &'a [u8],
    /// The length of a frame.
    pub frame_len: usize,
    /// What is known of the first frame's IPv4 identification.
    pub ip_id: IpId,
}

/// How an engine takes a frame: [`Switch::handle_frame`], or a part of it.
pub type Handle = fn(&mut Switch, Time, &Arrival<'_>) -> Verdict;

/// A frame that is to be copied.
struct Copied {
    replicas: Replicas,
    /// Its train, and where it is in that.
    train: usize,
    place: Range<usize>,
    /// The identification that its ICRC is for.
    summed_id: u16,
}

/// Makes the copies of trains.
pub struct Copier {
    handle: Handle,
    /// Frames of no group leave as they are; otherwise they go nowhere.
    passes: bool,
    copied: Vec<Copied>,
    /// Frames that the engine was asked about.
    judged: usize,
}

impl Copier {
    /// For a switch with an address of its own, which is nobody's way to anywhere else.
    pub fn of_switch() -> Copier {
        Copier { handle: Switch::handle_frame, passes: false, copied: Vec::new(), judged: 0 }
    }

    /// For the port of a sender.
    pub fn of_port() -> Copier {
        Copier { handle: Switch::handle_data, passes: true, copied: Vec::new(), judged: 0 }
    }

    /// Gives a train to the engine, and copies it branch by branch, so that it stays one.
    pub fn copy(&mut self, now: Time, engine: &mut Switch, train: &Train<'_>, out: &mut Outgoing) {
        self.clear();
        self.judge(now, engine, 0, train, out);
        self.copy_out(engine, 0, train, u64::MAX, out);
    }

    /// Forgets what was judged.
    pub(super) fn clear(&mut self) {
        self.copied.clear();
        self.judged = 0;
    }

    /// Gives a train to the engine, and notes which of its frames are to be copied.
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
                // For one peer on this host: groups are reached by the network.
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

    /// The branches that get a copy of each frame that was judged, if all get the same ones.
    pub(super) fn shared_branches(&self) -> Option<u64> {
        let branches = self.copied.first()?.replicas.branch_set();
        let is_shared = |copied: &Copied| copied.replicas.branch_set() == branches;
        let is_whole = self.copied.len() == self.judged;
        (is_whole && self.copied.iter().all(is_shared)).then_some(branches)
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

    /// Turns the bursts of a batch, of which every frame was judged and is to be copied, into the
    /// copies for a branch, where they lie. `edits` is then what leads back.
    pub(super) fn redirect(
        &self,
        engine: &mut Switch,
        branch: usize,
        batch: &mut TxBatch,
        edits: &mut Vec<Edit>,
    ) {
        edits.clear();
        for of_train in self.copied.chunk_by(|a, b| a.train == b.train) {
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

    /// Makes the bursts what they were.
    pub(super) fn restore(&self, batch: &mut TxBatch, edits: &[Edit]) {
        let mut edits = edits.iter();
        for of_train in self.copied.chunk_by(|a, b| a.train == b.train) {
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
