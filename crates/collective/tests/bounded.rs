//! Operations with bounds over lossy connections: exact where that is guaranteed, never more lost
//! than allowed, and the same result on all ranks.

mod router;

use std::time::Duration;

use bowline_collective::timeout::Rule;
use bowline_collective::{
    Algorithm, Bounds, Cause, DataType, Deadline, Failure, Hosts, OpId, Operation, ReduceOp,
    Report, Request, replay_allreduce,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router::{EXPRESS_SLOTS, HEARTBEAT_NS, Shape, World};

fn shape(rng: &mut ChaCha8Rng, ranks: u32) -> Shape {
    Shape {
        ranks,
        chunk_bytes: [16, 64, 256][rng.random_range(0..3)],
        slots: rng.random_range(1..4),
        inline_bytes: 8,
        seed: rng.random(),
    }
}

fn floats(rng: &mut ChaCha8Rng, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| rng.random_range(-1e6f32..1e6).to_ne_bytes()).collect()
}

fn bounds(deadline_ns: u64, max_loss: f64) -> Bounds {
    let deadline = Deadline::After(Duration::from_nanos(deadline_ns));
    Bounds::new(deadline, max_loss).unwrap()
}

fn operation(rng: &mut ChaCha8Rng, ranks: u32) -> Operation {
    let (count, root) = (rng.random_range(0..300), rng.random_range(0..ranks));
    match rng.random_range(0..8) {
        0 => Operation::ReduceScatter { count },
        1 => Operation::Allgather { count },
        2 => Operation::AllToAll { count },
        3 => Operation::Broadcast { count, root },
        4 => Operation::Reduce { count, root },
        5 => Operation::Gather { count, root },
        6 => Operation::Scatter { count, root },
        _ => Operation::Allreduce { count },
    }
}

/// Runs requests one after another on all ranks and returns all outputs.
fn run(
    shape: Shape,
    loss: f64,
    requests: &[Request],
    inputs: &[Vec<Vec<u8>>],
    bounds: Option<Bounds>,
) -> Vec<Vec<Vec<u8>>> {
    let mut world = World::new(shape);
    world.loss = loss;
    if shape.seed.is_multiple_of(2) {
        world.bring_some_near();
    }
    let mut ops = vec![Vec::new(); shape.ranks as usize];
    for (request, inputs) in requests.iter().zip(inputs) {
        for rank in 0..shape.ranks {
            let input = inputs[rank as usize].clone();
            ops[rank as usize].push(world.submit_with(rank, request, input, bounds));
            world.run_for(rank as usize % 5);
        }
    }
    world.finish();
    let output = |rank: u32| {
        let node = &world.nodes[rank as usize];
        assert!(node.results.values().all(Result::is_ok), "{:?}", node.results);
        ops[rank as usize].iter().map(|op| world.output(rank, *op).to_vec()).collect()
    };
    (0..shape.ranks).map(output).collect()
}

#[test]
fn without_loss_allowed_results_equal_those_over_rc() {
    for seed in 0..300 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(1..7);
        let shape = shape(&mut rng, ranks);
        let request = |rng: &mut ChaCha8Rng| {
            let operation = operation(rng, ranks);
            let request = Request { in_place: rng.random(), ..Request::new(operation) };
            request.with_bounds(&Bounds::EXACT, &Hosts::one(ranks)).unwrap()
        };
        let requests: Vec<_> = (0..3).map(|_| request(&mut rng)).collect();
        let input = |rng: &mut ChaCha8Rng, request: &Request, rank| {
            let (input, output) = request.bytes(rank, ranks).unwrap();
            floats(rng, if request.in_place { output } else { input } / 4)
        };
        let inputs: Vec<Vec<_>> = requests
            .iter()
            .map(|request| (0..ranks).map(|rank| input(&mut rng, request, rank)).collect())
            .collect();
        let plain = run(shape, 0.0, &requests, &inputs, None);
        let loss = [0.0, 0.01, 0.3, 0.9][rng.random_range(0..4)];
        // A deadline makes no difference if nothing may be lost.
        let deadline = if rng.random() { bounds(1, 0.0) } else { Bounds::EXACT };
        let bounded = run(shape, loss, &requests, &inputs, Some(deadline));
        assert!(plain == bounded, "seed {seed}: {requests:?}");
    }
}

/// The outcome of an allreduce on several ranks.
struct Outcome {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    reports: Vec<Report>,
}

fn allreduce(
    world: &mut World,
    rng: &mut ChaCha8Rng,
    request: &Request,
    count: usize,
    bounds: Bounds,
    pause_ns: u64,
) -> Outcome {
    let ranks = world.shape.ranks;
    let inputs: Vec<_> = (0..ranks).map(|_| floats(rng, count)).collect();
    let mut ops: Vec<OpId> = Vec::new();
    for rank in 0..ranks {
        ops.push(world.submit_with(rank, request, inputs[rank as usize].clone(), Some(bounds)));
        world.run_for(rng.random_range(0..50));
        world.pass(rng.random_range(0..=pause_ns));
    }
    world.finish();
    let each = || (0..ranks).zip(&ops);
    Outcome {
        inputs,
        outputs: each().map(|(rank, op)| world.output(rank, *op).to_vec()).collect(),
        reports: each()
            .map(|(rank, op)| {
                let node = &world.nodes[rank as usize];
                assert_eq!(node.results[op], Ok(()));
                node.reports[op].clone()
            })
            .collect(),
    }
}

#[test]
fn the_promise_is_kept_replicas_are_equal_and_reports_tell_all() {
    let (mut lossy, mut bulk) = (0, 0);
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..7);
        let mut world = World::new(shape(&mut rng, ranks));
        world.loss = [0.0, 0.01, 0.2, 0.8][rng.random_range(0..4)];
        if seed % 4 == 0 {
            world.bring_some_near();
        }
        let op = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max][rng.random_range(0..3)];
        let count = rng.random_range(0..600);
        let max_loss = [0.001, 0.02, 0.3, 1.0][rng.random_range(0..4)];
        let bounds = bounds(rng.random_range(1..20_000), max_loss);
        let request = Request { op, ..Request::new(Operation::Allreduce { count }) };
        let request = request.with_bounds(&bounds, &Hosts::one(ranks)).unwrap();
        for turn in 0..3 {
            let pause_ns = [0, 10_000][rng.random_range(0..2)];
            let got = allreduce(&mut world, &mut rng, &request, count, bounds, pause_ns);
            for report in &got.reports {
                // With direct, half of the incoming bytes are results, which are never lost.
                let may_be_lost = report.expected_bytes;
                assert!(
                    report.missing_bytes <= bounds.allowed(may_be_lost),
                    "seed {seed}: {report:?}"
                );
                let sum: usize = report.missing.iter().map(|missing| missing.range.len()).sum();
                assert_eq!(sum as u64, report.missing_bytes, "seed {seed}");
                lossy += usize::from(report.missing_bytes > 0);
            }
            let inputs: Vec<_> = got.inputs.iter().map(|input| &input[..]).collect();
            let again = replay_allreduce(op, DataType::F32, &inputs, &got.reports).unwrap();
            for (rank, output) in got.outputs.iter().enumerate() {
                assert!(*output == again, "seed {seed}, turn {turn}, rank {rank}");
            }
        }
        bulk += world.bulk;
    }
    assert!(lossy > 300, "something is lost: {lossy}");
    assert!(bulk > 300, "some of it is repaired over XP: {bulk}");
}

#[test]
fn the_promise_is_about_what_may_be_lost() {
    // Everything is lost, with two ranks and direct: each receives one block to reduce, and one
    // result.
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (max_loss, allowed) in [(0.5, 512), (0.25, 256), (1.0, 1024)] {
        let shape = Shape { ranks: 2, chunk_bytes: 256, slots: 2, inline_bytes: 0, seed: 1 };
        let mut world = World::new(shape);
        world.loss = 1.0;
        let bounds = bounds(100, max_loss);
        let request = Request {
            algorithm: Algorithm::Direct,
            ..Request::new(Operation::Allreduce { count: 512 })
        };
        let got = allreduce(&mut world, &mut rng, &request, 512, bounds, 0);
        for report in &got.reports {
            assert_eq!(report.expected_bytes, 2048);
            assert_eq!(report.missing_bytes, allowed, "{max_loss}: as much as is allowed, no more");
            assert_eq!(report.repaired_bytes + report.missing_bytes, 2048);
        }
    }
}

#[test]
fn ranks_may_lose_different_parts_if_they_are_told_that_they_may() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut differ = 0;
    for _ in 0..20 {
        let mut world = World::new(shape(&mut rng, 3));
        world.loss = 0.3;
        let bounds = Bounds { equal_replicas: false, ..bounds(10, 1.0) };
        let operation = Operation::Allreduce { count: 300 };
        let request = Request { algorithm: Algorithm::Exchange, ..Request::new(operation) };
        let got = allreduce(&mut world, &mut rng, &request, 300, bounds, 0);
        differ += usize::from(got.outputs.windows(2).any(|pair| pair[0] != pair[1]));
    }
    assert!(differ > 10, "{differ}");
}

/// When a rank is late, the others continue without it.
#[test]
fn a_late_rank_does_not_hold_up_the_others_if_its_loss_is_affordable() {
    for (seed, count) in [(1, 40), (2, 400), (3, 3000)] {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut world =
            World::new(Shape { ranks: 4, chunk_bytes: 64, slots: 2, inline_bytes: 0, seed });
        let bounds = bounds(5_000, 1.0);
        let request = Request::new(Operation::ReduceScatter { count });
        let inputs: Vec<_> = (0..4).map(|_| floats(&mut rng, 4 * count)).collect();
        for turn in 0..3 {
            let submit = |world: &mut World, rank: u32| {
                world.submit_with(rank, &request, inputs[rank as usize].clone(), Some(bounds))
            };
            let early: Vec<_> = (0..3).map(|rank| submit(&mut world, rank)).collect();
            // The others depend on the late rank only for the messages in its slots: they wait for
            // it to settle those, and for nothing else.
            world.run_for(3000);
            world.pass(6_000);
            world.run_for(3000);
            let late = submit(&mut world, 3);
            world.finish();
            for (rank, op) in early.iter().enumerate() {
                let report = &world.nodes[rank].reports[op];
                let missing = report.missing.iter().filter(|missing| missing.rank == 3);
                let bytes: usize = missing.map(|missing| missing.range.len()).sum();
                assert_eq!(bytes, count * 4, "turn {turn}: all of the late rank's");
                // What does not fit into slots waits behind what the late rank should have sent.
                let fits = count * 4 <= 64 * usize::from(EXPRESS_SLOTS);
                assert!(!fits || report.missing_bytes == bytes as u64, "turn {turn}: {report:?}");
            }
            let report = &world.nodes[3].reports[&late];
            let fits = count * 4 <= 64 * usize::from(EXPRESS_SLOTS);
            assert!(!fits || report.missing_bytes == 0, "turn {turn}: its own result is whole");
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    let mut failed = 0;
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let ranks = rng.random_range(2..7);
        let mut world = World::new(shape(&mut rng, ranks));
        world.loss = [0.0, 0.2][rng.random_range(0..2)];
        let bounds = bounds(rng.random_range(1..20_000), [0.0, 0.1][rng.random_range(0..2)]);
        let count = rng.random_range(0..400);
        let request = Request::new(Operation::Allreduce { count });
        let request = request.with_bounds(&bounds, &Hosts::one(ranks)).unwrap();
        let dead = rng.random_range(0..ranks);
        for rank in 0..ranks {
            for _ in 0..3 {
                world.submit_with(rank, &request, floats(&mut rng, count), Some(bounds));
            }
        }
        world.run_for(rng.random_range(0..2000));
        world.kill(dead);
        world.finish();
        let limit = bowline_nic::Time::ZERO.plus_nanos(10 * HEARTBEAT_NS);
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
    assert!(failed > 100, "{failed}");
}

#[test]
fn ranks_learn_how_long_operations_take() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut world =
        World::new(Shape { ranks: 3, chunk_bytes: 64, slots: 2, inline_bytes: 0, seed: 4 });
    for rule in [Rule::Margin, Rule::Paper] {
        let bounds = Bounds::new(Deadline::Adaptive(rule), 0.1).unwrap();
        // Use a separate size for each rule, so that each learns its own times.
        let count = if rule == Rule::Margin { 300 } else { 200 };
        let operation = Operation::Allreduce { count };
        let request = Request { algorithm: Algorithm::Direct, ..Request::new(operation) };
        for turn in 0..5 {
            let got = allreduce(&mut world, &mut rng, &request, count, bounds, 4_000_000);
            for report in got.reports {
                assert_eq!(report.deadline_ns.is_some(), turn > 0, "the first is measured");
            }
        }
    }
}
