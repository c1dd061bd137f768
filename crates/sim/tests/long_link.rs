//! Allreduce over a long link that loses packets: how much longer than without loss.

use std::sync::Arc;

use bowline_collective::timeout::Rule;
use bowline_collective::{
    Bounds, Deadline, Group, GroupConfig, Hosts, Memory, Operation, Piece, Request, SdrScheme,
};
use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_nic::rate::{BbrParams, RateControl};
use bowline_nic::{Access, Buffer, Mtu, NicConfig, Region, Time, TxCaps};
use bowline_sim::net::{Topology, dumbbell};
use bowline_sim::{App, HostConfig, NicId, RxId, TxId, World};

const DELAY_NS: u64 = 5_000_000;
const PAUSE_NS: u64 = 100_000;
const NEXT: u64 = 1 << 32;

/// Allreduces of ranks on both sides of a link of 1 Gbit/s and a round trip of 10 ms.
#[derive(Clone, Copy)]
struct Case {
    seed: u64,
    ranks: u32,
    bytes: usize,
    rate_bps: u64,
    loss: f64,
    window: u32,
    bounds: Option<Bounds>,
    operations: usize,
}

struct Rank {
    group: Group,
    memory: Memory,
    wakes_at: Option<Time>,
    done: usize,
}

struct Ranks {
    ranks: Vec<Rank>,
    case: Case,
    started: Vec<Time>,
    ends: Vec<Time>,
    missing: u64,
    expected: u64,
}

impl Ranks {
    fn submit(&mut self, world: &mut World) {
        let case = self.case;
        let hosts = Hosts::new((0..case.ranks).map(|rank| rank % 2));
        let request = Request::new(Operation::Allreduce { count: case.bytes / 4 });
        let request = match &case.bounds {
            Some(bounds) => request.with_bounds(bounds, &hosts).unwrap(),
            None => request,
        };
        self.started.push(world.now());
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let chunk = config(&case).slot_bytes as usize;
            let schedule = request.compile(index as u32, &hosts, chunk).unwrap();
            let (now, nic) = (world.now(), world.nic_mut(NicId(index)));
            let schedule = Arc::new(schedule);
            rank.group.submit_with(nic, now, schedule, rank.memory, case.bounds).unwrap();
        }
        for index in 0..self.ranks.len() {
            self.on_activity(world, NicId(index));
        }
    }
}

impl App for Ranks {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        if token == NEXT {
            return self.submit(world);
        }
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
            let report = result.expect("no rank fails");
            self.missing += report.missing_bytes;
            self.expected += report.expected_bytes;
            rank.done += 1;
        }
        if let Some(at) = rank.group.poll_timeout()
            && rank.wakes_at.is_none_or(|before| at < before)
        {
            rank.wakes_at = Some(at);
            world.wake_at(at.max(now), nic.0 as u64);
        }
        let turn = self.started.len();
        if self.ends.len() < turn && self.ranks.iter().all(|rank| rank.done == turn) {
            self.ends.push(now);
            if turn < self.case.operations {
                world.wake_at(now.plus_nanos(PAUSE_NS), NEXT);
            }
        }
        did
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.ends.len() == self.case.operations
    }
}

fn config(case: &Case) -> GroupConfig {
    let chunk = (case.window / 16).next_multiple_of(64);
    match case.bounds {
        Some(_) => GroupConfig {
            slot_bytes: chunk,
            slots: 16,
            express_slots: 16,
            ..GroupConfig::default()
        },
        None => {
            GroupConfig { scheme: Some(SdrScheme::SrNack), slots: 32, ..GroupConfig::default() }
        }
    }
}

fn build(case: &Case) -> (World, Ranks) {
    let addrs = Topology::ipv4(case.ranks as usize);
    let host = |(i, addr): (usize, &_)| {
        let mut nic = NicConfig::new(*addr, [i as u8 + 1; 32]);
        nic.max_mtu = Mtu::B1024;
        HostConfig {
            nics: vec![nic],
            tx_caps: TxCaps::SINGLE,
            tx_batch: 64,
            tx_id: TxId::Burst,
            rx_id: RxId::Known,
            coalesce_ns: 0,
            ring_packets: 0,
        }
    };
    let hosts = addrs.iter().enumerate().map(host).collect();
    let access = LinkConfig {
        rate_bps: Some(10_000_000_000),
        delay_ns: 1_000,
        queue_bytes: 64 << 20,
        ecn: None,
    };
    let rate = case.rate_bps;
    let queue_bytes = rate / 8 * 2 * DELAY_NS / 1_000_000_000;
    let long = LinkConfig { rate_bps: Some(rate), delay_ns: DELAY_NS, queue_bytes, ecn: None };
    let mut world = World::new(case.seed, dumbbell(case.seed, &addrs, access, long), hosts);
    let faults = Faults { loss: Loss::Iid(Prob::new(case.loss)), ..Faults::default() };
    for cable in world.network().cables() {
        let link = world.network_mut().link_mut(cable);
        if link.config().delay_ns == DELAY_NS {
            link.set_faults(faults);
        }
    }
    let make = |index: u32| {
        let nic = world.nic_mut(NicId(index as usize));
        let pd = nic.alloc_pd().unwrap();
        let mut psn = index << 8;
        let next_psn = || {
            psn += 1;
            psn
        };
        let group = Group::new(nic, pd, (index, case.ranks), config(case), next_psn).unwrap();
        let mut piece = || {
            let region = Region::owned(Buffer::new(case.bytes));
            let key = nic.register(pd, region, 0, Access::LOCAL_WRITE).unwrap();
            Piece { key, addr: 0, len: case.bytes }
        };
        let memory = Memory { input: piece(), output: piece() };
        Rank { group, memory, wakes_at: None, done: 0 }
    };
    let mut all: Vec<_> = (0..case.ranks).map(make).collect();
    for one in 0..case.ranks {
        for other in (0..case.ranks).filter(|other| *other != one) {
            let offer = all[other as usize].group.offer(one).unwrap();
            let (now, nic) = (world.now(), world.nic_mut(NicId(one as usize)));
            let group = &mut all[one as usize].group;
            let control = (one % 2 != other % 2).then(|| {
                RateControl::Bbr(BbrParams { shortest_rtt_ns: 1_000_000, ..BbrParams::default() })
            });
            group.set_congestion(nic, now, other, control).unwrap();
            group.connect(nic, now, other, addrs[other as usize], &offer).unwrap();
        }
    }
    let app = Ranks {
        ranks: all,
        case: *case,
        started: Vec::new(),
        ends: Vec::new(),
        missing: 0,
        expected: 0,
    };
    (world, app)
}

/// How long each operation took, in ms, without the first three.
fn times(case: Case) -> Vec<f64> {
    let (mut world, mut app) = build(&case);
    world.wake_at(world.now(), NEXT);
    world.run_until(&mut app, Time::from_millis(600_000));
    assert_eq!(app.ends.len(), case.operations, "all operations end");
    let took =
        app.started.iter().zip(&app.ends).map(|(from, to)| to.nanos_since(*from) as f64 / 1e6);
    let mut times: Vec<f64> = took.skip(3).collect();
    println!("missing {:.4} %", 100.0 * app.missing as f64 / app.expected.max(1) as f64);
    println!("{:?}", times.iter().map(|t| t.round() as u32).collect::<Vec<_>>());
    times.sort_by(f64::total_cmp);
    times
}

#[test]
#[ignore = "for exploration"]
fn explore() {
    let of = |name: &str, default: f64| {
        std::env::var(name).map_or(default, |value| value.parse().unwrap())
    };
    let scale = of("SCALE", 1.0);
    let bounded = Bounds::new(Deadline::Adaptive(Rule::Margin), 0.01).unwrap();
    for ranks in [2, 4] {
        for (name, bounds, losses) in [
            ("xp 1%", Some(bounded), &[0.0, 0.01][..]),
            ("exact", Some(Bounds::EXACT), &[0.0, 0.001, 0.01]),
            ("sr-nack", None, &[0.01]),
        ] {
            if std::env::var("ONLY").is_ok_and(|only| only != name)
                || of("RANKS", ranks.into()) != f64::from(ranks)
            {
                continue;
            }
            for loss in losses {
                let case = Case {
                    seed: of("SEED", 1.0) as u64,
                    ranks,
                    bytes: (f64::from(16 << 20) * scale) as usize / 64 * 64,
                    rate_bps: (1e9 * scale) as u64,
                    loss: *loss,
                    window: (of("WINDOW", 8.0) * f64::from(1 << 20) * scale) as u32,
                    bounds,
                    operations: of("OPS", 43.0) as usize,
                };
                let times = times(case);
                let mean = times.iter().sum::<f64>() / times.len() as f64;
                let (last, median) = (times[times.len() - 1], times[times.len() / 2]);
                println!(
                    "{ranks} {name:8} {loss}: mean {mean:.1} median {median:.1} max {last:.1}"
                );
            }
        }
    }
}
