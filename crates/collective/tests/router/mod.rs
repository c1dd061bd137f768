//! Ranks in memory. Their messages are delivered in any order that connections allow.

#![allow(dead_code, reason = "each test uses its part")]

mod express;
pub(crate) mod values;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bowline_collective::engine::{FoldTerm, Post};
use bowline_collective::schedule::{Action, Space, Span};
use bowline_collective::{
    Bounds, Contribution, Engine, EngineConfig, Failure, Hosts, OpId, Rank, Report, Request,
    cast_of, fold, fold_partial,
};
use bowline_nic::Time;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const HEARTBEAT_NS: u64 = 1_000_000;
pub(crate) const LIMIT_NS: u64 = 1_000_000_000;
pub(crate) const EXPRESS_SLOTS: u16 = 3;
/// Four packets.
const BULK_BYTES: u32 = 64;
pub(crate) const REORDER_NS: u64 = 1_000;

/// The shape of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) ranks: u32,
    pub(crate) chunk_bytes: usize,
    pub(crate) slots: u16,
    pub(crate) inline_bytes: usize,
    pub(crate) seed: u64,
}

impl Shape {
    /// Whether a receive over XP is for a repair.
    fn is_repair(&self, slot: u16) -> bool {
        slot >= self.slots + EXPRESS_SLOTS
    }

    /// Small chunks and few slots, so that everything that can wait has to.
    pub(crate) fn draw(rng: &mut ChaCha8Rng, ranks: u32) -> Shape {
        Shape {
            ranks,
            chunk_bytes: [8, 64, 64, 256, 4096][rng.random_range(0..5)],
            slots: [1, 2, 3, 8][rng.random_range(0..4)],
            inline_bytes: [0, 16, 1000][rng.random_range(0..3)],
            seed: rng.random(),
        }
    }
}

/// What a post over RC carries.
#[derive(Clone, Default)]
struct Frame {
    imm: Option<u32>,
    /// The slot and the bytes of a write.
    write: Option<(u16, Vec<u8>)>,
    /// The offset in the slot, if it is a repair.
    repairs_at: Option<usize>,
    /// The ranges that the sender of this frame is missing.
    nack: Option<Vec<std::ops::Range<u32>>>,
    /// The source of the bytes, to be checked again on acknowledgement.
    source: Option<(OpId, Span)>,
}

/// A multicast, and the ranks that have not received it yet.
struct Cast {
    frame: Frame,
    lacking: BTreeSet<Rank>,
}

#[derive(Clone)]
struct Memory {
    input: Vec<u8>,
    output: Vec<u8>,
    scratch: Vec<u8>,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    memory: BTreeMap<OpId, Memory>,
    /// The slots of each peer.
    rings: Vec<Vec<Vec<u8>>>,
    pub(crate) results: BTreeMap<OpId, Result<(), Failure>>,
    pub(crate) reports: BTreeMap<OpId, Report>,
    pub(crate) alive: bool,
}

pub(crate) struct World {
    pub(crate) shape: Shape,
    /// One host, unless set before anything is submitted.
    pub(crate) hosts: Hosts,
    pub(crate) nodes: Vec<Node>,
    /// Frames in flight, and frames that have arrived but are not acknowledged, by sender and
    /// receiver.
    wires: BTreeMap<(Rank, Rank), (VecDeque<Frame>, VecDeque<Frame>)>,
    /// Multicasts that have not completed, by sender.
    casts: BTreeMap<Rank, VecDeque<Cast>>,
    express: express::Express,
    /// Pairs of ranks that use no XP between them.
    near: BTreeSet<(Rank, Rank)>,
    /// The share of XP packets that are lost.
    pub(crate) loss: f64,
    rng: ChaCha8Rng,
    pub(crate) now: Time,
    pub(crate) delivered: u64,
    /// Number of repairs over XP.
    pub(crate) bulk: u64,
}

impl World {
    pub(crate) fn new(shape: Shape) -> World {
        let node = |rank| Node {
            engine: Engine::new(EngineConfig {
                rank,
                ranks: shape.ranks,
                slots: shape.slots,
                express_slots: EXPRESS_SLOTS,
                bulk_bytes: BULK_BYTES,
                reorder_ns: REORDER_NS,
                max_posted: usize::from(shape.slots) + 1,
                inline_bytes: shape.inline_bytes,
                heartbeat_ns: HEARTBEAT_NS,
                limit_ns: LIMIT_NS,
            }),
            memory: BTreeMap::new(),
            rings: vec![
                vec![vec![0xdd; shape.chunk_bytes]; (shape.slots + EXPRESS_SLOTS).into()];
                2 * shape.ranks as usize
            ],
            results: BTreeMap::new(),
            reports: BTreeMap::new(),
            alive: true,
        };
        World {
            shape,
            hosts: Hosts::one(shape.ranks),
            nodes: (0..shape.ranks).map(node).collect(),
            wires: BTreeMap::new(),
            casts: BTreeMap::new(),
            express: express::Express::new(&shape),
            near: BTreeSet::new(),
            loss: 0.0,
            rng: ChaCha8Rng::seed_from_u64(shape.seed),
            now: Time::ZERO,
            delivered: 0,
            bulk: 0,
        }
    }

    pub(crate) fn rng(&mut self) -> &mut ChaCha8Rng {
        &mut self.rng
    }

    /// Half of the pairs of ranks use no XP between them, as if they shared memory.
    pub(crate) fn bring_some_near(&mut self) {
        for (one, other) in (0..self.shape.ranks).flat_map(|one| (0..one).map(move |o| (one, o))) {
            if self.coin() {
                for (rank, peer) in [(one, other), (other, one)] {
                    self.nodes[rank as usize].engine.bring_near(peer);
                    self.near.insert((rank, peer));
                }
            }
        }
    }

    /// Submits an operation on a rank. In place, `input` is the initial content of the output.
    pub(crate) fn submit(&mut self, rank: Rank, request: &Request, input: Vec<u8>) -> OpId {
        self.submit_with(rank, request, input, None)
    }

    pub(crate) fn submit_with(
        &mut self,
        rank: Rank,
        request: &Request,
        input: Vec<u8>,
        bounds: Option<Bounds>,
    ) -> OpId {
        let Shape { ranks, chunk_bytes, .. } = self.shape;
        let schedule = request.compile(rank, &self.hosts, chunk_bytes).expect("a valid request");
        let (input_len, output_len) = request.bytes(rank, ranks).unwrap();
        let mut output = vec![0xa5; output_len];
        let mut kept = Vec::new();
        if request.in_place {
            output[..input.len()].copy_from_slice(&input);
        } else {
            assert_eq!(input.len(), input_len);
            kept = input;
        }
        let scratch = vec![0x5a; schedule.scratch_bytes()];
        let node = &mut self.nodes[rank as usize];
        let id = node.engine.submit(self.now, Arc::new(schedule), bounds);
        node.memory.insert(id, Memory { input: kept, output, scratch });
        id
    }

    /// Runs until nothing happens any more, or time has to advance.
    pub(crate) fn settle(&mut self) {
        loop {
            for rank in 0..self.shape.ranks {
                self.turn(rank);
            }
            let delivered = if self.coin() { self.deliver_one() } else { self.deliver_express() };
            if !delivered && !self.deliver_one() && !self.deliver_express() && !self.anybody_busy()
            {
                return;
            }
        }
    }

    fn coin(&mut self) -> bool {
        self.rng.next_u32() & 1 == 0
    }

    fn anybody_busy(&mut self) -> bool {
        (0..self.shape.ranks).any(|rank| self.turn(rank))
    }

    /// Runs until all operations have ended on all live ranks, and advances time when nothing else
    /// can happen.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100_000 {
            self.settle();
            let all_over = |node: &Node| !node.alive || node.engine.poll_timeout().is_none();
            if self.nodes.iter().all(all_over) {
                return;
            }
            let alive = self.nodes.iter().filter(|node| node.alive);
            let next = alive.filter_map(|node| node.engine.poll_timeout()).min().unwrap();
            self.now = self.now.max(next.min(self.express.next_end()));
            self.fail_posts_to_the_dead();
            let now = self.now;
            self.nodes.iter_mut().filter(|node| node.alive).for_each(|n| n.engine.timeout(now));
        }
        panic!("it does not end: {:?}", self.shape);
    }

    pub(crate) fn kill(&mut self, rank: Rank) {
        self.nodes[rank as usize].alive = false;
    }

    /// Delivers some messages, in a random order.
    pub(crate) fn run_for(&mut self, events: usize) {
        for _ in 0..events {
            let rank = self.rng.random_range(0..self.shape.ranks);
            self.turn(rank);
            self.deliver_one();
            self.deliver_express();
        }
    }

    /// Advances time.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.now = self.now.plus_nanos(ns);
        let now = self.now;
        self.nodes.iter_mut().filter(|node| node.alive).for_each(|n| n.engine.timeout(now));
    }

    pub(crate) fn output(&self, rank: Rank, op: OpId) -> &[u8] {
        &self.nodes[rank as usize].memory[&op].output
    }

    pub(crate) fn input(&self, rank: Rank, op: OpId) -> &[u8] {
        &self.nodes[rank as usize].memory[&op].input
    }

    /// Does some of what a rank wants to do. Returns whether it did anything.
    fn turn(&mut self, rank: Rank) -> bool {
        if !self.nodes[rank as usize].alive {
            return false;
        }
        let budget = self.rng.random_range(1..20);
        let mut did = false;
        for _ in 0..budget {
            let node = &mut self.nodes[rank as usize];
            while let Some((id, result)) = node.engine.poll_done() {
                if let Ok(report) = &result {
                    node.reports.insert(id, report.clone());
                }
                let result = result.map(drop);
                assert!(node.results.insert(id, result).is_none(), "{id:?} ended twice");
            }
            let Some(post) = node.engine.poll_post() else { return did };
            did = true;
            let (to, frame) = match post {
                Post::Fold { op, step } => {
                    node.compute(op, step);
                    node.engine.folded(op, step);
                    continue;
                }
                Post::Note { to, imm } => (to, Frame { imm: Some(imm), ..Frame::default() }),
                Post::Write { to, slot, op, src, imm, inline } => {
                    assert!(src.len <= self.shape.chunk_bytes);
                    let write = Some((slot, node.memory[&op].bytes(src).to_vec()));
                    let source = (!inline).then_some((op, src));
                    (to, Frame { imm: Some(imm), write, source, ..Frame::default() })
                }
                Post::Repair { to, slot, offset, op, src, imm } => {
                    let write = Some((slot, node.memory[&op].bytes(src).to_vec()));
                    let repairs_at = Some(offset as usize);
                    (to, Frame { imm, write, repairs_at, source: Some((op, src)), nack: None })
                }
                Post::Nack { to, slot, imm } => {
                    let missing = node.engine.missing(to, slot);
                    let everything = 0..self.shape.chunk_bytes as u32;
                    let nack = missing.map_or(vec![everything], <[_]>::to_vec);
                    (to, Frame { imm: Some(imm), nack: Some(nack), ..Frame::default() })
                }
                Post::Express { to, slot, op, src, imm, deadline } => {
                    let bytes = node.memory[&op].bytes(src).to_vec();
                    let cut = deadline <= self.now;
                    self.send_express((rank, to, false), (slot, 0), imm, &bytes, cut);
                    continue;
                }
                Post::Bulk { to, slot, offset, op, src, imm } => {
                    let bytes = node.memory[&op].bytes(src).to_vec();
                    let at = (slot, offset as usize);
                    self.bulk += 1;
                    self.send_express((rank, to, true), at, imm, &bytes, false);
                    continue;
                }
                post => {
                    self.local(rank, &post);
                    continue;
                }
            };
            assert_ne!(to, rank);
            if to >= self.shape.ranks {
                self.cast(rank, frame);
                continue;
            }
            self.wires.entry((rank, to)).or_default().0.push_back(frame);
        }
        true
    }

    /// Does what concerns a rank's own receives.
    fn local(&mut self, rank: Rank, post: &Post) {
        match *post {
            Post::Open { from, slot } => {
                self.express.open((from, rank, self.shape.is_repair(slot)), slot);
            }
            Post::End { from, slot, at } => {
                self.express.end((from, rank, self.shape.is_repair(slot)), slot, at);
            }
            // Nothing is lost over RC here.
            _ => {}
        }
    }

    fn cast(&mut self, from: Rank, frame: Frame) {
        let lacking = (0..self.shape.ranks).filter(|rank| *rank != from).collect();
        self.casts.entry(from).or_default().push_back(Cast { frame, lacking });
    }

    /// Delivers a multicast to a rank that lacks it, or tells its sender that all ranks have it.
    /// Returns whether there was one. A multicast that a dead rank lacks never completes.
    fn deliver_cast(&mut self) -> bool {
        let mut events = Vec::new();
        let is_alive = |rank: &Rank| self.nodes[*rank as usize].alive;
        for (from, casts) in &self.casts {
            if casts.front().is_some_and(|cast| cast.lacking.is_empty()) && is_alive(from) {
                events.push((*from, None));
            }
            let lacking: BTreeSet<_> = casts.iter().flat_map(|cast| &cast.lacking).collect();
            let alive = lacking.into_iter().filter(|rank| is_alive(rank));
            events.extend(alive.map(|to| (*from, Some(*to))));
        }
        if events.is_empty() {
            return false;
        }
        let (from, to) = events[self.rng.random_range(0..events.len())];
        let (casts, peer) = (self.casts.get_mut(&from).unwrap(), cast_of(from, self.shape.ranks));
        let Some(to) = to else {
            let cast = casts.pop_front().unwrap();
            self.acknowledge((from, peer), &cast.frame);
            return true;
        };
        let cast = casts.iter_mut().find(|cast| cast.lacking.contains(&to)).unwrap();
        cast.lacking.remove(&to);
        let (slot, bytes) = cast.frame.write.clone().unwrap();
        let (now, node) = (self.now, &mut self.nodes[to as usize]);
        node.rings[peer as usize][usize::from(slot)][..bytes.len()].copy_from_slice(&bytes);
        node.engine.message(now, peer, cast.frame.imm.unwrap(), bytes.len());
        self.delivered += 1;
        true
    }

    /// Delivers a message or an acknowledgement. Returns whether there was one.
    fn deliver_one(&mut self) -> bool {
        if !self.casts.is_empty() && self.coin() && self.deliver_cast() {
            return true;
        }
        let nodes = &self.nodes;
        let live = self.wires.iter().filter(|((from, to), (sent, acks))| {
            let [from, to] = [from, to].map(|rank| nodes[*rank as usize].alive);
            (!sent.is_empty() && to) || (!acks.is_empty() && from)
        });
        let pairs: Vec<_> = live.map(|(pair, _)| *pair).collect();
        if pairs.is_empty() {
            return self.deliver_cast();
        }
        let pair @ (from, to) = pairs[self.rng.random_range(0..pairs.len())];
        let coin = self.rng.next_u32() & 1 == 0;
        let [sender_alive, receiver_alive] = [from, to].map(|rank| self.nodes[rank as usize].alive);
        let (sent, acks) = self.wires.get_mut(&pair).unwrap();
        let may_ack = !acks.is_empty() && sender_alive;
        let may_send = !sent.is_empty() && receiver_alive;
        if may_ack && (coin || !may_send) {
            let frame = acks.pop_front().unwrap();
            self.acknowledge(pair, &frame);
        } else if may_send {
            let frame = sent.pop_front().unwrap();
            self.deliver(pair, frame);
        }
        true
    }

    fn deliver(&mut self, pair: (Rank, Rank), frame: Frame) {
        let (from, to) = pair;
        let (now, node) = (self.now, &mut self.nodes[to as usize]);
        let mut len = 0;
        if let Some((slot, bytes)) = &frame.write {
            len = bytes.len();
            let (ring, at) = (&mut node.rings[from as usize], frame.repairs_at.unwrap_or(0));
            ring[usize::from(*slot)][at..at + len].copy_from_slice(bytes);
        }
        match (frame.imm, &frame.nack) {
            (Some(imm), Some(nack)) => node.engine.nack(now, from, imm, nack),
            (Some(imm), None) => node.engine.message(now, from, imm, len),
            (None, _) => {}
        }
        self.delivered += 1;
        self.wires.get_mut(&pair).unwrap().1.push_back(frame);
    }

    /// Until now the sender might have had to retransmit it, so its source must be unchanged.
    fn acknowledge(&mut self, (from, to): (Rank, Rank), frame: &Frame) {
        let (now, node) = (self.now, &mut self.nodes[from as usize]);
        if let (Some((op, span)), Some((_, bytes))) = (frame.source, &frame.write)
            && !node.results.contains_key(&op)
            && node.engine.failure().is_none()
        {
            assert_eq!(node.memory[&op].bytes(span), bytes, "{span:?} changed before its ACK");
        }
        node.engine.sent(now, to);
    }

    /// Posts to a dead rank fail.
    fn fail_posts_to_the_dead(&mut self) {
        for ((from, to), (sent, acks)) in &mut self.wires {
            let dead = !self.nodes[*to as usize].alive;
            if dead && !(sent.is_empty() && acks.is_empty()) && self.nodes[*from as usize].alive {
                sent.clear();
                acks.clear();
                self.nodes[*from as usize].engine.broken(self.now, *to);
            }
        }
    }
}

impl Node {
    fn compute(&mut self, op: OpId, step: u32) {
        let schedule = Arc::clone(self.engine.schedule(op).unwrap());
        if let Action::Transform { dst, src, how } = *schedule.action(step) {
            let (seed, memory) = (self.engine.seed(op).unwrap(), self.memory.get_mut(&op).unwrap());
            let src = memory.bytes(src).to_vec();
            let dst = memory.bytes_mut(dst);
            return how.encoding.transform(seed, how.group, how.is_back, &src, dst);
        }
        let (dst, terms, finish) = self.engine.fold(op, step);
        let memory = &self.memory[&op];
        let mut out = memory.bytes(dst).to_vec();
        let terms: Vec<_> = terms.collect();
        let each_for = finish.then(|| u64::from(schedule.ranks()) / terms.len() as u64);
        let is_absent = terms.contains(&FoldTerm::Absent);
        let terms: Vec<_> = terms
            .into_iter()
            .filter_map(|term| {
                let (bytes, missing) = match term {
                    FoldTerm::Memory(span) if span == dst => (None, &[][..]),
                    FoldTerm::Memory(span) => (Some(memory.bytes(span)), &[][..]),
                    FoldTerm::Slot { of, slot, missing } => {
                        let ring = &self.rings[of as usize];
                        (Some(&ring[usize::from(slot)][..dst.len]), missing)
                    }
                    FoldTerm::Absent => return None,
                };
                Some(Contribution { bytes, missing })
            })
            .collect();
        let (how, dtype) = (schedule.reduce_op(), schedule.data_type());
        if !is_absent && terms.iter().all(|term| term.missing.is_empty()) {
            let terms: Vec<_> = terms.iter().map(|term| term.bytes).collect();
            fold(how, dtype, &mut out, &terms);
            if finish {
                bowline_codes::reduce::finish(how, dtype, &mut out, schedule.ranks().into());
            }
        } else {
            fold_partial(how, dtype, &mut out, &terms, each_for);
        }
        // The message is gone: a fold that still reads it must find garbage.
        for (of, slot) in self.slots_of(op, step) {
            self.rings[of as usize][usize::from(slot)].fill(0xee);
        }
        self.memory.get_mut(&op).unwrap().bytes_mut(dst).copy_from_slice(&out);
    }

    fn slots_of(&self, op: OpId, step: u32) -> Vec<(Rank, u16)> {
        let (_, terms, _) = self.engine.fold(op, step);
        terms
            .filter_map(|term| match term {
                FoldTerm::Slot { of, slot, .. } => Some((of, slot)),
                FoldTerm::Memory(_) | FoldTerm::Absent => None,
            })
            .collect()
    }
}

impl Memory {
    fn space(&self, space: Space) -> &Vec<u8> {
        match space {
            Space::Input => &self.input,
            Space::Output => &self.output,
            Space::Scratch => &self.scratch,
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        &self.space(span.space)[span.offset..span.offset + span.len]
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let space = match span.space {
            Space::Input => panic!("the input is never written"),
            Space::Output => &mut self.output,
            Space::Scratch => &mut self.scratch,
        };
        &mut space[span.offset..span.offset + span.len]
    }
}
