//! All ranks, as the world drives them.

use std::sync::Arc;

use bowline_collective::{Failure, Group, Memory, Piece, Report};
use bowline_link::{Faults, Loss, Prob};
use bowline_nic::{Access, Buffer, MrKey, PdId, Region, Time};

use super::scenario::{CollectiveScenario, OpPlan};
use crate::check::Sink;
use crate::world::{App, HostId, NicId, World};

/// Guard bytes around each buffer.
pub(super) const GUARD_BYTES: usize = 64;
/// Their value.
pub(super) const GUARD: u8 = 0x6d;
/// How long a rank whose host stalls waits before it checks again.
const NAP_NS: u64 = 100_000;
/// Timers by kind; the low bits hold the rank, or the index of the stall.
const WAKE: u64 = 0;
const STALL: u64 = 1 << 32;
const KILL: u64 = 2 << 32;

/// A buffer of an operation at a rank.
pub(super) struct Place {
    pub(super) buffer: Arc<Buffer>,
    key: MrKey,
    len: usize,
}

impl Place {
    fn new(nic: &mut bowline_nic::Nic, pd: PdId, bytes: &[u8]) -> Place {
        let buffer = Buffer::new(bytes.len() + 2 * GUARD_BYTES);
        buffer.write_at(0, &vec![GUARD; bytes.len() + 2 * GUARD_BYTES]);
        buffer.write_at(GUARD_BYTES, bytes);
        let region = Region::owned(Arc::clone(&buffer));
        let key = nic.register(pd, region, 0, Access::LOCAL_WRITE).expect("memory is registered");
        Place { buffer, key, len: bytes.len() }
    }

    fn piece(&self) -> Piece {
        match self.len {
            0 => Piece::EMPTY,
            len => Piece { key: self.key, addr: GUARD_BYTES as u64, len },
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.buffer.to_vec(GUARD_BYTES, self.len)
    }

    /// Whether the guard bytes are intact.
    pub(super) fn is_guarded(&self) -> bool {
        let ends = [0, GUARD_BYTES + self.len];
        ends.iter().all(|at| self.buffer.to_vec(*at, GUARD_BYTES) == [GUARD; GUARD_BYTES])
    }
}

pub(super) struct Rank {
    pub(super) group: Group,
    pd: PdId,
    /// Input and output of each operation that was submitted.
    pub(super) places: Vec<[Place; 2]>,
    pub(super) results: Vec<Result<Report, Failure>>,
    wakes_at: Time,
    /// The world's activity when it was last driven, if messages use a scheme of SDR.
    seen: Option<[u64; 3]>,
}

/// The application of the storm.
pub(super) struct CollectiveStorm<'a> {
    pub(super) scenario: &'a CollectiveScenario,
    pub(super) ranks: Vec<Rank>,
    pub(super) sink: Sink,
    /// A rank has died.
    pub(super) dead: Option<usize>,
}

impl<'a> CollectiveStorm<'a> {
    /// Makes and connects everything.
    pub(super) fn new(world: &mut World, scenario: &'a CollectiveScenario) -> CollectiveStorm<'a> {
        let mut ranks: Vec<_> =
            (0..scenario.ranks).map(|rank| new_rank(world, scenario, rank)).collect();
        let rings: Vec<_> =
            scenario.shares.iter().map(|share| place_ring(world, &mut ranks, *share)).collect();
        for one in 0..ranks.len() {
            for other in (0..ranks.len()).filter(|other| *other != one) {
                let offer = ranks[other].group.offer(one as u32).expect("they are of one group");
                let (now, addr) = (world.now(), world.addr_of(HostId(other)));
                let nic = world.nic_mut(NicId(one));
                let connected = ranks[one].group.connect(nic, now, other as u32, addr, &offer);
                connected.expect("ranks are alike");
            }
            world.wake_at(world.now(), WAKE | one as u64);
        }
        for ((from, to), ring) in scenario.shares.iter().zip(rings) {
            ranks[*from as usize].group.reach_ring(*to, ring).expect("it is as long as theirs");
        }
        for (rank, peer) in scenario.near() {
            let done = ranks[rank as usize].group.bring_near(peer);
            done.expect("both have mapped the other's ring");
        }
        for cable in world.network().cables() {
            world.network_mut().link_mut(cable).set_faults(scenario.faults);
        }
        for (index, stall) in scenario.stalls.iter().enumerate() {
            world.wake_at(Time::from_nanos(stall.at_ns), STALL | index as u64);
        }
        if let Some((_, at_ns)) = scenario.kill {
            world.wake_at(Time::from_nanos(at_ns), KILL);
        }
        CollectiveStorm { scenario, ranks, sink: Sink::new(scenario.seed), dead: None }
    }

    /// Disconnects a rank from the network.
    fn kill(&mut self, world: &mut World) {
        let Some((rank, _)) = self.scenario.kill else { return };
        let rank = rank as usize;
        self.dead = Some(rank);
        let other = world.addr_of(HostId((rank + 1) % self.ranks.len()));
        let cable = world.link_from(HostId(rank), other).expect("hosts are routed");
        let gone = Faults { loss: Loss::Iid(Prob::new(1.0)), ..Faults::default() };
        world.network_mut().link_mut(cable).set_faults(gone);
    }

    /// Submits what is due at a rank.
    fn submit(&mut self, world: &mut World, rank: usize) {
        let now = world.now();
        while let Some(plan) = self.scenario.ops.get(self.ranks[rank].places.len())
            && plan.at_ns[rank] <= now.as_nanos()
        {
            let nic = world.nic_mut(NicId(rank));
            let submitted = self.ranks[rank].submit(nic, now, plan, self.scenario, rank as u32);
            self.sink.check(now, "submitting", submitted);
        }
    }

    /// Whether every operation has ended at each live rank.
    pub(super) fn is_over(&self) -> bool {
        let count = self.scenario.ops.len();
        let over =
            |(index, rank): (usize, &Rank)| Some(index) == self.dead || rank.results.len() == count;
        self.ranks.iter().enumerate().all(over)
    }
}

impl Rank {
    /// Drives its group; returns whether there was anything to do. SDR may have something to send
    /// without touching the engine, so it is driven whenever something has happened.
    fn drive(&mut self, world: &mut World, nic: NicId, over_sdr: bool) -> bool {
        let now = world.now();
        if over_sdr {
            let seen = Some(world.activity());
            let is_new = std::mem::replace(&mut self.seen, seen) != seen;
            if is_new {
                self.group.drive(world.nic_mut(nic), now);
            }
            return is_new;
        }
        let did = self.group.drive(world.poll_nic(nic), now);
        if did {
            // It may have posted.
            world.nic_mut(nic);
        }
        did
    }

    fn submit(
        &mut self,
        nic: &mut bowline_nic::Nic,
        now: Time,
        plan: &OpPlan,
        scenario: &CollectiveScenario,
        rank: u32,
    ) -> Result<(), String> {
        let index = self.places.len();
        let chunk = scenario.config.slot_bytes as usize;
        let schedule = plan.request.compile(rank, &scenario.hosts, chunk);
        let schedule = schedule.map_err(|e| e.to_string())?;
        let bytes = super::judge::before(plan, index, rank, scenario.ranks);
        let places = bytes.map(|bytes| Place::new(nic, self.pd, &bytes));
        let memory = Memory { input: places[0].piece(), output: places[1].piece() };
        self.places.push(places);
        let submitted = self.group.submit_with(nic, now, Arc::new(schedule), memory, plan.bounds);
        submitted.map(drop).map_err(|e| e.to_string())
    }
}

fn new_rank(world: &mut World, scenario: &CollectiveScenario, rank: u32) -> Rank {
    let nic = world.nic_mut(NicId(rank as usize));
    let pd = nic.alloc_pd().expect("there is room for one");
    let mut psn = scenario.seed as u32 ^ rank << 16;
    let next_psn = || {
        psn = psn.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        psn >> 8
    };
    let place = (rank, scenario.ranks);
    let group = Group::new(nic, pd, place, scenario.config, next_psn).expect("a valid group");
    Rank { group, pd, places: Vec::new(), results: Vec::new(), wakes_at: Time::NEVER, seen: None }
}

/// Gives rank `to` a ring for the messages of rank `from` that both can reach.
fn place_ring(world: &mut World, ranks: &mut [Rank], (from, to): (u32, u32)) -> Arc<Buffer> {
    let group = &mut ranks[to as usize].group;
    let ring = Buffer::new(group.shared_ring_bytes());
    let placed = group.place_ring(world.nic_mut(NicId(to as usize)), from, Arc::clone(&ring));
    placed.expect("there is room for one");
    ring
}

impl App for CollectiveStorm<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        let (kind, index) = (token >> 32 << 32, token as u32 as usize);
        if kind == STALL {
            let stall = self.scenario.stalls[index];
            let until = world.now().plus_nanos(stall.for_ns);
            return world.pause(HostId(stall.rank as usize), until);
        }
        if kind == KILL {
            return self.kill(world);
        }
        if world.is_paused(HostId(index)) {
            let later = world.now().plus_nanos(NAP_NS);
            return world.wake_at(later, token);
        }
        self.ranks[index].wakes_at = Time::NEVER;
        self.ranks[index].seen = None;
        self.on_activity(world, NicId(index));
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        self.submit(world, nic.0);
        let now = world.now();
        let rank = &mut self.ranks[nic.0];
        let did = rank.drive(world, nic, self.scenario.config.scheme.is_some());
        while let Some((id, result)) = rank.group.poll_done() {
            let word = id.0 << 8 | nic.0 as u64;
            world.note(word, || format!("rank {} operation {}: {result:?}", nic.0, id.0));
            rank.results.push(result);
        }
        let next = self.scenario.ops.get(rank.places.len()).map(|plan| plan.at_ns[nic.0]);
        let next = next.map_or(Time::NEVER, Time::from_nanos);
        let at = rank.group.poll_timeout().unwrap_or(Time::NEVER).min(next).max(now);
        if at < rank.wakes_at {
            rank.wakes_at = at;
            world.wake_at(at, WAKE | nic.0 as u64);
        }
        did
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.is_over() || !self.sink.is_empty()
    }
}
