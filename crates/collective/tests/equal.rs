//! Every collective, by every algorithm, equals a simple reference.

mod router;

use bowline_collective::{Algorithm, DataType, Hosts, Operation, Rank, ReduceOp, Request};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router::values::{bytes, reduced, value};
use router::{Shape, World};

/// The input and the expected output of each rank, as element values; out of place.
struct Case {
    inputs: Vec<Vec<i64>>,
    outputs: Vec<Vec<i64>>,
}

/// The simple reference.
fn case(operation: &Operation, op: ReduceOp, ranks: u32) -> Case {
    let of = |rank: Rank, range: std::ops::Range<usize>| -> Vec<i64> {
        range.map(|i| value(op, ranks, rank, i)).collect()
    };
    let all = |f: &dyn Fn(Rank) -> Vec<i64>| (0..ranks).map(f).collect::<Vec<_>>();
    let n = ranks as usize;
    let sum = |range: std::ops::Range<usize>| -> Vec<i64> {
        range.map(|i| reduced(op, ranks, i)).collect()
    };
    let at = |root: Rank, rank: Rank, values: Vec<i64>| {
        if rank == root { values } else { Vec::new() }
    };
    let gathered = |count: usize| (0..ranks).flat_map(|r| of(r, 0..count)).collect::<Vec<_>>();
    let (inputs, outputs) = match *operation {
        Operation::Allreduce { count } => (all(&|r| of(r, 0..count)), all(&|_| sum(0..count))),
        Operation::ReduceScatter { count } => (
            all(&|r| of(r, 0..count * n)),
            all(&|r| sum(r as usize * count..(r as usize + 1) * count)),
        ),
        Operation::Allgather { count } => (all(&|r| of(r, 0..count)), all(&|_| gathered(count))),
        Operation::AllToAll { count } => (
            all(&|r| of(r, 0..count * n)),
            all(&|r| {
                let block = r as usize * count..(r as usize + 1) * count;
                (0..ranks).flat_map(|from| of(from, block.clone())).collect()
            }),
        ),
        Operation::Broadcast { count, root } => {
            (all(&|r| at(root, r, of(root, 0..count))), all(&|_| of(root, 0..count)))
        }
        Operation::Reduce { count, root } => {
            (all(&|r| of(r, 0..count)), all(&|r| at(root, r, sum(0..count))))
        }
        Operation::Gather { count, root } => {
            (all(&|r| of(r, 0..count)), all(&|r| at(root, r, gathered(count))))
        }
        Operation::Scatter { count, root } => (
            all(&|r| at(root, r, of(root, 0..count * n))),
            all(&|r| of(root, r as usize * count..(r as usize + 1) * count)),
        ),
        ref other => panic!("{other:?} has a test of its own"),
    };
    Case { inputs, outputs }
}

/// The initial content of a rank's single buffer in place, and which part of it becomes the result.
fn in_place(operation: &Operation, rank: Rank, case: &Case) -> (Vec<i64>, std::ops::Range<usize>) {
    let (input, output) = (&case.inputs[rank as usize], &case.outputs[rank as usize]);
    let block = |count: usize| rank as usize * count..(rank as usize + 1) * count;
    let (mut buffer, result) = (input.clone(), 0..output.len());
    let embedded = |count: usize, len: usize| {
        let mut buffer = vec![99; len];
        buffer[block(count)].copy_from_slice(input);
        buffer
    };
    match *operation {
        Operation::ReduceScatter { count } => return (buffer, block(count)),
        Operation::Scatter { count, root } if rank == root => return (buffer, block(count)),
        Operation::Allgather { count } => buffer = embedded(count, output.len()),
        Operation::Gather { count, root } if rank == root => {
            buffer = embedded(count, output.len());
        }
        _ => buffer.resize(input.len().max(output.len()), 99),
    }
    (buffer, result)
}

fn check(request: &Request, shape: Shape) {
    let case = case(&request.operation, request.op, shape.ranks);
    let mut world = World::new(shape);
    let mut ops = Vec::new();
    for rank in 0..shape.ranks {
        let values = match request.in_place {
            true => in_place(&request.operation, rank, &case).0,
            false => case.inputs[rank as usize].clone(),
        };
        let input = bytes(request.dtype, values.into_iter());
        ops.push(world.submit(rank, request, input));
        // Ranks do not start at the same time.
        world.run_for(rank as usize % 3);
    }
    world.finish();
    for rank in 0..shape.ranks {
        let op = ops[rank as usize];
        let context = || format!("rank {rank} of {shape:?}, {request:?}");
        assert_eq!(world.nodes[rank as usize].results.get(&op), Some(&Ok(())), "{}", context());
        let expected = bytes(request.dtype, case.outputs[rank as usize].iter().copied());
        let size = request.dtype.size();
        let mut output = world.output(rank, op);
        if request.in_place {
            let range = in_place(&request.operation, rank, &case).1;
            output = &output[range.start * size..range.end * size];
        } else {
            let input = bytes(request.dtype, case.inputs[rank as usize].iter().copied());
            assert_eq!(world.input(rank, op), input, "the input is as it was: {}", context());
        }
        assert_eq!(output, expected, "{}", context());
    }
}

const KINDS: usize = 8;

fn operation(kind: usize, count: usize, root: Rank) -> Operation {
    match kind {
        0 => Operation::Allreduce { count },
        1 => Operation::ReduceScatter { count },
        2 => Operation::Allgather { count },
        3 => Operation::AllToAll { count },
        4 => Operation::Broadcast { count, root },
        5 => Operation::Reduce { count, root },
        6 => Operation::Gather { count, root },
        _ => Operation::Scatter { count, root },
    }
}

/// All algorithms that an operation supports.
fn algorithms(operation: &Operation) -> Vec<Algorithm> {
    let has = |algorithm: &Algorithm| {
        Request { algorithm: *algorithm, ..Request::new(operation.clone()) }
            .algorithm_for(&Hosts::one(4))
            .is_ok()
    };
    Algorithm::ALL.into_iter().filter(has).collect()
}

#[test]
fn every_collective_by_every_algorithm_at_up_to_16_ranks() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let counts = [0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 100];
    for ranks in 1..=16 {
        for kind in 0..KINDS {
            for algorithm in algorithms(&operation(kind, 1, 0)) {
                for turn in 0..6 {
                    let count = counts[rng.random_range(0..counts.len())];
                    let operation = operation(kind, count, rng.random_range(0..ranks));
                    let request = Request {
                        dtype: DataType::ALL[rng.random_range(0..10)],
                        op: ReduceOp::ALL[rng.random_range(0..5)],
                        algorithm,
                        in_place: turn % 2 == 0,
                        ..Request::new(operation)
                    };
                    check(&request, Shape::draw(&mut rng, ranks));
                }
            }
        }
    }
}

#[test]
fn every_type_and_operator() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for kind in [0, 1, 5] {
                for algorithm in algorithms(&operation(kind, 1, 0)) {
                    for ranks in [2, 3, 5] {
                        let operation = operation(kind, 37, ranks - 1);
                        let in_place = rng.random();
                        let request =
                            Request { dtype, op, algorithm, in_place, ..Request::new(operation) };
                        check(&request, Shape::draw(&mut rng, ranks));
                    }
                }
            }
        }
    }
}

#[test]
fn counts_of_all_to_all_differ_by_pair() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for ranks in 1..=9u32 {
        for turn in 0..6 {
            let count = |from: u32, to: u32| ((from * 7 + to * 3 + turn) % 11) as usize;
            let mut world = World::new(Shape::draw(&mut rng, ranks));
            let in_place = turn % 2 == 1;
            let block =
                |from, to| (0..count(from, to)).map(move |i| i64::from(from * 9 + to) + i as i64);
            for rank in 0..ranks {
                let send = (0..ranks).map(|to| count(rank, to)).collect();
                let recv = (0..ranks).map(|from| count(from, rank)).collect();
                let operation = Operation::AllToAllV { send, recv };
                let request = Request { in_place, ..Request::new(operation) };
                let input = bytes(DataType::F32, (0..ranks).flat_map(|to| block(rank, to)));
                world.submit(rank, &request, input);
            }
            world.finish();
            for rank in 0..ranks {
                let op = *world.nodes[rank as usize].results.keys().next().unwrap();
                assert_eq!(world.nodes[rank as usize].results[&op], Ok(()));
                let expected = bytes(DataType::F32, (0..ranks).flat_map(|from| block(from, rank)));
                assert_eq!(world.output(rank, op)[..expected.len()], expected, "{:?}", world.shape);
            }
        }
    }
}

/// These add in rank order, so any floats give the same bits as the reference.
#[test]
fn exchange_and_direct_reduce_in_rank_order() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for ranks in [2, 3, 5, 8] {
        for algorithm in [Algorithm::Exchange, Algorithm::Direct] {
            for in_place in [false, true] {
                let inputs: Vec<Vec<f32>> = (0..ranks)
                    .map(|_| (0..101).map(|_| rng.random_range(-1e6f32..1e6)).collect())
                    .collect();
                let mut sum = inputs[0].clone();
                for input in &inputs[1..] {
                    sum.iter_mut().zip(input).for_each(|(sum, value)| *sum += value);
                }
                let expected: Vec<u8> = sum.iter().flat_map(|v| v.to_ne_bytes()).collect();
                let operation = Operation::Allreduce { count: 101 };
                let request = Request { algorithm, in_place, ..Request::new(operation) };
                let mut world = World::new(Shape::draw(&mut rng, ranks));
                let ops: Vec<_> = (0..ranks)
                    .map(|rank| {
                        let input = inputs[rank as usize].iter().flat_map(|v| v.to_ne_bytes());
                        world.submit(rank, &request, input.collect())
                    })
                    .collect();
                world.finish();
                for rank in 0..ranks {
                    let output = world.output(rank, ops[rank as usize]);
                    assert_eq!(output, expected, "rank {rank}: {algorithm}, {:?}", world.shape);
                }
            }
        }
    }
}

/// In the others the order depends on the block, but all ranks get the same bits.
#[test]
fn all_ranks_get_the_same_bits() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for ranks in [3, 6, 7, 12] {
        for algorithm in [Algorithm::Ring, Algorithm::Halving, Algorithm::Tree] {
            let operation = Operation::Allreduce { count: 211 };
            let request = Request { algorithm, ..Request::new(operation) };
            let inputs: Vec<Vec<u8>> = (0..ranks)
                .map(|_| {
                    (0..211).flat_map(|_| rng.random_range(-1e6f32..1e6).to_ne_bytes()).collect()
                })
                .collect();
            let mut results = Vec::new();
            for _ in 0..2 {
                let mut world = World::new(Shape::draw(&mut rng, ranks));
                let submit = |rank| world.submit(rank, &request, inputs[rank as usize].clone());
                let ops: Vec<_> = (0..ranks).map(submit).collect();
                world.finish();
                results.extend((0..ranks).map(|r| world.output(r, ops[r as usize]).to_vec()));
            }
            assert!(
                results.windows(2).all(|pair| pair[0] == pair[1]),
                "{algorithm}, {ranks} ranks"
            );
        }
    }
}

#[test]
fn operations_follow_each_other_in_order() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for turn in 0..40 {
        let ranks = rng.random_range(2..7);
        let mut world = World::new(Shape::draw(&mut rng, ranks));
        let draw = |rng: &mut ChaCha8Rng| {
            let kind = rng.random_range(0..KINDS);
            let operation = operation(kind, rng.random_range(0..60), rng.random_range(0..ranks));
            let op = ReduceOp::ALL[rng.random_range(0..5)];
            Request { op, ..Request::new(operation) }
        };
        let requests: Vec<_> = (0..8).map(|_| draw(&mut rng)).collect();
        let mut ops = vec![Vec::new(); ranks as usize];
        // Each rank submits at its own pace.
        while ops.iter().any(|ops| ops.len() < requests.len()) {
            let rank = rng.random_range(0..ranks);
            if let Some(request) = requests.get(ops[rank as usize].len()) {
                let case = case(&request.operation, request.op, ranks);
                let input = bytes(request.dtype, case.inputs[rank as usize].iter().copied());
                ops[rank as usize].push(world.submit(rank, request, input));
            }
            world.run_for(rng.random_range(0..30));
        }
        world.finish();
        for rank in 0..ranks {
            for (request, op) in requests.iter().zip(&ops[rank as usize]) {
                let case = case(&request.operation, request.op, ranks);
                let expected = bytes(request.dtype, case.outputs[rank as usize].iter().copied());
                assert_eq!(world.output(rank, *op), expected, "turn {turn}, {request:?}");
            }
        }
    }
}

#[test]
fn a_barrier_waits_for_all() {
    for ranks in 1..=9 {
        let shape = Shape { ranks, chunk_bytes: 64, slots: 2, inline_bytes: 64, seed: 7 };
        let mut world = World::new(shape);
        let request = Request::new(Operation::Barrier);
        for rank in 0..ranks {
            world.settle();
            let early = world.nodes.iter().any(|node| !node.results.is_empty());
            assert!(!early, "rank {rank} of {ranks} has not come yet");
            world.submit(rank, &request, Vec::new());
        }
        world.finish();
        assert!(world.nodes.iter().all(|node| node.results.values().all(Result::is_ok)));
        assert!(world.nodes.iter().all(|node| node.results.len() == 1));
    }
}

/// Both ranks send first, and more than the slots hold. They would deadlock if a send had to
/// complete before a receive starts.
#[test]
fn two_ranks_may_both_send_first() {
    let shape = Shape { ranks: 3, chunk_bytes: 64, slots: 2, inline_bytes: 0, seed: 8 };
    let mut world = World::new(shape);
    let count = 1000;
    let values = |rank: u32| (0..count as i64).map(move |i| i * 2 + i64::from(rank));
    let mut received = Vec::new();
    for (rank, other) in [(0, 2), (2, 0)] {
        let send = Request::new(Operation::Send { count, to: other });
        world.submit(rank, &send, bytes(DataType::F32, values(rank)));
        let recv = Request::new(Operation::Recv { count, from: other });
        received.push((rank, other, world.submit(rank, &recv, Vec::new())));
    }
    // The third rank has not counted them, and a collective of all ranks still matches.
    let all = Request::new(Operation::Allgather { count: 3 });
    let gathered: Vec<_> = (0..3)
        .map(|rank| world.submit(rank, &all, bytes(DataType::F32, values(rank).take(3))))
        .collect();
    world.finish();
    for (rank, other, op) in received {
        assert_eq!(world.output(rank, op), bytes(DataType::F32, values(other)));
    }
    let expected = bytes(DataType::F32, (0..3).flat_map(|rank| values(rank).take(3)));
    for (rank, op) in gathered.into_iter().enumerate() {
        assert_eq!(world.output(rank as u32, op), expected);
    }
}
