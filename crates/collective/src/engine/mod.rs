//! Runs schedules: events in, posts out.

mod adaptive;
mod agree;
mod bound;
mod bulk;
mod cast;
mod express;
mod failure;
mod input;
mod message;
mod output;
mod peer;
mod post;
mod probe;
mod receive;
mod repair;

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_nic::Time;

use crate::bounds::{Bounds, Deadline, Report};
use crate::schedule::{Action, Schedule, Span, Term};
use crate::timeout::{self, Estimator};
use crate::{MAX_RANKS, Rank};
use adaptive::Adaptive;
use agree::Agreement;
use bound::Bound;
use express::{Express, Inbox};
pub use failure::{Cause, Failure};
use message::Kind;
use peer::{Expected, Peer, StepOf};
pub use post::{FoldTerm, Post};
pub use receive::Arrival;

/// The slot of a message that was given up before it was assigned one.
const NO_SLOT: u16 = u16::MAX;
/// Maximum number of slots for messages over XP: the largest window of XP.
pub const MAX_EXPRESS_SLOTS: u16 = 16;

/// An operation of an engine, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The configuration of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// This rank.
    pub rank: Rank,
    /// Ranks of the group.
    pub ranks: u32,
    /// Maximum number of messages from one peer that wait here.
    pub slots: u16,
    /// The same for messages over XP, for operations with bounds; 0 if there are none. These slots
    /// are numbered from `slots` on.
    pub express_slots: u16,
    /// A message over XP that lacks at least this many bytes, and much of what lies between the
    /// first and the last of them, is repaired over XP.
    pub bulk_bytes: u32,
    /// How late a packet may arrive by reordering before it counts as lost.
    pub reorder_ns: u64,
    /// Maximum number of outstanding posts to one peer over RC, apart from the final
    /// [`Post::Note`]. Credits can arrive before acknowledgements do.
    pub max_posted: usize,
    /// Messages up to this length are copied into their work request.
    pub inline_bytes: usize,
    /// How long to wait for a rank before sending it a heartbeat, and between heartbeats.
    pub heartbeat_ns: u64,
    /// How long an operation may take.
    pub limit_ns: u64,
}

/// Runs the operations of one rank of a group, one after another.
///
/// *Submit* operations. Pass *inputs* as they occur: [`message`](Engine::message),
/// [`sent`](Engine::sent), [`broken`](Engine::broken), and [`timeout`](Engine::timeout) at
/// [`poll_timeout`](Engine::poll_timeout); over XP [`express_ended`](Engine::express_ended),
/// [`express_sent`](Engine::express_sent) and [`nack`](Engine::nack). At the start, post a receive
/// over XP for each slot. After each input, take *outputs* until there are none:
/// [`poll_post`](Engine::poll_post), then [`poll_done`](Engine::poll_done). Time never goes
/// backwards.
///
/// A connection keeps its messages in order, and posts complete in the order in which they were
/// posted. Whatever a peer sends leads to success, to an error or to nothing. It never causes a
/// panic, or uses more memory than the slots.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    now: Time,
    /// By rank; then the [multicast messages](crate::cast_of) of each rank, by rank.
    peers: Vec<Option<Box<Peer>>>,
    /// Operations that have not ended, oldest first. `None` where a later one ended earlier.
    ops: VecDeque<Option<Op>>,
    /// The number of the first operation in `ops`.
    first: u64,
    /// How many of `ops` have started.
    started: usize,
    /// Number of collective operations so far. All ranks count them alike.
    collectives: u64,
    /// Folds that are ready to compute.
    ready: VecDeque<StepOf>,
    /// Peers that something may have to be sent to.
    sendable: VecDeque<Rank>,
    /// Peers that may have to be told about free slots.
    owed: VecDeque<Rank>,
    /// Messages without bytes that are to be sent.
    notes: VecDeque<(Rank, Kind, u16)>,
    /// Posts that concern this rank's own receives.
    local: VecDeque<Post>,
    adaptive: Adaptive,
    agreement: Agreement,
    done: VecDeque<(OpId, Result<Report, Failure>)>,
    failure: Option<Failure>,
    has_left: bool,
    next_heartbeat: Time,
    /// When to check for a missing ACK.
    next_probe: Time,
}

/// An operation that has not ended.
#[derive(Debug)]
struct Op {
    schedule: Arc<Schedule>,
    /// Its number among the collective operations; 0 between two ranks.
    sequence: u64,
    /// Operations of this kind take equally long, encoded or not.
    kind: u64,
    tag: u16,
    /// Seed of the signs used for encoding.
    seed: u64,
    /// How many things each step still waits for.
    waits: Vec<u32>,
    /// The slots of terms that are messages.
    slots: Vec<u16>,
    /// Number of steps that have not completed.
    left: usize,
    deadline: Time,
    started: Time,
    bounds: Option<Bounds>,
    /// All ranks decide together whether it is encoded.
    is_agreed: bool,
    /// Set once the operation has started.
    bound: Option<Box<Bound>>,
}

impl Op {
    /// Sets what it runs, before it begins.
    fn set_schedule(&mut self, schedule: Arc<Schedule>) {
        let fingerprint = schedule.fingerprint();
        self.tag = message::tag(fingerprint, self.sequence);
        self.seed = fingerprint ^ self.sequence.rotate_left(32);
        self.left = schedule.len();
        self.schedule = schedule;
    }
}

impl Engine {
    /// An engine without operations.
    ///
    /// # Panics
    /// If the group has no ranks or too many, this rank is not one of them, there are no slots or
    /// posts, or there are more slots for XP than its window allows.
    pub fn new(config: EngineConfig) -> Engine {
        assert!(config.ranks <= MAX_RANKS && config.rank < config.ranks);
        assert!(config.slots > 0 && config.max_posted > 0);
        assert!(config.express_slots <= MAX_EXPRESS_SLOTS);
        Engine {
            config,
            now: Time::ZERO,
            peers: (0..2 * config.ranks).map(|_| None).collect(),
            ops: VecDeque::new(),
            first: 0,
            started: 0,
            collectives: 0,
            ready: VecDeque::new(),
            sendable: VecDeque::new(),
            owed: VecDeque::new(),
            notes: VecDeque::new(),
            local: VecDeque::new(),
            adaptive: Adaptive::default(),
            agreement: Agreement::new(config.ranks),
            done: VecDeque::new(),
            failure: None,
            has_left: false,
            next_heartbeat: Time::NEVER,
            next_probe: Time::NEVER,
        }
    }

    /// From now on, messages to a peer are copied when they are posted, however long they are.
    pub fn copy_to(&mut self, peer: Rank) {
        self.peer(peer).is_copied_to = true;
    }

    /// From now on, operations with bounds use no XP between this rank and a peer, in either
    /// direction: nothing is lost between them. The peer must do the same.
    pub fn bring_near(&mut self, peer: Rank) {
        self.peer(peer).is_near = true;
    }

    /// Number of messages over RC to a peer so far.
    pub fn sent_to(&self, peer: Rank) -> u64 {
        let peer = self.peers.get(peer as usize).and_then(Option::as_ref);
        peer.map_or(0, |peer| peer.sent)
    }

    /// Number of messages over RC from a peer so far.
    pub fn arrived_from(&self, peer: Rank) -> u64 {
        let peer = self.peers.get(peer as usize).and_then(Option::as_ref);
        peer.map_or(0, |peer| peer.folded + peer.slots.len() as u64)
    }

    /// Adds an operation after all others.
    ///
    /// # Panics
    /// If it has bounds, and is pairwise or there are no slots for XP.
    pub fn submit(&mut self, now: Time, schedule: Arc<Schedule>, bounds: Option<Bounds>) -> OpId {
        let express = self.config.express_slots > 0 && !schedule.is_pairwise();
        assert!(bounds.is_none() || express, "bounds are for collectives over XP");
        self.now = now;
        let id = OpId(self.first + self.ops.len() as u64);
        // An operation between two ranks does not change the count that all ranks share.
        let sequence = if schedule.is_pairwise() { 0 } else { self.collectives };
        self.collectives += u64::from(!schedule.is_pairwise());
        let mut op = Op {
            schedule: Arc::clone(&schedule),
            sequence,
            kind: schedule.fingerprint(),
            tag: 0,
            seed: 0,
            waits: Vec::new(),
            slots: Vec::new(),
            left: 0,
            deadline: Time::NEVER,
            started: Time::NEVER,
            bounds,
            is_agreed: bounds.is_some() && schedule.encoded().is_some(),
            bound: None,
        };
        op.set_schedule(schedule);
        self.ops.push_back(Some(op));
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

    /// What a fold must compute: the destination, its terms with the slots of messages, and whether
    /// it ends a reduction.
    ///
    /// # Panics
    /// If [`poll_post`](Engine::poll_post) has not just returned this fold.
    pub fn fold(
        &self,
        op: OpId,
        step: u32,
    ) -> (Span, impl Iterator<Item = FoldTerm<'_>> + '_, bool) {
        let op = self.op(op).expect("the operation of a fold is not over");
        let Action::Fold { dst, ref terms, finish } = *op.schedule.action(step) else {
            panic!("step {step} is a fold");
        };
        let first = terms.start as usize;
        let each = op.schedule.terms(terms).iter().enumerate().map(move |(i, term)| match *term {
            Term::Memory(span) => FoldTerm::Memory(span),
            Term::Message(_) if op.slots[first + i] == NO_SLOT => FoldTerm::Absent,
            Term::Message(of) => {
                let bound = op.bound.as_ref();
                let missing = bound.map_or(&[][..], |bound| bound.holes((first + i) as u32));
                FoldTerm::Slot { of, slot: op.slots[first + i], missing }
            }
        });
        (dst, each, finish)
    }

    /// The seed of an operation's signs, while it has not ended. It is the same on all ranks.
    pub fn seed(&self, op: OpId) -> Option<u64> {
        Some(self.op(op)?.seed)
    }

    /// The schedule of an operation that has not ended.
    pub fn schedule(&self, op: OpId) -> Option<&Arc<Schedule>> {
        Some(&self.op(op)?.schedule)
    }

    fn op(&self, id: OpId) -> Option<&Op> {
        self.ops.get(id.0.checked_sub(self.first)? as usize)?.as_ref()
    }

    fn op_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id.0.checked_sub(self.first)? as usize)?.as_mut()
    }

    fn bound_mut(&mut self, id: OpId) -> Option<&mut Bound> {
        self.op_mut(id)?.bound.as_deref_mut()
    }

    fn peer(&mut self, rank: Rank) -> &mut Peer {
        let slots = self.config.express_slots;
        self.peers[rank as usize].get_or_insert_with(|| {
            let express = Express { inbox: Inbox::new(slots), ..Express::default() };
            Box::new(Peer { express, ..Peer::default() })
        })
    }

    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let EngineConfig { rank, ranks, .. } = self.config;
        (0..rank).chain(rank + 1..ranks)
    }

    /// Starts the operations that may run: the next one when none is running, and pairwise ones
    /// alongside each other.
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

    /// Starts an operation: its time limit counts from now.
    fn start(&mut self, id: OpId) {
        let now = self.now;
        let deadline = now.plus_nanos(self.config.limit_ns);
        self.next_heartbeat = now.plus_nanos(self.config.heartbeat_ns);
        let Some(op) = self.op_mut(id) else { return };
        op.deadline = deadline;
        match self.op(id).is_some_and(|op| self.is_held(op)) {
            true => self.hold(id),
            false => self.begin(id),
        }
    }

    /// Sends the first messages of an operation, and waits for its messages.
    fn begin(&mut self, id: OpId) {
        self.choose_form(id);
        let now = self.now;
        let of = |op: &Op| Some((op.bounds?, op.kind, Arc::clone(&op.schedule)));
        let bound = self.op(id).and_then(of);
        let bound = bound.map(|(bounds, kind, schedule)| self.bound(bounds, kind, &schedule));
        let is_bounded = bound.is_some();
        let Some(op) = self.op_mut(id) else { return };
        let schedule = Arc::clone(&op.schedule);
        (op.started, op.bound) = (now, bound);
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
                    let peer = self.peer(*to);
                    match is_bounded && !peer.is_near {
                        true => peer.express.outbox.to_send.push_back(at),
                        false => peer.to_send.push_back(at),
                    }
                    self.look_at(*to);
                }
                Action::Transform { .. } => {
                    if schedule.waits(step) == 0 {
                        self.ready.push_back(at);
                    }
                }
                Action::Fold { dst, terms, .. } => {
                    if schedule.waits(step) == 0 {
                        self.ready.push_back(at);
                    }
                    for (term, what) in terms.clone().zip(schedule.terms(terms)) {
                        let expected = Expected { at, term, len: dst.len };
                        match what {
                            Term::Memory(_) => {}
                            Term::Message(from) if is_bounded && !self.is_near(*from) => {
                                self.expect_express(*from, expected);
                            }
                            Term::Message(from) => self.expect(*from, expected),
                        }
                    }
                }
            }
        }
    }

    /// The bounds of an operation that starts now.
    fn bound(&mut self, bounds: Bounds, kind: u64, schedule: &Schedule) -> Box<Bound> {
        let limit = match bounds.deadline {
            Deadline::Never => None,
            Deadline::After(time) => Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            Deadline::Adaptive(rule) => self.adaptive.start(kind, rule),
        };
        Box::new(Bound::new(bounds, schedule, |from| self.is_near(from), self.now, limit))
    }

    /// Whether nothing is lost between this rank and a peer.
    fn is_near(&self, peer: Rank) -> bool {
        self.peers.get(peer as usize).and_then(Option::as_ref).is_some_and(|peer| peer.is_near)
    }

    /// A step has completed: others may start.
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

    /// A step has one thing less to wait for.
    fn release(&mut self, at: StepOf, schedule: &Schedule) {
        let Some(op) = self.op_mut(at.op) else { return };
        let waits = &mut op.waits[at.step as usize];
        *waits -= 1;
        if *waits > 0 {
            return;
        }
        match schedule.action(at.step) {
            Action::Send { to, .. } => self.look_at(*to),
            Action::Fold { .. } | Action::Transform { .. } => self.ready.push_back(at),
        }
    }

    /// An operation has ended, and the next may start.
    fn finish(&mut self, id: OpId) {
        let op = self.ops[(id.0 - self.first) as usize].take();
        let report = op.map_or_else(Report::default, |op| self.report(op));
        self.done.push_back((id, Ok(report)));
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

    /// How an operation ended. Other ranks are told what they need to know of it.
    fn report(&mut self, op: Op) -> Report {
        let elapsed_ns = self.now.nanos_since(op.started);
        let Some(bound) = op.bound else { return Report { elapsed_ns, ..Report::default() } };
        let is_adaptive = matches!(bound.bounds.deadline, Deadline::Adaptive(_));
        let encoded = op.schedule.encoding().map(|encoding| (encoding, op.seed));
        let report = Report { elapsed_ns, encoded, ..bound.report };
        if is_adaptive {
            let arrived = report.expected_bytes - report.missing_bytes;
            let time = Estimator::proposal(elapsed_ns, arrived, report.expected_bytes);
            self.adaptive.hear(self.config.rank, self.adaptive.latest(), time);
            self.report_to_all(Kind::Proposal, timeout::to_bits(time));
        }
        if op.is_agreed {
            self.report_loss(report.missing_bytes, bound.at_risk);
        }
        report
    }

    /// Tells all others about an operation that has ended.
    fn report_to_all(&mut self, kind: Kind, number: u16) {
        for rank in self.others() {
            self.peer(rank).express.outbox.reports.push_back((kind, number));
            self.look_at(rank);
        }
    }

    /// How many folded messages trigger a credit to a peer if nothing else is sent to it: half of
    /// the slots, so that the peer need not stall.
    fn credit_threshold(&self) -> u64 {
        u64::from(self.config.slots / 2).max(1)
    }

    /// Queues a peer to be checked for something to send.
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
        let failure = Failure { rank: self.rank_behind(failure.rank), ..failure };
        self.failure = Some(failure);
        self.fail_all(failure);
        self.ready.clear();
        self.sendable.clear();
        self.owed.clear();
        self.notes.clear();
        self.local.clear();
        self.next_probe = Time::NEVER;
        if failure.cause == Cause::Unreachable && failure.rank != self.config.rank {
            // Messages in flight to it will not arrive: do not wait for them.
            self.peer(failure.rank).is_broken = true;
            let own = self.own_cast();
            if let Some(cast) = &mut self.peers[own as usize] {
                cast.is_broken = true;
            }
        }
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
