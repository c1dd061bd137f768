//! Drawing a scenario from its seed.

use std::time::Duration;

use bowline_collective::timeout::Rule;
use bowline_collective::{
    Algorithm, Bounds, Deadline, GroupConfig, Hosts, Operation, Recovery, ReduceOp, Request,
    SdrScheme,
};
use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_nic::Mtu;

use super::scenario::{CollectiveScenario, OpPlan, Stall};
use crate::rng::SimRng;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const GIGABIT: u64 = 1_000_000_000;
/// Apart from the streams of the other storms, of links and of memory.
const STREAM: u64 = 0xc011;
const SCHEME_STREAM: u64 = 0xc0115d;
const SCHEME_PERCENT: u64 = 15;
const HOSTS_STREAM: u64 = 0xc0110575;
const HOSTS_PERCENT: u64 = 60;
const SHARES_STREAM: u64 = 0xc0115a;
/// In how many scenarios rings are shared, and how many of their directions.
const SHARES_PERCENT: u64 = 30;
const SHARED_PERCENT: u64 = 60;
const RECOVERY_STREAM: u64 = 0xc011ec;
/// In how many scenarios allreduces are encoded, and the fewest elements that are.
const RECOVERY_PERCENT: u64 = 20;
const RECOVERY_ELEMENTS: usize = 16 << 10;
/// How often an allreduce is repeated that is encoded once it loses data.
const RECOVERY_REPEATS: usize = 5;
/// ACK timeouts of 4 ms: a rank that does not answer for eight of them has failed.
const ACK_TIMEOUT: u8 = 10;
/// A rank that stalls for at most this long does not count as dead.
const MAX_STALL_NS: u64 = 15 * MILLISECOND;

impl CollectiveScenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64) -> CollectiveScenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let ranks = rng.range(2, 6) as u32;
        let cable = LinkConfig {
            rate_bps: Some(rng.pick(&[1, 10, 100]) * GIGABIT),
            delay_ns: rng.pick(&[500, 5 * MICROSECOND, 100 * MICROSECOND]),
            queue_bytes: rng.pick(&[4 << 20, 256 << 10, 64 << 10]),
            ecn: None,
        };
        let config = GroupConfig {
            slot_bytes: rng.pick(&[1 << 10, 4 << 10, 16 << 10]),
            slots: rng.range(1, 8) as u16,
            express_slots: rng.range(1, 16) as u16,
            casts: false,
            scheme: None,
            reorder_ns: rng.pick(&[0, 5 * MICROSECOND, 100 * MICROSECOND]),
            inline_bytes: rng.pick(&[0, 512]),
            heartbeat_ns: 20 * MILLISECOND,
            ack_timeout: ACK_TIMEOUT,
            limit_ns: 3_600_000 * MILLISECOND,
        };
        let span_ns = rng.pick(&[1, 100, 3_000]) * MICROSECOND;
        let ops = draw_ops(rng, ranks, span_ns);
        let busy_ns = span_ns * ops.len() as u64 + MILLISECOND;
        let stalls = (0..rng.pick(&[0, 0, 1, 3])).map(|_| Stall {
            rank: rng.below(ranks.into()) as u32,
            at_ns: rng.below(busy_ns),
            for_ns: rng.below(MAX_STALL_NS),
        });
        let stalls = stalls.collect();
        let kill = rng.percent(20).then(|| (rng.below(ranks.into()) as u32, rng.below(busy_ns)));
        let scenario = CollectiveScenario {
            seed,
            ranks,
            hosts: Hosts::one(ranks),
            cable,
            faults: draw_faults(rng),
            mtu: rng.pick(&[Mtu::B256, Mtu::B1024, Mtu::B4096]),
            config,
            ops,
            stalls,
            kill,
            shares: Vec::new(),
        };
        // Drawn apart from the others, so that a seed is otherwise what it was without.
        let scenario = scenario.on_hosts(&mut SimRng::new(seed, HOSTS_STREAM));
        let rng = &mut SimRng::new(seed, SCHEME_STREAM);
        match rng.percent(SCHEME_PERCENT) {
            true => scenario.over(rng.pick(&SdrScheme::ALL)),
            false => scenario
                .with_shared_rings(&mut SimRng::new(seed, SHARES_STREAM))
                .with_recovery(&mut SimRng::new(seed, RECOVERY_STREAM)),
        }
    }

    /// The same with allreduces that are encoded: one, or one that is repeated and loses data.
    fn with_recovery(mut self, rng: &mut SimRng) -> CollectiveScenario {
        let bounded = self.ops.iter().position(|plan| plan.bounds.is_some());
        let Some(first) = bounded.filter(|_| rng.percent(RECOVERY_PERCENT)) else { return self };
        let recovery = rng.pick(&[Recovery::Always, Recovery::Auto, Recovery::Auto]);
        let count = RECOVERY_ELEMENTS + rng.below(RECOVERY_ELEMENTS as u64) as usize;
        let request = Request {
            op: rng.pick(&[ReduceOp::Sum, ReduceOp::Average]),
            algorithm: Algorithm::Direct,
            in_place: rng.percent(50),
            recovery,
            ..Request::new(Operation::Allreduce { count })
        };
        let bounds = self.ops[first].bounds.map(|bounds| match recovery {
            // Short enough to lose data.
            Recovery::Auto => Bounds {
                deadline: Deadline::After(Duration::from_micros(rng.range(1, 100))),
                max_loss_ppm: rng.range(1_000, 1_000_000) as u32,
                equal_replicas: true,
                ..bounds
            },
            _ => Bounds { equal_replicas: true, ..bounds },
        });
        let encoded = OpPlan { request, bounds, at_ns: self.ops[first].at_ns.clone() };
        match recovery {
            Recovery::Auto => self.ops = vec![encoded; RECOVERY_REPEATS],
            _ => self.ops[first] = encoded,
        }
        self
    }

    /// The same with some directions through rings in shared memory.
    fn with_shared_rings(mut self, rng: &mut SimRng) -> CollectiveScenario {
        if rng.percent(SHARES_PERCENT) {
            let ranks = 0..self.ranks;
            let pairs = ranks.clone().flat_map(|from| ranks.clone().map(move |to| (from, to)));
            let pairs = pairs.filter(|(from, to)| from != to);
            self.shares = pairs.filter(|_| rng.percent(SHARED_PERCENT)).collect();
        }
        self
    }

    /// The same on hosts with as many ranks each, where that can be: some allreduces go by two
    /// levels.
    fn on_hosts(mut self, rng: &mut SimRng) -> CollectiveScenario {
        let each = rng.pick(&[2, 3]);
        if self.ranks < 2 * each || !self.ranks.is_multiple_of(each) || !rng.percent(HOSTS_PERCENT)
        {
            return self;
        }
        let mut places: Vec<u32> = (0..self.ranks).map(|rank| rank / each).collect();
        for last in (1..places.len()).rev() {
            places.swap(last, rng.below(last as u64 + 1) as usize);
        }
        self.hosts = Hosts::new(places).with_speakers(1 + rng.below(each.into()) as usize);
        for plan in &mut self.ops {
            let is_allreduce = matches!(plan.request.operation, Operation::Allreduce { .. });
            if is_allreduce && rng.percent(HOSTS_PERCENT) {
                plan.request.algorithm = Algorithm::TwoLevel;
                plan.bounds =
                    plan.bounds.map(|bounds| Bounds { recovery: Recovery::Never, ..bounds });
            }
        }
        self
    }

    /// The same over a scheme of SDR. Operations have no bounds there.
    fn over(mut self, scheme: SdrScheme) -> CollectiveScenario {
        self.config = GroupConfig { express_slots: 0, scheme: Some(scheme), ..self.config };
        self.ops.iter_mut().for_each(|op| op.bounds = None);
        self
    }
}

/// RC survives this: no packet or its ACK is lost eight times in a row. Loss bursts come from short
/// queues; those of a lossy cable would outlast retransmissions, which are a few packets.
fn draw_faults(rng: &mut SimRng) -> Faults {
    let some = |rng: &mut SimRng, share: u64, most: f64| {
        let p = most * rng.range(1, 100) as f64 / 100.0;
        if rng.percent(share) { Prob::new(p) } else { Prob::NEVER }
    };
    let loss = match rng.below(4) {
        0 => Loss::None,
        1 => Loss::Iid(some(rng, 100, 0.05)),
        _ => Loss::Iid(some(rng, 100, 0.01)),
    };
    Faults {
        loss,
        duplicate: some(rng, 30, 0.1),
        reorder: some(rng, 50, 0.2),
        reorder_ns: rng.pick(&[MICROSECOND, 20 * MICROSECOND, 300 * MICROSECOND]),
        jitter_ns: if rng.percent(30) { rng.range(1, 50) * MICROSECOND } else { 0 },
        ..Faults::default()
    }
}

fn draw_ops(rng: &mut SimRng, ranks: u32, span_ns: u64) -> Vec<OpPlan> {
    let count = rng.range(1, 6);
    // Deadlines are learned from repetitions of the same operation.
    let repeats = rng.percent(30);
    let first = draw_op(rng, ranks);
    let mut times = vec![0; ranks as usize];
    let ops = (0..count).map(|_| {
        let (request, bounds) = if repeats { first.clone() } else { draw_op(rng, ranks) };
        for time in &mut times {
            *time += rng.below(span_ns);
        }
        OpPlan { request, bounds, at_ns: times.clone() }
    });
    ops.collect()
}

fn draw_op(rng: &mut SimRng, ranks: u32) -> (Request, Option<Bounds>) {
    let count = match rng.below(4) {
        0 => rng.below(20),
        1 => rng.below(1_000),
        _ => rng.below(20_000),
    } as usize;
    let root = rng.below(ranks.into()) as u32;
    let operation = match rng.below(12) {
        0 => Operation::ReduceScatter { count: count / ranks as usize },
        1 => Operation::Allgather { count: count / ranks as usize },
        2 => Operation::AllToAll { count: count / ranks as usize },
        3 => Operation::Broadcast { count, root },
        4 => Operation::Reduce { count, root },
        5 => Operation::Gather { count: count / ranks as usize, root },
        6 => Operation::Scatter { count: count / ranks as usize, root },
        _ => Operation::Allreduce { count },
    };
    let is_allreduce = matches!(operation, Operation::Allreduce { .. });
    let op = rng.pick(&[ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max]);
    let exchange = is_allreduce && rng.percent(30);
    let algorithm = if exchange { Algorithm::Exchange } else { Algorithm::Direct };
    let in_place = is_allreduce && rng.percent(50);
    let request = Request { op, algorithm, in_place, ..Request::new(operation) };
    let bounds = (!rng.percent(15)).then(|| draw_bounds(rng, exchange || !is_allreduce));
    (request, bounds)
}

fn draw_bounds(rng: &mut SimRng, may_drift: bool) -> Bounds {
    let deadline = match rng.below(6) {
        0 => Deadline::Never,
        1 => Deadline::Adaptive(rng.pick(&[Rule::Margin, Rule::Paper])),
        _ => {
            let most = rng.pick(&[20, 300, 10_000]);
            Deadline::After(Duration::from_micros(rng.range(1, most)))
        }
    };
    let max_loss_ppm = match rng.below(5) {
        0 => 0,
        1 => 1_000,
        2 => 20_000,
        3 => 200_000,
        _ => rng.below(1_000_001) as u32,
    };
    let equal_replicas = !(may_drift && rng.percent(50));
    Bounds { deadline, max_loss_ppm, equal_replicas, ..Bounds::EXACT }
}
