//! Runs schedules: events in, posts out.

mod failure;
mod input;
mod message;
mod output;
mod peer;

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_nic::Time;

use crate::schedule::{Action, Schedule, Span, Term};
use crate::{MAX_RANKS, Rank};
pub use failure::{Cause, Failure};
use message::Kind;
use peer::{Expected, Peer, StepOf};

/// An operation of an engine, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// What an engine is told at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub ranks: u32,
    /// Messages of one peer that wait here at most.
    pub slots: u16,
    /// Posts to one peer that are not over at most, besides one [`Post::Note`] that ends it all. Credits
    /// can come back before acknowledgements do.
    pub max_posted: usize,
    /// Up to this length a message is copied into its work request.
    pub inline_bytes: usize,
    /// How long to wait for a rank before it is asked for a sign of life, and again.
    pub heartbeat_ns: u64,
    /// How long an operation may take.
    pub limit_ns: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Write a span into a slot of a peer, with an immediate.
    Write {
        /// The peer.
        to: Rank,
        /// The slot there.
        slot: u16,
        /// The operation whose memory it is.
        op: OpId,
        /// The bytes.
        src: Span,
        /// The immediate.
        imm: u32,
        /// Its bytes must be copied now.
        inline: bool,
    },
    /// Send an immediate without bytes.
    Note {
        /// The peer.
        to: Rank,
        /// The immediate.
        imm: u32,
    },
    /// Compute a fold, and say so by [`Engine::folded`] before the next call.
    Fold {
        /// The operation.
        op: OpId,
        /// The step of its schedule.
        step: u32,
    },
}

/// Runs the operations of one rank of a group, one after the other.
///
/// *Submit* operations. Tell *inputs* as they come: [`message`](Engine::message), [`sent`](Engine::sent),
/// [`broken`](Engine::broken), and [`timeout`](Engine::timeout) at [`poll_timeout`](Engine::poll_timeout).
/// After each, take *outputs* until there is none: [`poll_post`](Engine::poll_post), then
/// [`poll_done`](Engine::poll_done). Time only grows.
///
/// A connection keeps the order of its messages, and completions of posts come in the order of posts. What a peer sends
/// ends in a success, in an error or in nothing, never in a panic or in more memory than slots.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    now: Time,
    peers: Vec<Option<Box<Peer>>>,
    /// Those not over, oldest first, with holes where later ones were over before.
    ops: VecDeque<Option<Op>>,
    /// The number of the first in `ops`.
    first: u64,
    /// How many of `ops` have started.
    started: usize,
    /// Operations of all ranks so far, which they count alike.
    collectives: u64,
    /// Folds that can be computed.
    ready: VecDeque<StepOf>,
    /// Peers to whom something may be sent.
    sendable: VecDeque<Rank>,
    /// Peers that may have to be told of free slots.
    owed: VecDeque<Rank>,
    /// Messages without bytes that are to be sent.
    notes: VecDeque<(Rank, Kind, u16)>,
    done: VecDeque<(OpId, Result<(), Failure>)>,
    failure: Option<Failure>,
    has_left: bool,
    next_heartbeat: Time,
}

/// An operation that is not over.
#[derive(Debug)]
struct Op {
    schedule: Arc<Schedule>,
    tag: u16,
    /// What each step still waits for.
    waits: Vec<u32>,
    /// The slots of terms that are messages.
    slots: Vec<u16>,
    /// Steps that are not over.
    left: usize,
    deadline: Time,
}

impl Engine {
    /// An engine without operations.
    ///
    /// # Panics
    /// If the group has no ranks or too many, this is none of them, or there is no slot or no post.
    pub fn new(config: EngineConfig) -> Engine {
        assert!(config.ranks <= MAX_RANKS && config.rank < config.ranks);
        assert!(config.slots > 0 && config.max_posted > 0);
        Engine {
            config,
            now: Time::ZERO,
            peers: (0..config.ranks).map(|_| None).collect(),
            ops: VecDeque::new(),
            first: 0,
            started: 0,
            collectives: 0,
            ready: VecDeque::new(),
            sendable: VecDeque::new(),
            owed: VecDeque::new(),
            notes: VecDeque::new(),
            done: VecDeque::new(),
            failure: None,
            has_left: false,
            next_heartbeat: Time::NEVER,
        }
    }

    /// Adds an operation behind all others.
    pub fn submit(&mut self, now: Time, schedule: Arc<Schedule>) -> OpId {
        self.now = now;
        let id = OpId(self.first + self.ops.len() as u64);
        // Two ranks alone do not change what the others count.
        let sequence = if schedule.is_pairwise() { 0 } else { self.collectives };
        self.collectives += u64::from(!schedule.is_pairwise());
        self.ops.push_back(Some(Op {
            tag: message::tag(schedule.fingerprint(), sequence),
            waits: Vec::new(),
            slots: Vec::new(),
            left: schedule.len(),
            deadline: Time::NEVER,
            schedule,
        }));
        match self.failure {
            Some(failure) => self.fail_all(failure),
            None => self.start_ops(),
        }
        id
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// What a fold is to compute: the destination, its terms with the slots of messages, and whether
    /// it ends a reduction.
    ///
    /// # Panics
    /// If it is not one that [`poll_post`](Engine::poll_post) has just given.
    pub fn fold(&self, op: OpId, step: u32) -> (Span, impl Iterator<Item = FoldTerm> + '_, bool) {
        let op = self.op(op).expect("the operation of a fold is not over");
        let Action::Fold { dst, ref terms, finish } = *op.schedule.action(step) else {
            panic!("step {step} is a fold");
        };
        let first = terms.start as usize;
        let each = op.schedule.terms(terms).iter().enumerate().map(move |(i, term)| match *term {
            Term::Memory(span) => FoldTerm::Memory(span),
            Term::Message(rank) => FoldTerm::Slot { of: rank, slot: op.slots[first + i] },
        });
        (dst, each, finish)
    }

    /// The schedule of an operation that is not over.
    pub fn schedule(&self, op: OpId) -> Option<&Arc<Schedule>> {
        Some(&self.op(op)?.schedule)
    }

    fn op(&self, id: OpId) -> Option<&Op> {
        self.ops.get(id.0.checked_sub(self.first)? as usize)?.as_ref()
    }

    fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id.0.checked_sub(self.first)? as usize)?.as_mut()
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        self.peers[rank as usize].get_or_insert_default()
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let EngineConfig { rank, ranks, .. } = self.config;
        (0..rank).chain(rank + 1..ranks)
    }

    /// Starts what may run: the next operation when none does, and pairwise ones beside each other.
    fn start_ops(&mut self) {
        while let Some(Some(next)) = self.ops.get(self.started) {
            let mut running = self.ops.iter().take(self.started).flatten();
            let beside = running.all(|op| next.schedule.is_pairwise() && op.schedule.is_pairwise());
            if !beside {
                return;
            }
            let id = OpId(self.first + self.started as u64);
            self.started += 1;
            self.start(id);
        }
    }

    fn start(&mut self, id: OpId) {
        let limit = self.config.limit_ns;
        self.next_heartbeat = self.now.plus_nanos(self.config.heartbeat_ns);
        let deadline = self.now.plus_nanos(limit);
        let Some(op) = self.op_mut(id) else { return };
        let schedule = Arc::clone(&op.schedule);
        op.deadline = deadline;
        op.waits = (0..schedule.len() as u32).map(|step| schedule.waits(step)).collect();
        op.slots = vec![0; schedule.term_count()];
        if schedule.is_empty() {
            return self.finish(id);
        }
        for step in 0..schedule.len() as u32 {
            if self.failure.is_some() {
                return;
            }
            let at = StepOf { op: id, step };
            match schedule.action(step) {
                Action::Send { to, .. } => {
                    self.peer(*to).to_send.push_back(at);
                    self.look_at(*to);
                }
                Action::Fold { dst, terms, .. } => {
                    if schedule.waits(step) == 0 {
                        self.ready.push_back(at);
                    }
                    for (term, what) in terms.clone().zip(schedule.terms(terms)) {
                        if let Term::Message(from) = what {
                            self.expect(*from, Expected { at, term, len: dst.len });
                        }
                    }
                }
            }
        }
    }

    /// A step is over: others may begin.
    fn complete(&mut self, at: StepOf) {
        let Some(op) = self.op_mut(at.op) else { return };
        op.left -= 1;
        if op.left == 0 {
            return self.finish(at.op);
        }
        let schedule = Arc::clone(&op.schedule);
        for dependent in schedule.dependents(at.step) {
            self.release(StepOf { step: *dependent, ..at }, &schedule);
        }
    }

    /// A step waits for one thing less.
    fn release(&mut self, at: StepOf, schedule: &Schedule) {
        let Some(op) = self.op_mut(at.op) else { return };
        let waits = &mut op.waits[at.step as usize];
        *waits -= 1;
        if *waits > 0 {
            return;
        }
        match schedule.action(at.step) {
            Action::Send { to, .. } => self.look_at(*to),
            Action::Fold { .. } => self.ready.push_back(at),
        }
    }

    /// An operation is over, and the next may begin.
    fn finish(&mut self, id: OpId) {
        self.done.push_back((id, Ok(())));
        self.ops[(id.0 - self.first) as usize] = None;
        while self.started > 0 && matches!(self.ops.front(), Some(None)) {
            self.ops.pop_front();
            self.first += 1;
            self.started -= 1;
        }
        if self.started == 0 {
            self.next_heartbeat = Time::NEVER;
        }
        self.start_ops();
    }

    /// Folded messages of which a peer is told if nothing else is sent to it: half of the slots, so that it
    /// need not stop.
    fn credit_threshold(&self) -> u64 {
        u64::from(self.config.slots / 2).max(1)
    }

    /// Has a peer looked at for something to send.
    fn look_at(&mut self, rank: Rank) {
        let peer = self.peer(rank);
        if !peer.is_queued {
            peer.is_queued = true;
            self.sendable.push_back(rank);
        }
    }

    /// Fails the group, and tells all others once.
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() || self.has_left {
            return;
        }
        self.failure = Some(failure);
        self.fail_all(failure);
        self.ready.clear();
        self.sendable.clear();
        self.owed.clear();
        self.notes.clear();
        for rank in self.others() {
            let number = message::rank_number(failure.rank);
            self.notes.push_back((rank, Kind::Abort(failure.cause), number));
        }
    }

    /// Ends all operations.
    fn fail_all(&mut self, failure: Failure) {
        for op in std::mem::take(&mut self.ops) {
            if op.is_some() {
                self.done.push_back((OpId(self.first), Err(failure)));
            }
            self.first += 1;
        }
        self.started = 0;
        self.next_heartbeat = Time::NEVER;
    }
}

/// What a fold combines, as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoldTerm {
    /// Memory of the operation.
    Memory(Span),
    /// The message in a slot of a peer.
    Slot {
        /// The peer.
        of: Rank,
        /// The slot.
        slot: u16,
    },
}
