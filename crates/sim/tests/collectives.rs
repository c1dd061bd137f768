//! Collective operations of many ranks over real engines, on virtual time.

use std::sync::Arc;

use bowline_collective::{
    Algorithm, Cause, Failure, Group, GroupConfig, Memory, Operation, Piece, Request,
};
use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_nic::{Access, Buffer, MrKey, NicConfig, Region, Time, TxCaps};
use bowline_sim::net::{Topology, star};
use bowline_sim::{App, HostConfig, HostId, NicId, RxId, TxId, World};

const CABLE: LinkConfig =
    LinkConfig { rate_bps: Some(100_000_000_000), delay_ns: 500, queue_bytes: 4 << 20, ecn: None };

/// Messages of 16 KiB, and ACK timeouts of 4 ms.
const CONFIG: GroupConfig = GroupConfig {
    slot_bytes: 16 << 10,
    slots: 4,
    inline_bytes: 512,
    heartbeat_ns: 20_000_000,
    ack_timeout: 10,
    limit_ns: 60_000_000_000,
};

struct Rank {
    group: Group,
    results: Vec<Result<(), Failure>>,
    wakes_at: Option<Time>,
    buffer: Arc<Buffer>,
    key: MrKey,
}

struct Ranks {
    ranks: Vec<Rank>,
    /// Its cable is out.
    dead: Option<usize>,
    operations: usize,
}

impl App for Ranks {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        self.ranks[token as usize].wakes_at = None;
        self.on_activity(world, NicId(token as usize));
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let (now, rank) = (world.now(), &mut self.ranks[nic.0]);
        let did = rank.group.drive(world.poll_nic(nic), now);
        if did {
            // It has posted, perhaps.
            world.nic_mut(nic);
        }
        while let Some((_, result)) = rank.group.poll_done() {
            rank.results.push(result);
        }
        if let Some(at) = rank.group.poll_timeout()
            && rank.wakes_at.is_none_or(|before| at < before)
        {
            rank.wakes_at = Some(at);
            world.wake_at(at.max(now), nic.0 as u64);
        }
        did
    }

    fn is_finished(&self, _world: &World) -> bool {
        let over = |(index, rank): (usize, &Rank)| {
            Some(index) == self.dead || rank.results.len() == self.operations
        };
        self.ranks.iter().enumerate().all(over)
    }
}

/// So many ranks around a switch, connected, each with a tensor of `count` `f32`.
fn group(seed: u64, count: usize, ranks: u32, loss: f64) -> (World, Ranks) {
    let addrs = Topology::ipv4(ranks as usize);
    let host = |(i, addr): (usize, &_)| HostConfig {
        nics: vec![NicConfig::new(*addr, [i as u8 + 1; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 0,
    };
    let hosts = addrs.iter().enumerate().map(host).collect();
    let mut world = World::new(seed, star(seed, &addrs, CABLE), hosts);
    let faults = Faults { loss: Loss::Iid(Prob::new(loss)), ..Faults::default() };
    for cable in world.network().cables() {
        world.network_mut().link_mut(cable).set_faults(faults);
    }
    let make = |index: u32| {
        let nic = world.nic_mut(NicId(index as usize));
        let pd = nic.alloc_pd().unwrap();
        let mut psn = index << 8;
        let place = (index, ranks);
        let next_psn = || {
            psn += 1;
            psn
        };
        let group = Group::new(nic, pd, place, CONFIG, next_psn).unwrap();
        let buffer = Buffer::new(count * 4);
        let value = |i: usize| (i % 100) as f32 + index as f32;
        let bytes: Vec<u8> = (0..count).flat_map(|i| value(i).to_ne_bytes()).collect();
        buffer.write_at(0, &bytes);
        let region = Region::owned(Arc::clone(&buffer));
        let key = nic.register(pd, region, 0, Access::LOCAL_WRITE).unwrap();
        Rank { group, results: Vec::new(), wakes_at: None, buffer, key }
    };
    let mut all: Vec<_> = (0..ranks).map(make).collect();
    for one in 0..ranks {
        for other in (0..ranks).filter(|other| *other != one) {
            let offer = all[other as usize].group.offer(one).unwrap();
            let (now, nic) = (world.now(), world.nic_mut(NicId(one as usize)));
            let addr = addrs[other as usize];
            all[one as usize].group.connect(nic, now, other, addr, &offer).unwrap();
        }
    }
    (world, Ranks { ranks: all, dead: None, operations: 0 })
}

/// Starts an allreduce at all ranks.
fn start(world: &mut World, app: &mut Ranks, algorithm: Algorithm, count: usize) {
    let ranks = app.ranks.len() as u32;
    let operation = Operation::Allreduce { count };
    let request = Request { algorithm, in_place: true, ..Request::new(operation) };
    for (index, rank) in app.ranks.iter_mut().enumerate() {
        let schedule = request.compile(index as u32, ranks, CONFIG.slot_bytes as usize).unwrap();
        let output = Piece { key: rank.key, addr: 0, len: count * 4 };
        let memory = Memory { input: Piece::EMPTY, output };
        let (now, nic) = (world.now(), world.nic_mut(NicId(index)));
        rank.group.submit(nic, now, Arc::new(schedule), memory).unwrap();
    }
    app.operations += 1;
    for index in 0..app.ranks.len() {
        app.on_activity(world, NicId(index));
    }
}

fn check_sums(app: &Ranks, count: usize, context: &str) {
    let ranks = app.ranks.len();
    let sum = |i: usize| ((i % 100) * ranks + ranks * (ranks - 1) / 2) as f32;
    let expected: Vec<u8> = (0..count).flat_map(|i| sum(i).to_ne_bytes()).collect();
    for (index, rank) in app.ranks.iter().enumerate() {
        assert_eq!(rank.results, [Ok(())], "rank {index}: {context}");
        assert!(rank.buffer.to_vec(0, count * 4) == expected, "rank {index}: {context}");
    }
}

#[test]
fn every_allreduce_is_exact_over_lossy_links() {
    use Algorithm::{Direct, Exchange, Halving, Ring, Tree};
    let count = 30_001;
    for (seed, algorithm) in [Exchange, Direct, Ring, Halving, Tree].into_iter().enumerate() {
        let (mut world, mut app) = group(seed as u64, count, 6, 0.005);
        start(&mut world, &mut app, algorithm, count);
        world.run_until(&mut app, Time::from_millis(20_000));
        check_sums(&app, count, &format!("{algorithm}, seed {seed}"));
        let resent = |nic| world.nic(NicId(nic)).counters().retransmitted_packets;
        assert!((0..6).map(resent).sum::<u64>() > 0, "links did lose something");
    }
}

#[test]
fn many_ranks_reduce_what_few_bytes_suffice_for() {
    let count = 3_000;
    for algorithm in [Algorithm::Auto, Algorithm::Ring, Algorithm::Halving, Algorithm::Tree] {
        let (mut world, mut app) = group(7, count, 40, 0.0);
        start(&mut world, &mut app, algorithm, count);
        world.run_until(&mut app, Time::from_millis(1_000));
        check_sums(&app, count, algorithm.name());
    }
}

/// Half of a heartbeat, eight ACK timeouts and a little, however large the group.
#[test]
fn a_dead_host_is_named_by_all_within_the_bound() {
    let bound = Time::from_millis(20 + 8 * 5 + 10);
    for (seed, dead) in [(1, 0), (2, 3), (3, 7)] {
        let count = 200_000;
        let (mut world, mut app) = group(seed, count, 8, 0.0);
        app.dead = Some(dead);
        start(&mut world, &mut app, Algorithm::Ring, count);
        let other = world.addr_of(HostId((dead + 1) % 8));
        let cable = world.link_from(HostId(dead), other).unwrap();
        let gone = Faults { loss: Loss::Iid(Prob::new(1.0)), ..Faults::default() };
        world.network_mut().link_mut(cable).set_faults(gone);
        world.run_until(&mut app, bound);
        let failure = Failure { rank: dead as u32, cause: Cause::Unreachable };
        for (index, rank) in app.ranks.iter().enumerate().filter(|(index, _)| *index != dead) {
            assert_eq!(rank.results, [Err(failure)], "rank {index}, dead {dead}");
        }
    }
}
