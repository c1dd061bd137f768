//! Operations whose tensors are sent encoded: correct without loss, and with loss the damage is
//! spread.

mod router;

use std::time::Duration;

use bowline_codes::hadamard::distortion;
use bowline_collective::timeout::Rule;
use bowline_collective::{
    Algorithm, Bounds, DataType, Deadline, Encoding, Hosts, Missing, OpId, Operation, Recovery,
    ReduceOp, Report, Request, replay_allreduce,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router::{Shape, World};

const RANKS: u32 = 3;

/// The outcome of an operation on all ranks.
struct Outcome {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    reports: Vec<Report>,
}

fn numbers(rng: &mut ChaCha8Rng, count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| rng.random_range(0.5f32..1.5).to_ne_bytes()).collect()
}

/// Runs a request. If there are losses, its deadline passes while much of it is in flight.
fn run(request: &Request, loss: f64, seed: u64) -> Outcome {
    let shape = Shape { ranks: RANKS, chunk_bytes: 8192, slots: 2, inline_bytes: 0, seed };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::new(shape);
    world.loss = loss;
    let bounds = Bounds::new(Deadline::After(Duration::from_nanos(1)), 1.0).unwrap();
    let bounds = if loss == 0.0 { Bounds::EXACT } else { bounds };
    let request = request.with_bounds(&bounds, &Hosts::one(RANKS)).unwrap();
    let (input, output) = request.bytes(0, RANKS).unwrap();
    let count = if request.in_place { output } else { input } / 4;
    let inputs: Vec<_> = (0..RANKS).map(|_| numbers(&mut rng, count)).collect();
    let submit =
        |rank: u32| world.submit_with(rank, &request, inputs[rank as usize].clone(), Some(bounds));
    let ops: Vec<OpId> = (0..RANKS).map(submit).collect();
    world.run_for(if loss == 0.0 { 0 } else { 4000 });
    world.pass(10);
    world.finish();
    let of = |rank: u32| {
        let (node, op) = (&world.nodes[rank as usize], ops[rank as usize]);
        assert_eq!(node.results[&op], Ok(()));
        (world.output(rank, op).to_vec(), node.reports[&op].clone())
    };
    let (outputs, reports) = (0..RANKS).map(of).unzip();
    Outcome { inputs, outputs, reports }
}

fn request(operation: Operation, recovery: Recovery) -> Request {
    Request { algorithm: Algorithm::Direct, recovery, ..Request::new(operation) }
}

#[test]
fn without_loss_results_are_those_of_plain_tensors() {
    // Whole groups, and remainders of all kinds.
    for (seed, count) in [16_384, 20_000, 33_333, 65_536].into_iter().enumerate() {
        for (operation, in_place) in [
            (Operation::Allreduce { count }, false),
            (Operation::Allreduce { count }, true),
            (Operation::ReduceScatter { count }, false),
        ] {
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                let of = |recovery| {
                    let request = request(operation.clone(), recovery);
                    run(&Request { op, in_place, ..request }, 0.0, seed as u64)
                };
                let (plain, encoded) = (of(Recovery::Never), of(Recovery::Always));
                assert!(encoded.reports.iter().all(|report| report.encoded.is_some()));
                for (plain, encoded) in plain.outputs.iter().zip(&encoded.outputs) {
                    assert_ne!(plain, encoded, "it is rounded elsewhere");
                    let far = distortion(DataType::F32, plain, encoded, 1024).unwrap();
                    assert!(far.worst < 1e-12, "{operation:?}, {op:?}: {far:?}");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_encoded_travels_as_it_is() {
    let short = run(&request(Operation::Allreduce { count: 100 }, Recovery::Always), 0.0, 1);
    assert_eq!(short.reports[0].encoded, None);
    let most = Request {
        op: ReduceOp::Max,
        ..request(Operation::Allreduce { count: 20_000 }, Recovery::Always)
    };
    assert_eq!(run(&most, 0.0, 1).reports[0].encoded, None);
}

#[test]
fn an_encoded_operation_that_loses_can_be_replayed() {
    let count = 65_536;
    let mut lossy = 0;
    for seed in 0..6 {
        let got = run(&request(Operation::Allreduce { count }, Recovery::Always), 0.3, seed);
        lossy += usize::from(got.reports.iter().any(|report| report.missing_bytes > 0));
        assert!(got.outputs.windows(2).all(|pair| pair[0] == pair[1]), "replicas are equal");
        let inputs: Vec<&[u8]> = got.inputs.iter().map(Vec::as_slice).collect();
        let again = replay_allreduce(ReduceOp::Sum, DataType::F32, &inputs, &got.reports);
        assert!(got.reports.iter().any(|report| report.is_cut) || again.is_some());
        assert!(again.is_none_or(|again| again == got.outputs[0]), "seed {seed}: bit for bit");
    }
    assert!(lossy > 3, "{lossy}");
}

#[test]
fn what_is_lost_is_spread() {
    // The same packets of one rank are lost with and without the transform.
    let (count, packet, chunk) = (1 << 18, 1024, 128 << 10);
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let inputs: Vec<_> = (0..2).map(|_| numbers(&mut rng, count)).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let lost = (0..4 * count / packet).filter(|_| rng.random_bool(0.05));
    let missing = |at: usize| Missing { rank: 1, range: at * packet..(at + 1) * packet };
    let missing: Vec<_> = lost.map(missing).collect();
    let encoding = Encoding::of(DataType::F32, ReduceOp::Sum, count, chunk).unwrap();
    let result = |missing: &[Missing], encoded| {
        let report = Report { missing: missing.to_vec(), encoded, ..Report::default() };
        let reports = [report, Report { encoded, ..Report::default() }];
        replay_allreduce(ReduceOp::Sum, DataType::F32, &inputs, &reports).unwrap()
    };
    let exact = result(&[], None);
    let far =
        |encoded| distortion(DataType::F32, &exact, &result(&missing, encoded), 4096).unwrap();
    let (plain, spread) = (far(None), far(Some((encoding, 7))));
    assert!((0.5..2.0).contains(&(spread.nmse / plain.nmse)), "{plain:?}, {spread:?}");
    assert!(2.0 * spread.worst < plain.worst, "{plain:?}, {spread:?}");
}

/// Runs an allreduce again and again on all ranks, with losses at times. Returns which of them were
/// encoded.
fn repeat(recovery: Recovery, losses: &[f64]) -> Vec<bool> {
    let shape = Shape { ranks: RANKS, chunk_bytes: 8192, slots: 2, inline_bytes: 0, seed: 3 };
    let mut world = World::new(shape);
    let bounds = Bounds::new(Deadline::After(Duration::from_nanos(1000)), 1.0).unwrap();
    let bounds = Bounds { recovery, ..bounds };
    let request = request(Operation::Allreduce { count: 16_384 }, Recovery::Never);
    let request = request.with_bounds(&bounds, &Hosts::one(RANKS)).unwrap();
    let turn = |loss: &f64| {
        world.loss = *loss;
        let input = numbers(&mut ChaCha8Rng::seed_from_u64(1), 16_384);
        let submit = |rank| world.submit_with(rank, &request, input.clone(), Some(bounds));
        let ops: Vec<OpId> = (0..RANKS).map(submit).collect();
        // Where something is lost, the deadline passes before everything has arrived.
        match *loss == 0.0 {
            true => world.settle(),
            false => world.run_for(4000),
        }
        world.pass(1000);
        world.finish();
        let reports = world.nodes.iter().zip(&ops).map(|(node, op)| &node.reports[op]);
        let encoded: Vec<_> = reports.map(|report| report.encoded).collect();
        assert!(encoded.windows(2).all(|pair| pair[0] == pair[1]), "all ranks decide alike");
        encoded[0].is_some()
    };
    losses.iter().map(turn).collect()
}

#[test]
fn data_is_encoded_while_some_is_missing() {
    let losses = [[0.0; 4], [0.3; 4]].concat();
    let encoded = repeat(Recovery::Auto, &losses);
    let mut expected = vec![false; 6];
    expected.extend([true; 2]);
    assert_eq!(encoded, expected, "from the second operation after the first that lost data");
    let after = [vec![0.3; 4], vec![0.0; 40]].concat();
    let encoded = repeat(Recovery::Auto, &after);
    assert!(encoded[3] && !encoded[43], "{encoded:?}");
    assert_eq!(repeat(Recovery::Never, &[0.3; 4]), [false; 4]);
    assert_eq!(repeat(Recovery::Always, &[0.0; 2]), [true; 2]);
}

#[test]
fn a_learned_deadline_is_for_both_forms() {
    let shape = Shape { ranks: RANKS, chunk_bytes: 8192, slots: 2, inline_bytes: 0, seed: 4 };
    let mut world = World::new(shape);
    world.loss = 0.3;
    let bounds = Bounds::new(Deadline::Adaptive(Rule::Paper), 1.0).unwrap();
    let request = request(Operation::Allreduce { count: 16_384 }, Recovery::Never);
    let request = request.with_bounds(&bounds, &Hosts::one(RANKS)).unwrap();
    let input = numbers(&mut ChaCha8Rng::seed_from_u64(1), 16_384);
    let mut turn = || {
        let submit = |rank| world.submit_with(rank, &request, input.clone(), Some(bounds));
        let ops: Vec<OpId> = (0..RANKS).map(submit).collect();
        world.run_for(4000);
        // Longer than the deadline, which is some microseconds at most.
        world.pass(1_000_000);
        world.finish();
        let report = &world.nodes[0].reports[&ops[0]];
        (report.encoded.is_some(), report.deadline_ns.is_some())
    };
    let turns: Vec<_> = (0..10).map(|_| turn()).collect();
    assert!(turns.iter().any(|(is_encoded, _)| *is_encoded), "{turns:?}");
    assert!(turns[1..].iter().all(|(_, has_deadline)| *has_deadline), "{turns:?}");
}

#[test]
fn what_loses_nothing_is_not_encoded_automatically() {
    let request = request(Operation::Allreduce { count: 65_536 }, Recovery::Never);
    let recovery_with = |deadline, loss| {
        let bounds = Bounds::new(deadline, loss).unwrap();
        request.with_bounds(&bounds, &Hosts::one(RANKS)).unwrap().recovery
    };
    let soon = Deadline::After(Duration::from_millis(1));
    assert_eq!(recovery_with(soon, 0.01), Recovery::Auto);
    assert_eq!(recovery_with(soon, 0.0), Recovery::Never);
    assert_eq!(recovery_with(Deadline::Never, 0.01), Recovery::Never);
}
