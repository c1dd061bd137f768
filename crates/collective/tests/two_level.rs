//! Allreduce where hosts reduce locally before they talk to each other. It equals a simple
//! reference wherever ranks are placed, sends few bytes between hosts, and is refused if hosts do
//! not have equally many ranks.

mod router;

use std::time::Duration;

use bowline_collective::schedule::Action;
use bowline_collective::timeout::Rule;
use bowline_collective::{
    Algorithm, Bounds, Cause, DataType, Deadline, Failure, Hosts, InvalidRequest, Operation,
    Recovery, ReduceOp, Request, replay_two_level,
};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use router::values::{bytes, reduced, value};
use router::{Shape, World};

const SHAPES: [(u32, u32); 6] = [(2, 2), (2, 3), (3, 2), (3, 3), (2, 5), (4, 4)];

/// The host of each rank: host by host, alternating, or random.
fn draw_places(rng: &mut ChaCha8Rng, (hosts, each): (u32, u32)) -> Vec<u32> {
    let mut places: Vec<u32> = (0..hosts * each).map(|rank| rank / each).collect();
    match rng.random_range(0..3) {
        0 => {}
        1 => places = (0..hosts * each).map(|rank| rank % hosts).collect(),
        _ => places.shuffle(rng),
    }
    places
}

fn request(count: usize) -> Request {
    let algorithm = Algorithm::TwoLevel;
    Request { algorithm, ..Request::new(Operation::Allreduce { count }) }
}

/// The outputs of all ranks, if all succeed.
fn outputs(
    shape: Shape,
    hosts: &Hosts,
    request: &Request,
    inputs: &[Vec<u8>],
    over_xp: Option<f64>,
) -> Vec<Vec<u8>> {
    let mut world = World::new(shape);
    (world.hosts, world.loss) = (hosts.clone(), over_xp.unwrap_or(0.0));
    let bounds = over_xp.map(|_| Bounds::EXACT);
    let submit = |(rank, input): (u32, &Vec<u8>)| {
        let op = world.submit_with(rank, request, input.clone(), bounds);
        // Ranks do not start at the same time.
        world.run_for(rank as usize % 3);
        op
    };
    let ops: Vec<_> = (0..).zip(inputs).map(submit).collect();
    world.finish();
    let output = |(rank, op)| {
        let node = &world.nodes[rank as usize];
        assert_eq!(node.results.get(op), Some(&Ok(())), "rank {rank}: {shape:?}, {request:?}");
        if !request.in_place {
            assert_eq!(world.input(rank, *op), inputs[rank as usize], "the input is as it was");
        }
        world.output(rank, *op).to_vec()
    };
    (0..).zip(&ops).map(output).collect()
}

fn draw_speakers(rng: &mut ChaCha8Rng, hosts: Hosts) -> Hosts {
    let each = hosts.shape().map_or(1, |(_, each)| each);
    hosts.with_speakers(rng.random_range(1..=each))
}

#[test]
fn every_type_and_operator_wherever_ranks_are() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let counts = [0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 100, 257];
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            for (turn, (hosts, each)) in SHAPES.into_iter().enumerate() {
                let ranks = hosts * each;
                let places = draw_places(&mut rng, (hosts, each));
                let count = counts[rng.random_range(0..counts.len())];
                let in_place = turn % 2 == 0;
                let request = Request { dtype, op, in_place, ..request(count) };
                let inputs: Vec<_> = (0..ranks)
                    .map(|rank| bytes(dtype, (0..count).map(|i| value(op, ranks, rank, i))))
                    .collect();
                let shape = Shape::draw(&mut rng, ranks);
                let over_xp = [None, Some(0.0), Some(0.2)][rng.random_range(0..3)];
                let placed = draw_speakers(&mut rng, Hosts::new(&places));
                let got = outputs(shape, &placed, &request, &inputs, over_xp);
                let expected = bytes(dtype, (0..count).map(|i| reduced(op, ranks, i)));
                for (rank, output) in got.iter().enumerate() {
                    assert_eq!(*output, expected, "rank {rank} on {places:?}, {request:?}");
                }
            }
        }
    }
}

/// Adds the ranks of a host in order, then the hosts in the order of their first ranks.
#[test]
fn additions_have_an_order_that_timing_does_not_change() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for (hosts, each) in SHAPES {
        let (ranks, count) = (hosts * each, 211);
        let places = draw_places(&mut rng, (hosts, each));
        let inputs: Vec<Vec<f32>> = (0..ranks)
            .map(|_| (0..count).map(|_| rng.random_range(-1e6f32..1e6)).collect())
            .collect();
        let mut seen: Vec<u32> = Vec::new();
        for place in &places {
            if !seen.contains(place) {
                seen.push(*place);
            }
        }
        let on_host = |host: u32, i: usize| {
            let of_host = places.iter().zip(&inputs).filter(move |(place, _)| **place == host);
            of_host.map(|(_, input)| input[i]).reduce(|a, b| a + b).unwrap()
        };
        let sum = |i: usize| seen.iter().map(|host| on_host(*host, i)).reduce(|a, b| a + b);
        let expected: Vec<u8> = (0..count).flat_map(|i| sum(i).unwrap().to_ne_bytes()).collect();
        let raw = |input: &Vec<f32>| input.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let inputs: Vec<Vec<u8>> = inputs.iter().map(raw).collect();
        for (turn, over_xp) in [None, None, Some(0.3)].into_iter().enumerate() {
            let request = Request { in_place: turn == 1, ..request(count) };
            let shape = Shape::draw(&mut rng, ranks);
            let placed = draw_speakers(&mut rng, Hosts::new(&places));
            let got = outputs(shape, &placed, &request, &inputs, over_xp);
            assert!(got.iter().all(|output| *output == expected), "{places:?}, turn {turn}");
        }
    }
}

#[test]
fn a_host_sends_as_much_as_if_it_were_one_rank() {
    for (hosts, each) in SHAPES {
        let (places, count) = (Hosts::new((0..hosts * each).map(|rank| rank / each)), 40_000);
        let mut sent = 0;
        for rank in 0..each {
            let schedule = request(count).compile(rank, &places, 4096).unwrap();
            assert_eq!(schedule.scratch_bytes(), 0);
            for step in 0..schedule.len() as u32 {
                if let Action::Send { to, src } = schedule.action(step) {
                    sent += if *to < each { 0 } else { src.len };
                }
            }
        }
        let one_rank = 2 * 4 * count * (hosts as usize - 1) / hosts as usize;
        assert!(sent.abs_diff(one_rank) <= 64 * each as usize, "{sent} of {one_rank}");
    }
}

#[test]
fn only_speakers_send_to_other_hosts() {
    let places = Hosts::new([0, 0, 0, 1, 1, 1]);
    for speakers in 1..=3 {
        let places = places.clone().with_speakers(speakers);
        for rank in 0..3 {
            let schedule = request(40_000).compile(rank, &places, 4096).unwrap();
            assert_eq!(schedule.sharers() as usize, speakers);
            let is_to_others =
                |step| matches!(schedule.action(step), Action::Send { to, .. } if *to >= 3);
            let speaks = (0..schedule.len() as u32).any(is_to_others);
            assert_eq!(speaks, (rank as usize) < speakers, "rank {rank} of {speakers}");
        }
    }
}

#[test]
fn it_is_refused_where_hosts_are_not_alike() {
    for places in [vec![0, 0, 0, 0], vec![0, 1, 2, 3], vec![0, 0, 0, 1], vec![0, 0, 1, 1, 2]] {
        let hosts = Hosts::new(places);
        assert_eq!(request(1000).algorithm_for(&hosts), Err(InvalidRequest::Hosts));
        assert_eq!(request(1000).compile(0, &hosts, 64).err(), Some(InvalidRequest::Hosts));
    }
    let hosts = Hosts::new([0, 0, 1, 1]);
    assert_eq!(request(1000).algorithm_for(&hosts), Ok(Algorithm::TwoLevel));
    let gather = Request { operation: Operation::Allgather { count: 5 }, ..request(0) };
    let refused = gather.algorithm_for(&hosts);
    assert!(matches!(refused, Err(InvalidRequest::Algorithm { .. })), "{refused:?}");
}

#[test]
fn what_is_encoded_stays_direct() {
    let hosts = Hosts::new([0, 0, 1, 1]);
    let auto = Request { algorithm: Algorithm::Auto, ..request(100_000) };
    let lossy = Bounds::new(Deadline::Adaptive(Rule::Margin), 0.01).unwrap();
    let timed = Bounds { max_loss_ppm: 0, ..lossy };
    let encoded = Bounds { recovery: Recovery::Always, ..Bounds::EXACT };
    assert_eq!(auto.algorithm_for(&hosts), Ok(Algorithm::TwoLevel));
    let with = |bounds: &Bounds| auto.with_bounds(bounds, &hosts).map(|request| request.algorithm);
    for bounds in [Bounds::EXACT, lossy, timed] {
        assert_eq!(with(&bounds), Ok(Algorithm::TwoLevel), "{bounds:?}");
    }
    assert_eq!(with(&encoded), Ok(Algorithm::Direct));
    let named = request(100_000).with_bounds(&encoded, &hosts);
    assert!(matches!(named, Err(InvalidRequest::Unbounded { .. })), "{named:?}");
    let recovery = Request { recovery: Recovery::Always, ..auto };
    assert_eq!(recovery.algorithm_for(&hosts), Ok(Algorithm::Direct));
}

/// Only sums between hosts may be lost: at most the share of them that is allowed, the same on all
/// ranks, and reports are enough to compute the result again.
#[test]
fn the_promise_is_kept_replicas_are_equal_and_reports_tell_all() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut lossy = 0;
    for turn in 0..200 {
        let (hosts, each) = SHAPES[turn % SHAPES.len()];
        let (ranks, count) = (hosts * each, rng.random_range(0..900));
        let speakers = rng.random_range(1..=each as usize);
        let places = Hosts::new(draw_places(&mut rng, (hosts, each))).with_speakers(speakers);
        let op = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max][rng.random_range(0..3)];
        let deadline = Deadline::After(Duration::from_nanos(rng.random_range(1..20_000)));
        let max_loss = [0.001, 0.02, 0.3, 1.0][rng.random_range(0..4)];
        let bounds = Bounds::new(deadline, max_loss).unwrap();
        let bounds = Bounds { equal_replicas: rng.random(), ..bounds };
        let request = Request { op, in_place: rng.random(), ..request(count) };
        let request = request.with_bounds(&bounds, &places).unwrap();
        let mut input = || -> Vec<u8> {
            (0..count).flat_map(|_| rng.random_range(-1e6f32..1e6).to_ne_bytes()).collect()
        };
        let inputs: Vec<Vec<u8>> = (0..ranks).map(|_| input()).collect();
        let mut world = World::new(Shape::draw(&mut rng, ranks));
        world.hosts = places.clone();
        world.loss = [0.0, 0.01, 0.2, 0.8][rng.random_range(0..4)];
        let submit = |(rank, input): (u32, &Vec<u8>)| {
            let op = world.submit_with(rank, &request, input.clone(), Some(bounds));
            world.run_for(rank as usize % 3);
            op
        };
        let ops: Vec<_> = (0..).zip(&inputs).map(submit).collect();
        world.finish();
        let nodes = || world.nodes.iter().zip(&ops);
        let reports: Vec<_> = nodes().map(|(node, op)| node.reports[op].clone()).collect();
        let part = count.div_ceil(speakers).div_ceil(hosts as usize);
        let may_be_lost = (hosts as usize - 1) * part * 4;
        for report in &reports {
            assert!(report.missing_bytes <= bounds.allowed(may_be_lost as u64), "{turn}");
            let listed: usize = report.missing.iter().map(|missing| missing.range.len()).sum();
            assert_eq!(listed as u64, report.missing_bytes * u64::from(each), "{turn}");
            lossy += usize::from(report.missing_bytes > 0);
        }
        let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
        let again = replay_two_level(op, DataType::F32, &inputs, &reports, &places).unwrap();
        for (rank, op) in (0..).zip(&ops) {
            assert!(world.output(rank, *op) == again, "turn {turn}, rank {rank}");
        }
    }
    assert!(lossy > 100, "something is lost: {lossy}");
}

#[test]
fn ranks_that_do_not_agree_about_hosts_get_an_error() {
    let shape = Shape { ranks: 4, chunk_bytes: 64, slots: 3, inline_bytes: 8, seed: 3 };
    for (other, speakers) in [([0, 1, 0, 1], 2), ([0, 1, 1, 0], 2), ([0, 0, 1, 1], 1)] {
        let mut world = World::new(shape);
        let count = 500;
        for rank in 0..4 {
            world.hosts = match rank {
                2 => Hosts::new(other).with_speakers(speakers),
                _ => Hosts::new([0, 0, 1, 1]),
            };
            let input = bytes(DataType::F32, (0..count).map(|_| 1));
            world.submit(rank, &request(count as usize), input);
        }
        world.finish();
        for node in &world.nodes {
            let failed = node.results.values().all(|result| {
                matches!(result, Err(Failure { cause: Cause::Mismatch | Cause::Protocol, .. }))
            });
            assert!(failed, "{:?}", node.results);
        }
    }
}
