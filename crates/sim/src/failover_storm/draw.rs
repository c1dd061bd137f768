//! Drawing a scenario with failover from its seed.

use bowline_failover::{Config, Mode, Rail};
use bowline_link::{Faults, LinkConfig, Prob};
use bowline_nic::{Mtu, QpType};

use super::scenario::{Cut, FailoverPlan, Outage};
use crate::attack::{AttackPlan, Attacker};
use crate::rng::SimRng;
use crate::storm::{
    ConnPlan, HostPlan, OpKind, OpMix, OpPlan, Role, Scenario, Severity, Shape, draw_coalescing,
    draw_end, draw_faults, draw_fec, draw_host, draw_lanes, draw_link, draw_ops,
};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// A stream apart from those of scenarios without failover.
const STREAM: u64 = 0xfa11;
/// Payload bytes of all operations together.
const BYTE_BUDGET: u64 = 400_000;
/// Queues that hold everything there is to send.
const DEEP_QUEUE_BYTES: u64 = 16 << 20;
/// No fault before connections are set up and agents know of each other.
const CALM_NS: u64 = 2 * MILLISECOND;

impl Scenario {
    /// The scenario with failover of a seed.
    pub fn draw_failover(seed: u64, attacker: Attacker) -> Scenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let ipv6 = rng.percent(20);
        let guess = !ipv6 && rng.percent(20);
        let machines = rng.pick(&[2, 2, 2, 3]);
        let hosts: Vec<HostPlan> = (0..machines).map(|_| draw_machine(rng, guess)).collect();
        // Half of all scenarios never fail both rails at once: then nothing may fail at all.
        let mild = rng.percent(50);
        let access = draw_cable(rng, mild);
        let heal_ns = rng.range(15, 120) * MILLISECOND;
        let mode = if rng.percent(50) { Mode::Exact } else { Mode::Shift };
        let rtt_ns = 4 * (access.delay_ns + 10 * MICROSECOND)
            + rng.pick(&[150, 600]) * MICROSECOND * if mild { 2 } else { 1 };
        let conns = draw_conns(rng, &hosts, mode, rtt_ns, heal_ns);
        let faults = draw_rail_faults(rng, mild, guess, machines);
        let outages = if mild {
            draw_gentle_outages(rng, machines, heal_ns)
        } else {
            draw_outages(rng, machines, heal_ns)
        };
        let config = draw_config(rng, mode, mild);
        let failover = FailoverPlan {
            outages,
            naps: draw_breaks(rng, machines, heal_ns, config.give_up_ns, mild),
            clocks_ahead_ns: (0..machines).map(|_| rng.pick(&[0, 0, 1_000_000_007])).collect(),
            entries_ns: conns.iter().map(|_| [0, 1].map(|_| draw_entry(rng, mild))).collect(),
            recovery_ns: rng.pick(&[100, 100, 1_000, 20_000]) * MICROSECOND,
            config,
        };
        let pauses = if rng.percent(25) {
            draw_breaks(rng, machines, heal_ns, failover.config.give_up_ns, mild)
        } else {
            Vec::new()
        };
        let mut scenario = Scenario {
            seed,
            ipv6,
            shape: Shape::Rails,
            access,
            core: access,
            hosts,
            conns,
            faults,
            pauses,
            outages: Vec::new(),
            heal_ns,
            mild,
            failover: Some(failover),
            attack: AttackPlan::draw(seed, attacker, machines, heal_ns),
            sealed: None,
        };
        draw_fec(seed, &mut scenario.conns);
        draw_coalescing(seed, &mut scenario.hosts);
        draw_lanes(seed, &mut scenario.hosts);
        scenario
    }
}

fn draw_machine(rng: &mut SimRng, guess: bool) -> HostPlan {
    let mut host = draw_host(rng, guess);
    host.nics.truncate(1);
    host
}

fn draw_cable(rng: &mut SimRng, mild: bool) -> LinkConfig {
    let delay_ns = rng.pick(&[1, 1, 5, 20, 100]) * MICROSECOND;
    let mut cable = draw_link(rng, delay_ns);
    cable.rate_bps = cable.rate_bps.max(Some(10_000_000_000));
    if mild {
        cable.queue_bytes = DEEP_QUEUE_BYTES;
    }
    cable
}

/// Times far shorter than in production, so that a short scenario sees many moves.
fn draw_config(rng: &mut SimRng, mode: Mode, mild: bool) -> Config {
    let good_for_ns = rng.range(1, 5) * MILLISECOND;
    let patience_ms = if mild { rng.range(200, 500) } else { rng.range(8, 60) };
    let config = Config {
        repeat_ns: rng.pick(&[50, 200, 1_000]) * MICROSECOND,
        give_up_ns: patience_ms * MILLISECOND,
        probe_ns: rng.range(300, 3_000) * MICROSECOND,
        good_for_ns,
        good_for_max_ns: good_for_ns * rng.range(1, 10),
        drain_ns: rng.range(500, 10_000) * MICROSECOND,
        ..Config::new(mode, 0x5eed)
    };
    let some_ns = 4 * config.drain_ns;
    Config { drain_max_ns: some_ns, drain_silence_ns: some_ns, ..config }
}

fn draw_conns(
    rng: &mut SimRng,
    hosts: &[HostPlan],
    mode: Mode,
    rtt_ns: u64,
    heal_ns: u64,
) -> Vec<ConnPlan> {
    let count = rng.range(1, 5);
    let budget = BYTE_BUDGET / (count * 2);
    (0..count)
        .map(|_| {
            let mtu = rng.pick(&Mtu::ALL);
            let first = rng.below(hosts.len() as u64) as usize;
            let step = 1 + rng.below(hosts.len() as u64 - 1) as usize;
            let nics = [first, (first + step) % hosts.len()];
            let mut ends = nics.map(|nic| draw_end(rng, nic, rtt_ns));
            for end in &mut ends {
                end.retry_count = rng.pick(&[1, 2, 3, 7]);
            }
            for side in 0..2 {
                let peer_srq = hosts[nics[1 - side]].nics[0].srq.is_some() && rng.percent(70);
                ends[1 - side].uses_srq = peer_srq;
                let mix = OpMix { qp_type: QpType::Rc, mtu, peer_srq, budget, heal_ns };
                ends[side].ops = draw_ops(rng, &mix, &ends[side]);
                // An atomic in flight ends a connection in this mode.
                let few_atomics = mode == Mode::Shift && rng.percent(80);
                spread(rng, &mut ends[side].ops, heal_ns, few_atomics);
            }
            let mut conn = ConnPlan {
                qp_type: QpType::Rc,
                role: Role::Normal,
                mtu,
                ends,
                reconnects_ns: Vec::new(),
                drains_ns: Vec::new(),
            };
            if rng.percent(15) {
                conn.reconnects_ns.push(rng.below(heal_ns));
            }
            if rng.percent(15) {
                conn.drains_ns.push((rng.below(2) as usize, rng.below(heal_ns)));
            }
            conn
        })
        .collect()
}

/// Spreads operations over the faults: some in bursts, most over the whole time.
fn spread(rng: &mut SimRng, ops: &mut [OpPlan], heal_ns: u64, few_atomics: bool) {
    let pace_ns = 2 * heal_ns / ops.len().max(1) as u64;
    let bursts = rng.pick(&[0, 30, 70]);
    for op in ops {
        op.think_ns = if rng.percent(bursts) { 0 } else { rng.below(pace_ns) };
        if few_atomics && op.kind.is_atomic() {
            op.kind = OpKind::Write;
        }
    }
}

fn draw_rail_faults(rng: &mut SimRng, mild: bool, guess: bool, machines: usize) -> Vec<Faults> {
    let severity = match rng.below(3) {
        0 => Severity::None,
        1 if !mild => Severity::Rough,
        _ => Severity::Mild,
    };
    // Packets so late that their connection has moved meanwhile, perhaps twice.
    let late_ns = if rng.percent(40) { rng.range(1, 40) * MILLISECOND } else { 0 };
    (0..machines * 4)
        .map(|_| {
            let mut faults = draw_faults(rng, severity, guess);
            if late_ns > 0 && rng.percent(50) {
                faults.reorder = Prob::new(rng.pick(&[0.002, 0.01, 0.05]));
                faults.reorder_ns = late_ns;
            }
            faults
        })
        .collect()
}

fn draw_cut(rng: &mut SimRng) -> (Cut, bool) {
    match rng.below(6) {
        0 => (Cut::Out, false),
        1 => (Cut::In, false),
        2 | 3 => (Cut::Whole, true),
        _ => (Cut::Whole, false),
    }
}

/// The cable of one machine, or of all that are on a rail.
fn add_outage(
    rng: &mut SimRng,
    outages: &mut Vec<Outage>,
    machines: usize,
    rail: Rail,
    (at_ns, for_ns): (u64, u64),
) {
    let all = rng.percent(20);
    let one = rng.below(machines as u64) as usize;
    let (cut, told) = draw_cut(rng);
    for machine in (0..machines).filter(|machine| all || *machine == one) {
        outages.push(Outage { machine, rail, cut, told, at_ns, for_ns });
    }
}

fn draw_rail(rng: &mut SimRng) -> Rail {
    if rng.percent(65) { Rail::Default } else { Rail::Backup }
}

/// Never both rails at once.
fn draw_gentle_outages(rng: &mut SimRng, machines: usize, heal_ns: u64) -> Vec<Outage> {
    let mut outages = Vec::new();
    let mut at_ns = CALM_NS + rng.below(heal_ns / 4);
    for _ in 0..rng.range(1, 5) {
        let for_ns = rng.pick(&[200, 2_000, 10_000, 30_000]) * MICROSECOND;
        let for_ns = for_ns / 2 + rng.below(for_ns);
        let rail = draw_rail(rng);
        add_outage(rng, &mut outages, machines, rail, (at_ns, for_ns));
        at_ns += for_ns + rng.pick(&[0, 1_000, 10_000]) * MICROSECOND;
    }
    outages
}

fn draw_outages(rng: &mut SimRng, machines: usize, heal_ns: u64) -> Vec<Outage> {
    let mut outages = Vec::new();
    for _ in 0..rng.range(1, 6) {
        let at_ns = rng.below(heal_ns);
        let for_ns = rng.pick(&[100, 1_000, 10_000, 60_000]) * MICROSECOND;
        let rail = draw_rail(rng);
        let flaps = if rng.percent(20) { rng.range(2, 8) } else { 1 };
        for flap in 0..flaps {
            let at_ns = at_ns + flap * for_ns * 2;
            add_outage(rng, &mut outages, machines, rail, (at_ns, for_ns));
        }
    }
    if rng.percent(20) {
        let at_ns = rng.below(heal_ns);
        let for_ns = rng.range(10, 100) * MILLISECOND;
        for rail in Rail::ALL {
            add_outage(rng, &mut outages, machines, rail, (at_ns, for_ns));
        }
    }
    outages
}

/// Times during which a machine, or its agent, does nothing.
fn draw_breaks(
    rng: &mut SimRng,
    machines: usize,
    heal_ns: u64,
    patience_ns: u64,
    mild: bool,
) -> Vec<(usize, u64, u64)> {
    if rng.percent(50) {
        return Vec::new();
    }
    let longest_ns = if mild { patience_ns / 20 } else { patience_ns * 2 };
    (0..rng.range(1, 3))
        .map(|_| {
            let machine = rng.below(machines as u64) as usize;
            let longest_ns = rng.pick(&[500 * MICROSECOND, 5 * MILLISECOND, longest_ns]);
            (machine, rng.below(heal_ns), rng.below(longest_ns.max(2)))
        })
        .collect()
}

/// Until an end knows of its peer's spare, it fails as it would without failover.
fn draw_entry(rng: &mut SimRng, mild: bool) -> Option<u64> {
    match rng.below(10) {
        0 if !mild => None,
        1 if !mild => Some(rng.below(50 * MILLISECOND)),
        2..5 if !mild => Some(rng.below(CALM_NS / 2)),
        _ => Some(0),
    }
}
