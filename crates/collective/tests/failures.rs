//! Ranks that die, leave, lag or lie: all other ranks end and know which rank it was.

mod router;

use bowline_collective::engine::Arrival;
use bowline_collective::{
    Algorithm, Bounds, Cause, DataType, Deadline, Engine, EngineConfig, Failure, Hosts, Operation,
    Request,
};
use bowline_nic::Time;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router::values::bytes;
use router::{HEARTBEAT_NS, LIMIT_NS, REORDER_NS, Shape, World};

fn shape(ranks: u32, seed: u64) -> Shape {
    Shape { ranks, chunk_bytes: 64, slots: 3, inline_bytes: 8, seed }
}

fn allreduce(algorithm: Algorithm, count: usize) -> Request {
    Request { algorithm, ..Request::new(Operation::Allreduce { count }) }
}

fn ones(count: usize) -> Vec<u8> {
    bytes(DataType::F32, (0..count).map(|_| 1))
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    use Algorithm::{Direct, Exchange, Halving, Ring, Tree, TwoLevel};
    let mut failed = 0;
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..9);
        let mut world = World::new(shape(ranks, seed));
        let mut algorithm = [Exchange, Direct, Ring, Halving, Tree][rng.random_range(0..5)];
        if ranks % 2 == 0 && ranks > 2 && rng.random() {
            algorithm = TwoLevel;
            world.hosts = Hosts::new((0..ranks).map(|rank| rank % 2));
        }
        let count = rng.random_range(0..400);
        let dead = rng.random_range(0..ranks);
        for rank in 0..ranks {
            for _ in 0..3 {
                world.submit(rank, &allreduce(algorithm, count), ones(count));
            }
        }
        world.run_for(rng.random_range(0..3000));
        world.kill(dead);
        world.finish();
        let limit = Time::ZERO.plus_nanos(10 * HEARTBEAT_NS);
        assert!(world.now < limit, "seed {seed}: found by heartbeats, not by the time limit");
        for (rank, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.results.len(), 3, "seed {seed}: rank {rank} has an end of each");
            let expected = Failure { rank: dead, cause: Cause::Unreachable };
            for result in node.results.values() {
                assert!([Ok(()), Err(expected)].contains(result), "seed {seed}: {result:?}");
                failed += usize::from(result.is_err());
            }
        }
    }
    assert!(failed > 300, "most runs end early: {failed}");
}

/// A multicast group does not show which rank fails to acknowledge; connections to single ranks do.
#[test]
fn a_rank_that_dies_in_a_multicast_is_named_by_all_others() {
    let mut failed = 0;
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..9);
        let mut world = World::new(shape(ranks, seed));
        let (count, dead) = (rng.random_range(0..400), rng.random_range(0..ranks));
        for _ in 0..3 {
            let root = rng.random_range(0..ranks);
            let operation = Operation::Broadcast { count, root };
            let algorithm = Algorithm::Multicast;
            let request = Request { algorithm, in_place: true, ..Request::new(operation) };
            for rank in 0..ranks {
                world.submit(rank, &request, ones(count));
            }
        }
        world.run_for(rng.random_range(0..2000));
        world.kill(dead);
        world.finish();
        let limit = Time::ZERO.plus_nanos(10 * HEARTBEAT_NS);
        assert!(world.now < limit, "seed {seed}: found by heartbeats, not by the time limit");
        for (rank, node) in world.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            assert_eq!(node.results.len(), 3, "seed {seed}: rank {rank} has an end of each");
            let expected = Failure { rank: dead, cause: Cause::Unreachable };
            for result in node.results.values() {
                assert!([Ok(()), Err(expected)].contains(result), "seed {seed}: {result:?}");
                failed += usize::from(result.is_err());
            }
        }
    }
    assert!(failed > 100, "many runs end early: {failed}");
}

#[test]
fn the_root_of_a_multicast_may_leave_when_it_is_done_and_so_may_others() {
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..7);
        let mut world = World::new(shape(ranks, seed));
        let operation = Operation::Broadcast { count: 300, root: 0 };
        let algorithm = Algorithm::Multicast;
        let request = Request { algorithm, in_place: true, ..Request::new(operation) };
        let ops: Vec<_> = (0..ranks).map(|r| world.submit(r, &request, ones(300))).collect();
        let first = rng.random_range(0..ranks) as usize;
        while !world.nodes[first].results.contains_key(&ops[first]) {
            world.run_for(5);
        }
        let now = world.now;
        world.nodes[first].engine.leave(now);
        world.finish();
        for (rank, op) in ops.iter().enumerate() {
            let result = world.nodes[rank].results[op];
            assert_eq!(result, Ok(()), "seed {seed}: all of it was sent, {first} left {rank}");
        }
        assert!(world.nodes[first].engine.is_quiet());
    }
}

/// A rank that only waits has nothing in flight that could fail.
#[test]
fn a_rank_that_only_waits_finds_out_too() {
    let mut world = World::new(shape(2, 1));
    let request = Request::new(Operation::Recv { count: 10, from: 1 });
    let op = world.submit(0, &request, Vec::new());
    world.kill(1);
    world.finish();
    let failure = Failure { rank: 1, cause: Cause::Unreachable };
    assert_eq!(world.nodes[0].results[&op], Err(failure));
}

#[test]
fn a_rank_that_leaves_is_named_if_it_was_needed() {
    for seed in 0..100 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..7);
        let mut world = World::new(shape(ranks, seed));
        let request = allreduce(Algorithm::Auto, 200);
        let first: Vec<_> = (0..ranks).map(|r| world.submit(r, &request, ones(200))).collect();
        // Rank 0 leaves as soon as it is done; the others go on.
        while !world.nodes[0].results.contains_key(&first[0]) {
            world.run_for(5);
        }
        let now = world.now;
        world.nodes[0].engine.leave(now);
        world.finish();
        let request = Request::new(Operation::Barrier);
        let second: Vec<_> = (1..ranks).map(|r| world.submit(r, &request, Vec::new())).collect();
        world.finish();
        for rank in 1..ranks as usize {
            let results = &world.nodes[rank].results;
            assert_eq!(results[&first[rank]], Ok(()), "seed {seed}: all of it was sent");
            let left = Failure { rank: 0, cause: Cause::Left };
            assert_eq!(results[&second[rank - 1]], Err(left), "seed {seed}");
        }
        assert!(world.nodes[0].engine.is_quiet());
    }
}

#[test]
fn a_rank_that_never_comes_is_late() {
    let mut world = World::new(shape(3, 1));
    let request = allreduce(Algorithm::Direct, 100);
    let ops = [0, 2].map(|rank| (rank, world.submit(rank, &request, ones(100))));
    world.finish();
    assert!(world.now >= Time::ZERO.plus_nanos(LIMIT_NS));
    for (rank, op) in ops {
        let failure = Failure { rank: 1, cause: Cause::Late };
        assert_eq!(world.nodes[rank as usize].results[&op], Err(failure));
    }
    assert!(world.nodes[1].engine.failure().is_some(), "it is told, too");
}

#[test]
fn ranks_in_different_operations_find_out() {
    let differ = [
        (allreduce(Algorithm::Direct, 100), allreduce(Algorithm::Direct, 101)),
        (allreduce(Algorithm::Direct, 100), allreduce(Algorithm::Ring, 100)),
        (allreduce(Algorithm::Direct, 100), Request::new(Operation::Barrier)),
        (
            allreduce(Algorithm::Direct, 100),
            Request { dtype: DataType::I32, ..allreduce(Algorithm::Direct, 100) },
        ),
    ];
    for (one, other) in differ {
        let mut world = World::new(shape(2, 3));
        for (rank, request) in [(0, &one), (1, &other)] {
            let bytes = request.bytes(rank, 2).unwrap().0;
            world.submit(rank, request, vec![0; bytes]);
        }
        world.finish();
        for node in &world.nodes {
            let failure = node.engine.failure().expect("both fail");
            assert_eq!(failure.cause, Cause::Mismatch, "{one:?} and {other:?}");
        }
    }
}

fn whole(imm: u32, len: u32) -> Arrival {
    Arrival { imm: Some(imm), len: Some(len), missing: Vec::new() }
}

/// Whatever a peer sends, the engine ends in an orderly way and holds no more than its slots.
#[test]
fn garbage_is_an_error_and_no_more() {
    for seed in 0..2000 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut engine = Engine::new(EngineConfig {
            rank: 0,
            ranks: 3,
            slots: 4,
            express_slots: 4,
            bulk_bytes: 64,
            reorder_ns: 1_000,
            max_posted: 5,
            inline_bytes: 0,
            heartbeat_ns: HEARTBEAT_NS,
            limit_ns: LIMIT_NS,
        });
        let request = allreduce(Algorithm::Direct, 50);
        let schedule = std::sync::Arc::new(request.compile(0, &Hosts::one(3), 64).unwrap());
        let bounds = (seed % 2 == 1).then_some(Bounds::EXACT);
        engine.submit(Time::ZERO, schedule, bounds);
        for _ in 0..40 {
            let from = rng.random_range(1..3);
            // Values near zero in both halves are more often meaningful.
            let small = rng.random::<u32>() & 0x0001_0007;
            let uppers =
                [0, 0xfc00, 0xfd00, 0xfe00, 0xfe01, 0xfe02, 0xfe03, 0xfe04, 0xff00, 0xffff];
            let upper = uppers[rng.random_range(0..uppers.len())] << 16;
            let imm = if rng.random() { rng.random() } else { small ^ upper };
            match rng.random_range(0..4) {
                0 => {
                    let missing = rng.random_range(0..100)..rng.random_range(0..100);
                    engine.nack(Time::ZERO, from, imm, &[missing]);
                }
                1 => {
                    let slot = rng.random_range(0..9);
                    let arrival = if rng.random() { Arrival::NOTHING } else { whole(imm, 64) };
                    engine.express_ended(Time::ZERO, from, slot, arrival);
                }
                _ => engine.message(Time::ZERO, from, imm, rng.random_range(0..100)),
            }
            while engine.poll_post().is_some() {}
        }
        engine.timeout(Time::ZERO.plus_nanos(LIMIT_NS));
        let (_, result) = engine.poll_done().expect("it ends");
        assert!(result.is_err(), "seed {seed}");
        assert_eq!(engine.poll_timeout(), None);
    }
}

/// Two ranks, of which the first is two operations ahead: the third waits for the other's report.
fn one_rank_ahead() -> (World, Request, Bounds) {
    let shape = Shape { ranks: 2, chunk_bytes: 64 << 10, slots: 3, inline_bytes: 0, seed: 1 };
    let mut world = World::new(shape);
    let soon = Deadline::After(std::time::Duration::from_nanos(1));
    let bounds = Bounds::new(soon, 1.0).unwrap();
    let request = Request {
        algorithm: Algorithm::Direct,
        ..Request::new(Operation::ReduceScatter { count: 16_384 })
    };
    let request = request.with_bounds(&bounds, &Hosts::one(2)).unwrap();
    for _ in 0..4 {
        world.submit_with(0, &request, ones(2 * 16_384), Some(bounds));
    }
    for _ in 0..50 {
        world.run_for(1000);
        world.pass(10 * REORDER_NS);
    }
    assert_eq!(world.nodes[0].results.len(), 2, "the third waits");
    (world, request, bounds)
}

#[test]
fn an_operation_that_waits_for_reports_goes_on_when_they_come() {
    let (mut world, request, bounds) = one_rank_ahead();
    for _ in 0..4 {
        world.submit_with(1, &request, ones(2 * 16_384), Some(bounds));
    }
    world.finish();
    for node in &world.nodes {
        assert!(node.results.values().all(Result::is_ok) && node.results.len() == 4);
    }
}

#[test]
fn an_operation_that_waits_for_reports_fails_with_their_rank() {
    for cause in [Cause::Left, Cause::Unreachable, Cause::Late] {
        let (mut world, ..) = one_rank_ahead();
        match cause {
            Cause::Left => world.nodes[1].engine.leave(Time::ZERO),
            Cause::Unreachable => world.kill(1),
            _ => {}
        }
        world.finish();
        let failed = world.nodes[0].results.values().filter_map(|result| result.err());
        assert_eq!(failed.collect::<Vec<_>>(), [Failure { rank: 1, cause }; 2]);
    }
}
