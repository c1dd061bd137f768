//! All ranks, as the world drives them: one operation after the other.

use std::sync::Arc;

use bowline_collective::{Bounds, Group, Hosts, Memory, Piece, Report, Schedule};
use bowline_nic::{Access, Buffer, Region, Time};

use super::{CollectivesConfig, CollectivesOutcome};
use crate::world::{App, HostId, NicId, World};

/// Ranks compute between operations.
const PAUSE_NS: u64 = 200_000;
/// Timers of a rank have its number; this one starts the next operation.
const NEXT: u64 = 1 << 32;

struct Rank {
    group: Group,
    schedule: Arc<Schedule>,
    memory: Memory,
    wakes_at: Time,
    /// The world's activity when it was last driven, if messages use a scheme of SDR.
    seen: Option<[u64; 3]>,
}

/// The application.
pub(super) struct Ranks {
    ranks: Vec<Rank>,
    bounds: Option<Bounds>,
    over_sdr: bool,
    /// Operations to do, and when the current one has started.
    left: usize,
    started: Time,
    /// Ranks that are done with it.
    done: usize,
    has_failed: bool,
    outcome: CollectivesOutcome,
}

impl Ranks {
    /// Makes and connects everything.
    ///
    /// All ranks read the same input and write the same output: everything is 0, so 64 ranks need
    /// no more memory than one.
    pub(super) fn connect(world: &mut World, config: &CollectivesConfig) -> Ranks {
        assert!(config.ranks >= 2, "one rank has nobody to talk to");
        let buffers = [Buffer::new(config.bytes as usize), Buffer::new(config.bytes as usize)];
        let mut ranks: Vec<Rank> =
            (0..config.ranks).map(|rank| new_rank(world, config, rank, &buffers)).collect();
        for one in 0..ranks.len() {
            for other in (0..ranks.len()).filter(|other| *other != one) {
                let offer = ranks[other].group.offer(one as u32).expect("they are of one group");
                let (now, addr) = (world.now(), world.addr_of(HostId(other)));
                let nic = world.nic_mut(NicId(one));
                let connected = ranks[one].group.connect(nic, now, other as u32, addr, &offer);
                connected.expect("ranks are alike");
            }
        }
        world.wake_at(world.now(), NEXT);
        let bounds = config.carrier.bounds();
        let over_sdr = config.group().scheme.is_some();
        let outcome = CollectivesOutcome {
            times_ns: Vec::new(),
            expected_bytes: 0,
            repaired_bytes: 0,
            missing_bytes: 0,
            drops: 0,
            packets: 0,
        };
        // The first one is the warm-up.
        let left = config.operations + 1;
        let started = Time::NEVER;
        Ranks { ranks, bounds, over_sdr, left, started, done: 0, has_failed: false, outcome }
    }

    /// Starts the next operation at all ranks.
    fn next(&mut self, world: &mut World) {
        let now = world.now();
        (self.started, self.done) = (now, 0);
        self.left -= 1;
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let nic = world.nic_mut(NicId(index));
            let (schedule, memory) = (Arc::clone(&rank.schedule), rank.memory);
            let submitted = rank.group.submit_with(nic, now, schedule, memory, self.bounds);
            self.has_failed |= submitted.is_err();
        }
        for index in 0..self.ranks.len() {
            self.drive(world, index);
        }
    }

    fn drive(&mut self, world: &mut World, index: usize) -> bool {
        let now = world.now();
        let rank = &mut self.ranks[index];
        let did = if self.over_sdr {
            // SDR may have something to send without touching the engine.
            let seen = Some(world.activity());
            let is_new = std::mem::replace(&mut rank.seen, seen) != seen;
            if is_new {
                rank.group.drive(world.nic_mut(NicId(index)), now);
            }
            is_new
        } else {
            rank.group.drive(world.poll_nic(NicId(index)), now)
        };
        if did {
            // It may have posted.
            world.nic_mut(NicId(index));
        }
        while let Some((_, result)) = rank.group.poll_done() {
            match result {
                Ok(report) => {
                    self.done += 1;
                    self.outcome.add(&report);
                }
                Err(_) => self.has_failed = true,
            }
        }
        let at = rank.group.poll_timeout().unwrap_or(Time::NEVER).max(now);
        if at < rank.wakes_at {
            rank.wakes_at = at;
            world.wake_at(at, index as u64);
        }
        if self.done == self.ranks.len() && self.started != Time::NEVER {
            self.finish(world);
        }
        did
    }

    /// All ranks are done with an operation.
    fn finish(&mut self, world: &mut World) {
        let took = world.now().nanos_since(self.started);
        self.outcome.times_ns.push(took);
        self.started = Time::NEVER;
        if self.left > 0 {
            world.wake_at(world.now().plus_nanos(PAUSE_NS), NEXT);
        }
    }

    /// The outcome, without the warm-up.
    pub(super) fn outcome(self) -> Option<CollectivesOutcome> {
        if self.has_failed || self.left > 0 || self.started != Time::NEVER {
            return None;
        }
        let times_ns = self.outcome.times_ns[1..].to_vec();
        Some(CollectivesOutcome { times_ns, ..self.outcome })
    }
}

impl CollectivesOutcome {
    fn add(&mut self, report: &Report) {
        self.expected_bytes += report.expected_bytes;
        self.repaired_bytes += report.repaired_bytes;
        self.missing_bytes += report.missing_bytes;
    }
}

fn new_rank(
    world: &mut World,
    config: &CollectivesConfig,
    rank: u32,
    buffers: &[Arc<Buffer>; 2],
) -> Rank {
    let (group, request) = (config.group(), config.request());
    let schedule = request.compile(rank, &Hosts::one(config.ranks), group.slot_bytes as usize);
    let bytes = request.bytes(rank, config.ranks).expect("buffers that can be");
    let nic = world.nic_mut(NicId(rank as usize));
    let pd = nic.alloc_pd().expect("there is room for one");
    let mut piece = |buffer: &Arc<Buffer>, len| {
        let region = Region::owned(Arc::clone(buffer));
        let key = nic.register(pd, region, 0, Access::LOCAL_WRITE).expect("memory is registered");
        Piece { key, addr: 0, len }
    };
    let memory = Memory { input: piece(&buffers[0], bytes.0), output: piece(&buffers[1], bytes.1) };
    let mut psn = config.seed as u32 ^ rank << 16;
    let next_psn = || {
        psn = psn.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        psn >> 8
    };
    let group = Group::new(nic, pd, (rank, config.ranks), group, next_psn).expect("a valid group");
    let schedule = Arc::new(schedule.expect("operations that can be"));
    Rank { group, schedule, memory, wakes_at: Time::NEVER, seen: None }
}

impl App for Ranks {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        if token == NEXT {
            return self.next(world);
        }
        self.ranks[token as usize].wakes_at = Time::NEVER;
        self.ranks[token as usize].seen = None;
        self.drive(world, token as usize);
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        self.drive(world, nic.0)
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.has_failed || (self.left == 0 && self.started == Time::NEVER)
    }
}
