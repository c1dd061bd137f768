//! Collective operations of many ranks over real engines, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use bowline_collective::{
    Algorithm, Bounds, Cause, DataType, Deadline, Failure, Group, GroupConfig, Hosts, Memory,
    Operation, Piece, ReduceOp, Report, Request, replay_allreduce,
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
    express_slots: 4,
    casts: false,
    scheme: None,
    reorder_ns: 20_000,
    inline_bytes: 512,
    heartbeat_ns: 20_000_000,
    ack_timeout: 10,
    limit_ns: 60_000_000_000,
};

struct Rank {
    group: Group,
    results: Vec<Result<(), Failure>>,
    reports: Vec<Report>,
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
            // It may have posted.
            world.nic_mut(nic);
        }
        while let Some((_, result)) = rank.group.poll_done() {
            rank.reports.extend(result.clone().ok());
            rank.results.push(result.map(drop));
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
    let faults = Faults {
        loss: Loss::Iid(Prob::new(loss)),
        reorder: Prob::new(loss),
        reorder_ns: 5_000,
        ..Faults::default()
    };
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
        let (results, reports) = (Vec::new(), Vec::new());
        Rank { group, results, reports, wakes_at: None, buffer, key }
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
    start_with(world, app, algorithm, count, None);
}

fn start_with(
    world: &mut World,
    app: &mut Ranks,
    algorithm: Algorithm,
    count: usize,
    bounds: Option<Bounds>,
) {
    let ranks = app.ranks.len() as u32;
    let hosts = match algorithm {
        Algorithm::TwoLevel => Hosts::new((0..ranks).map(|rank| rank % 2)),
        _ => Hosts::one(ranks),
    };
    let operation = Operation::Allreduce { count };
    let request = Request { algorithm, in_place: true, ..Request::new(operation) };
    for (index, rank) in app.ranks.iter_mut().enumerate() {
        let schedule = request.compile(index as u32, &hosts, CONFIG.slot_bytes as usize).unwrap();
        let output = Piece { key: rank.key, addr: 0, len: count * 4 };
        let memory = Memory { input: Piece::EMPTY, output };
        let (now, nic) = (world.now(), world.nic_mut(NicId(index)));
        rank.group.submit_with(nic, now, Arc::new(schedule), memory, bounds).unwrap();
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
    use Algorithm::{Direct, Exchange, Halving, Ring, Tree, TwoLevel};
    let count = 30_001;
    let algorithms = [Exchange, Direct, Ring, Halving, Tree, TwoLevel];
    for (seed, algorithm) in algorithms.into_iter().enumerate() {
        let (mut world, mut app) = group(seed as u64, count, 6, 0.005);
        start(&mut world, &mut app, algorithm, count);
        world.run_until(&mut app, Time::from_millis(20_000));
        check_sums(&app, count, &format!("{algorithm}, seed {seed}"));
        let resent = |nic| world.nic(NicId(nic)).counters().retransmitted_packets;
        assert!((0..6).map(resent).sum::<u64>() > 0, "links did lose something");
    }
}

/// Numbers whose sum depends on the order of additions.
fn scatter(app: &Ranks, count: usize) -> Vec<Vec<u8>> {
    let value = |rank: usize, i: usize| ((i * 7919 + rank * 104_729) % 1_000_003) as f32 * 1.1;
    let input = |rank: usize| (0..count).flat_map(move |i| value(rank, i).to_ne_bytes()).collect();
    let inputs: Vec<Vec<u8>> = (0..app.ranks.len()).map(input).collect();
    for (rank, input) in app.ranks.iter().zip(&inputs) {
        rank.buffer.write_at(0, input);
    }
    inputs
}

fn outputs(app: &Ranks, count: usize, context: &str) -> Vec<Vec<u8>> {
    let each = app.ranks.iter().map(|rank| {
        assert_eq!(rank.results, [Ok(())], "{context}");
        rank.buffer.to_vec(0, count * 4)
    });
    each.collect()
}

fn bounds(deadline_us: u64, max_loss: f64) -> Bounds {
    Bounds::new(Deadline::After(Duration::from_micros(deadline_us)), max_loss).unwrap()
}

#[test]
fn an_allreduce_over_xp_that_may_lose_nothing_equals_rc_bit_for_bit() {
    let count = 50_001;
    for algorithm in [Algorithm::Exchange, Algorithm::Direct, Algorithm::TwoLevel] {
        let mut results = Vec::new();
        for (bounds, loss) in
            [(None, 0.0), (Some(Bounds::EXACT), 0.01), (Some(bounds(1, 0.0)), 0.05)]
        {
            let ranks = if algorithm == Algorithm::TwoLevel { 6 } else { 5 };
            let (mut world, mut app) = group(3, count, ranks, loss);
            scatter(&app, count);
            start_with(&mut world, &mut app, algorithm, count, bounds);
            world.run_until(&mut app, Time::from_millis(20_000));
            results.push(outputs(&app, count, algorithm.name()));
            let repaired: u64 = app.ranks.iter().map(|r| r.reports[0].repaired_bytes).sum();
            assert_eq!(repaired > 0, loss > 0.0, "{algorithm}, {loss}");
        }
        assert!(results[1..].iter().all(|result| *result == results[0]), "{algorithm}");
    }
}

#[test]
fn what_is_lost_is_within_the_promise_and_the_same_everywhere() {
    let count = 60_000;
    let mut lost = 0;
    for (seed, (loss, max_loss)) in
        [(0.001, 0.01), (0.01, 0.001), (0.01, 0.05), (0.1, 0.02), (0.05, 0.5)]
            .into_iter()
            .enumerate()
    {
        // Too early for any repair, before one may have arrived, and after.
        for deadline_us in [20, 60, 3_000] {
            let context = format!("loss {loss}, max_loss {max_loss}, deadline {deadline_us} us");
            let (mut world, mut app) = group(seed as u64, count, 6, loss);
            let inputs = scatter(&app, count);
            let bounds = bounds(deadline_us, max_loss);
            start_with(&mut world, &mut app, Algorithm::Direct, count, Some(bounds));
            world.run_until(&mut app, Time::from_millis(20_000));
            let outputs = outputs(&app, count, &context);
            let reports: Vec<_> = app.ranks.iter().map(|rank| rank.reports[0].clone()).collect();
            for report in &reports {
                // Half of what a rank receives are results, which are never lost.
                assert!(
                    report.missing_bytes <= bounds.allowed(report.expected_bytes / 2 + 8),
                    "{context}"
                );
                lost += report.missing_bytes;
            }
            let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
            let again = replay_allreduce(ReduceOp::Sum, DataType::F32, &inputs, &reports).unwrap();
            assert!(outputs.iter().all(|output| *output == again), "{context}");
        }
    }
    assert!(lost > 100_000, "{lost}");
}

/// The first half, in which bytes may be lost, takes half of the time. The second half is repaired.
#[test]
fn an_operation_ends_by_its_deadline_and_a_repair() {
    let count = 100_000;
    for seed in 0..5 {
        let (mut world, mut app) = group(seed, count, 4, 0.01);
        let bounds = bounds(400, 0.2);
        start_with(&mut world, &mut app, Algorithm::Direct, count, Some(bounds));
        world.run_until(&mut app, Time::from_millis(20_000));
        for rank in &app.ranks {
            let elapsed_us = rank.reports[0].elapsed_ns / 1_000;
            // A few times a round trip and the wait for it, if a control message is lost.
            assert!(elapsed_us < 400 + 1_500, "seed {seed}: {elapsed_us} us");
        }
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

/// A rank that writes to other memory than it says, or none, gains nothing but an error.
#[test]
fn a_message_that_is_not_in_the_shared_ring_is_noticed() {
    let count = 20_000;
    let (mut world, mut app) = group(5, count, 3, 0.0);
    let bytes = app.ranks[0].group.shared_ring_bytes();
    let nic = world.nic_mut(NicId(0));
    // Too late for its offers, which is as good as memory that nobody else has mapped.
    app.ranks[0].group.place_ring(nic, 1, Buffer::new(bytes)).unwrap();
    app.ranks[1].group.reach_ring(0, Buffer::new(bytes)).unwrap();
    start(&mut world, &mut app, Algorithm::Direct, count);
    world.run_until(&mut app, Time::from_millis(1_000));
    let failure = Failure { rank: 1, cause: Cause::Mismatch };
    for rank in &app.ranks {
        assert_eq!(rank.results, [Err(failure)]);
    }
    let short = app.ranks[0].group.place_ring(world.nic_mut(NicId(0)), 2, Buffer::new(bytes / 2));
    assert!(short.unwrap_err().to_string().contains("length of a ring"));
    assert!(app.ranks[0].group.reach_ring(0, Buffer::new(bytes)).is_err(), "its own");
}

/// Somebody who forges an announcement cannot make a rank take what an earlier message left in the
/// slot, although its length is right.
#[test]
fn an_announcement_without_its_message_is_noticed() {
    let count = 20_000;
    let (mut world, mut app) = group(6, count, 3, 0.0);
    let ring = Buffer::new(app.ranks[0].group.shared_ring_bytes());
    app.ranks[0].group.place_ring(world.nic_mut(NicId(0)), 1, Arc::clone(&ring)).unwrap();
    app.ranks[1].group.reach_ring(0, Arc::clone(&ring)).unwrap();
    start(&mut world, &mut app, Algorithm::Direct, count);
    world.run_until(&mut app, Time::from_millis(1_000));
    check_sums(&app, count, "both use the ring");
    // The same messages go round the ring once more, but elsewhere.
    app.ranks[1].group.reach_ring(0, Buffer::new(ring.len())).unwrap();
    start(&mut world, &mut app, Algorithm::Direct, count);
    world.run_until(&mut app, Time::from_millis(2_000));
    let failure = Failure { rank: 1, cause: Cause::Mismatch };
    for rank in &app.ranks {
        assert_eq!(rank.results, [Ok(()), Err(failure)]);
    }
}
