//! Where an end's operations read and write: every operation gets its own places, except WRITEs
//! that are meant to overwrite earlier ones.

use std::rc::Rc;

use bowline_failover::mirror::{self, Pd};
use bowline_nic::{Access, Buffer, MrKey, QpType, Region};

use super::arena::{Arena, Zone};
use super::draw_ops::REVOCABLE_BYTES;
use super::scenario::{ConnPlan, EndPlan, OpKind, OpPlan, Target};
use crate::check::pattern;
use crate::engines::{DeviceEngines, DeviceNics};
use crate::hash::mix;
use crate::rng::SimRng;
use crate::world::World;

/// Words for compare-and-swap that an end offers its peer.
pub(super) const SWAP_WORDS: usize = 3;
/// A datagram's receive begins with a global routing header.
pub(super) const GRH_LEN: usize = 40;
/// Most entries of a receive's scatter list.
const RECV_PIECES: u64 = 3;
/// Smallest region that READs go to.
const MIN_ZONE: usize = 64;

/// Pieces of a zone, in the order of a message's bytes: offset and length.
pub(super) type Pieces = Vec<(usize, usize)>;

/// Places of one operation.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// Own memory: source of a SEND or WRITE, destination of a READ or atomic.
    pub(super) local: Pieces,
    /// Start in the peer's zone: `slots` for a WRITE, `slots` or `reads` for a READ.
    pub(super) remote: usize,
    /// A READ of `slots`.
    pub(super) reads_slots: bool,
    /// Key that a SEND with invalidate revokes.
    pub(super) invalidate: Option<u32>,
}

/// Memory of one end.
pub(super) struct EndMemory {
    pub(super) arena: Arena,
    /// Sources of its own SENDs and WRITEs: nobody may write it.
    pub(super) src: Zone,
    /// Where its own READs and atomics return to.
    pub(super) results: Zone,
    /// Where the peer WRITEs.
    pub(super) slots: Zone,
    /// What the peer READs.
    pub(super) reads: Zone,
    /// Where the peer's SENDs arrive.
    pub(super) recv: Zone,
    /// Words that the peer compares and swaps.
    pub(super) swaps: Zone,
    /// Places of its own operations.
    pub(super) places: Vec<Place>,
    /// Receive buffers: one for each message of the peer's, or a ring of equal ones.
    pub(super) recv_pieces: Vec<Pieces>,
}

/// Seed of the bytes that operation `op` of end `end` sends.
pub(super) fn op_pattern(seed: u64, end: usize, op: usize) -> u64 {
    mix(seed ^ mix((end as u64) << 32 | op as u64))
}

/// A bump allocator of byte offsets.
#[derive(Default)]
struct Bump(usize);

impl Bump {
    fn take(&mut self, len: usize) -> usize {
        let at = self.0;
        self.0 += len;
        at
    }

    /// Places for a message in `count` pieces: cut anywhere, laid out last piece first, with or
    /// without gaps between them.
    fn pieces(&mut self, rng: &mut SimRng, len: usize, count: usize) -> Pieces {
        let mut cuts: Vec<usize> = (1..count).map(|_| rng.below(len as u64 + 1) as usize).collect();
        cuts.push(len);
        cuts.sort_unstable();
        let mut start = 0;
        let lens: Vec<usize> =
            cuts.into_iter().map(|cut| cut - std::mem::replace(&mut start, cut)).collect();
        let mut pieces: Pieces = lens
            .into_iter()
            .rev()
            .map(|len| {
                self.take(rng.pick(&[0, 0, 1, 5, 16]));
                (self.take(len), len)
            })
            .collect();
        pieces.reverse();
        pieces
    }
}

/// Layout of both ends of a connection, before anything is registered.
struct Layout {
    places: Vec<Place>,
    src: Bump,
    results: Bump,
    peer_slots: Bump,
    peer_reads: usize,
}

fn lay_out(rng: &mut SimRng, conn: &ConnPlan, end: &EndPlan) -> Layout {
    let longest_read = end.ops.iter().filter(|op| op.kind == OpKind::Read).map(|op| op.len).max();
    let peer_reads = longest_read.unwrap_or(0) as usize + MIN_ZONE;
    let mut layout = Layout {
        places: Vec::with_capacity(end.ops.len()),
        src: Bump::default(),
        results: Bump::default(),
        peer_slots: Bump::default(),
        peer_reads,
    };
    let mut written: Vec<(usize, usize)> = Vec::new();
    for op in &end.ops {
        let place = layout.place(rng, conn, op, &mut written);
        layout.places.push(place);
    }
    layout
}

impl Layout {
    fn place(
        &mut self,
        rng: &mut SimRng,
        conn: &ConnPlan,
        op: &OpPlan,
        written: &mut Vec<(usize, usize)>,
    ) -> Place {
        let len = op.len as usize;
        let mut place = Place::default();
        match op.kind {
            OpKind::CompareSwap | OpKind::FetchAdd => {
                // Aligned, so that the result can be read as a word.
                self.results.0 = self.results.0.next_multiple_of(8);
                place.local = vec![(self.results.take(8), 8)];
            }
            OpKind::Read => place.local = self.results.pieces(rng, len, op.pieces.into()),
            _ => place.local = self.src.pieces(rng, len, op.pieces.into()),
        }
        let earlier = match op.target {
            Target::Earlier(n) if conn.qp_type == QpType::Rc => {
                written.iter().rev().nth(n.into()).copied().filter(|(_, room)| len <= *room)
            }
            _ => None,
        };
        match (op.kind, earlier) {
            (OpKind::Write | OpKind::WriteImm, Some((at, room))) => {
                place.remote = at + rng.below((room - len) as u64 + 1) as usize;
            }
            (OpKind::Write | OpKind::WriteImm, None) => {
                self.peer_slots.take(rng.pick(&[0, 0, 3]));
                place.remote = self.peer_slots.take(len);
                written.push((place.remote, len));
            }
            (OpKind::Read, Some((at, room))) => {
                place.remote = at + rng.below((room - len) as u64 + 1) as usize;
                place.reads_slots = true;
            }
            (OpKind::Read, None) => {
                place.remote = rng.below((self.peer_reads - len) as u64 + 1) as usize;
            }
            _ => {}
        }
        place
    }
}

/// Receive buffers of an end, for what its peer sends.
fn lay_out_receives(
    rng: &mut SimRng,
    conn: &ConnPlan,
    end: &EndPlan,
    peer: &EndPlan,
) -> (Vec<Pieces>, usize) {
    let mut bump = Bump::default();
    let payload = |op: &OpPlan| if op.kind.is_send() { op.len as usize } else { 0 };
    let count =
        |rng: &mut SimRng| if rng.percent(60) { 1 } else { rng.range(2, RECV_PIECES) as usize };
    let buffers = match conn.qp_type {
        QpType::Rc | QpType::Xrc => {
            let consuming = peer.ops.iter().filter(|op| op.kind.consumes_receive());
            let mut buffers = Vec::new();
            for op in consuming {
                let room = payload(op) + rng.pick(&[0, 0, 1, 30]);
                let pieces = count(rng);
                buffers.push(bump.pieces(rng, room, pieces));
            }
            buffers
        }
        QpType::Uc | QpType::Ud | QpType::Xp => {
            let grh = if conn.qp_type == QpType::Ud { GRH_LEN } else { 0 };
            let longest = peer.ops.iter().map(payload).max().unwrap_or(0) + grh;
            let mut buffers = Vec::new();
            for _ in 0..end.recv_depth {
                let pieces = count(rng);
                buffers.push(bump.pieces(rng, longest, pieces));
            }
            buffers
        }
    };
    (buffers, bump.0)
}

/// Lays out and registers the memory of both ends of a connection; `first_end` numbers them.
pub(super) fn build(
    world: &mut World,
    pds: [(&Pd, &Rc<DeviceNics>); 2],
    conn: &ConnPlan,
    first_end: usize,
    rng: &mut SimRng,
) -> [EndMemory; 2] {
    let layouts = [0, 1].map(|side| lay_out(rng, conn, &conn.ends[side]));
    let seed = world.seed();
    let mut memories = [0, 1].map(|side| {
        let (pd, nics) = pds[side];
        let engines = DeviceEngines::new(world, nics);
        EndMemory::new(&engines, pd, conn, side, &layouts, rng)
    });
    for side in [0, 1] {
        memories[side].fill_sources(&conn.ends[side], seed, first_end + side);
        let (pd, nics) = pds[1 - side];
        let engines = DeviceEngines::new(world, nics);
        for (op, place) in conn.ends[side].ops.iter().zip(&mut memories[side].places) {
            if op.kind == OpKind::SendInvalidate {
                place.invalidate = Some(register_revocable(&engines, pd).0);
            }
        }
    }
    memories
}

/// A region that a peer's SEND may revoke.
fn register_revocable(engines: &DeviceEngines<'_>, pd: &Pd) -> MrKey {
    let buffer = Buffer::new(REVOCABLE_BYTES as usize);
    let region = || Some(Region::owned(buffer.clone()));
    // Rights of a region that a peer's SEND may revoke.
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    mirror::register(engines, pd, region, 0, access).expect("within the limits")
}

impl EndMemory {
    fn new(
        engines: &DeviceEngines<'_>,
        pd: &Pd,
        conn: &ConnPlan,
        side: usize,
        layouts: &[Layout; 2],
        rng: &mut SimRng,
    ) -> EndMemory {
        let (own, peer) = (&layouts[side], &layouts[1 - side]);
        let (recv_pieces, recv_len) =
            lay_out_receives(rng, conn, &conn.ends[side], &conn.ends[1 - side]);
        let write = Access::LOCAL_WRITE;
        let plans = [
            (own.src.0.max(1), Access::empty()),
            (own.results.0.max(1), write),
            (peer.peer_slots.0.max(MIN_ZONE), write | Access::REMOTE_WRITE | Access::REMOTE_READ),
            (peer.peer_reads, Access::REMOTE_READ),
            (recv_len.max(MIN_ZONE), write),
            (SWAP_WORDS * 8, write | Access::REMOTE_ATOMIC),
        ];
        let (arena, zones) = Arena::new(engines, pd, &plans, rng);
        let Ok([src, results, slots, reads, recv, swaps]) = <[Zone; 6]>::try_from(zones) else {
            unreachable!("as many zones as plans")
        };
        let places = own.places.clone();
        EndMemory { arena, src, results, slots, reads, recv, swaps, places, recv_pieces }
    }

    /// Puts every message where its operation reads it.
    fn fill_sources(&mut self, end: &EndPlan, seed: u64, number: usize) {
        for (index, (op, place)) in end.ops.iter().zip(&self.places).enumerate() {
            if op.kind == OpKind::Read || op.kind.is_atomic() {
                continue;
            }
            let message = pattern::message(op_pattern(seed, number, index), op.len as usize);
            let mut rest = message.as_slice();
            for (at, len) in &place.local {
                let (piece, tail) = rest.split_at(*len);
                self.src.model.store(&self.src.buffer, *at, piece);
                rest = tail;
            }
        }
    }

    /// Whether memory holds what the models say.
    pub(super) fn check(&self) -> Result<(), String> {
        self.arena.check()?;
        let zones = [
            ("sources", &self.src),
            ("results", &self.results),
            ("write slots", &self.slots),
            ("read-only memory", &self.reads),
            ("receive buffers", &self.recv),
        ];
        for (name, zone) in zones {
            zone.model.check(&zone.buffer).map_err(|what| format!("{name}: {what}"))?;
        }
        Ok(())
    }
}
