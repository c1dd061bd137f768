//! Drawing a scenario from its seed.

use bowline_link::{Bursts, Corruption, Ecn, Faults, GilbertElliott, LinkConfig, Loss, Prob};
use bowline_nic::{DcqcnParams, Mtu, QpType, RateControl, TxCaps};

use super::crime::Crime;
use super::draw_ops::{LONG_READ, OpMix, draw_crime_ops, draw_ops};
use super::scenario::{ConnPlan, EndPlan, HostPlan, NicPlan, Role, Scenario, Shape, SrqPlan};
use crate::attack::{AttackPlan, Attacker};
use crate::rng::SimRng;
use crate::world::{RxId, TxId};

/// Stream of draws about ports that coalesce.
const COALESCING: u64 = 0x9a0;
const LANES: u64 = 0x9a2;
const MEMORY: u64 = 0x9a4;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
/// Sends that overflow a completion queue of one entry.
const OVERFLOWING_SENDS: u32 = 8;
/// Queues that hold everything there is to send, retransmissions included.
const DEEP_QUEUE_BYTES: u64 = 4 << 20;
/// Payload bytes of all operations together: limits a seed to a few thousand packets.
const BYTE_BUDGET: u64 = 700_000;

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, attacker: Attacker) -> Scenario {
        let rng = &mut SimRng::new(seed, 0);
        let mut hosts: Vec<HostPlan> = Vec::new();
        let ipv6 = rng.percent(20);
        let guess = !ipv6 && rng.percent(40);
        let host_count = rng.pick(&[2, 2, 2, 3, 3, 4]);
        for _ in 0..host_count {
            hosts.push(draw_host(rng, guess));
        }
        draw_coalescing(seed, &mut hosts);
        draw_lanes(seed, &mut hosts);
        draw_memory(seed, &mut hosts);
        let shape = draw_shape(rng, host_count);
        let delay_ns = rng.pick(&[1, 1, 5, 20, 100]) * MICROSECOND;
        let access = draw_link(rng, delay_ns);
        let core = draw_link(rng, delay_ns * 2);
        let severity = rng.pick(&[
            Severity::None,
            Severity::Mild,
            Severity::Mild,
            Severity::Rough,
            Severity::Rough,
        ]);
        let rtt_ns = slowest_round_trip_ns(&access, &core, severity);
        let faults = (0..rng.range(1, 4)).map(|_| draw_faults(rng, severity, guess)).collect();
        let heal_ns = rng.range(3, 40) * MILLISECOND;
        let nic_count = hosts.iter().map(|h| h.nics.len()).sum();
        let mut conns = draw_conns(rng, &hosts, nic_count, rtt_ns, heal_ns);
        conns.extend(draw_sacrifices(rng, nic_count, rtt_ns));
        super::fec::draw(seed, &mut conns);
        let attack = AttackPlan::draw(seed, attacker, host_count, heal_ns);
        if attack.is_some() {
            conns.extend(super::hostage::draw(seed, nic_count, rtt_ns, heal_ns));
        }
        let rough = severity == Severity::Rough;
        let mut pauses = Vec::new();
        let mut outages = Vec::new();
        if rough && rng.percent(40) {
            for _ in 0..rng.range(1, 3) {
                let host = rng.below(host_count as u64) as usize;
                pauses.push((host, rng.below(heal_ns), rng.range(50, 3_000) * MICROSECOND));
            }
        }
        if rough && rng.percent(30) {
            for _ in 0..rng.range(1, 2) {
                let cable = rng.below(16) as usize;
                outages.push((cable, rng.below(heal_ns), rng.range(50, 4_000) * MICROSECOND));
            }
        }
        // A queue that windows overrun drops packets as surely as a bad cable does.
        let deep = access.queue_bytes.min(core.queue_bytes) >= DEEP_QUEUE_BYTES;
        let mild = !rough && deep;
        Scenario {
            seed,
            ipv6,
            shape,
            access,
            core,
            hosts,
            conns,
            faults,
            pauses,
            outages,
            heal_ns,
            mild,
            failover: None,
            attack,
            sealed: None,
        }
    }
}

/// How long an answer may take when everything that is ever sent waits in one queue before it.
/// Where connections may give up, timeouts are sometimes shorter than that.
fn slowest_round_trip_ns(access: &LinkConfig, core: &LinkConfig, severity: Severity) -> u64 {
    let bytes = BYTE_BUDGET + 2 * LONG_READ;
    let queueing_ns = access.transmit_ns(bytes).max(core.transmit_ns(bytes));
    let share = if severity == Severity::Rough { 8 } else { 1 };
    4 * (access.delay_ns + 2 * core.delay_ns + 10 * MICROSECOND) + queueing_ns / share
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    None,
    Mild,
    Rough,
}

fn draw_shape(rng: &mut SimRng, hosts: usize) -> Shape {
    let shapes = [Shape::Star, Shape::Star, Shape::Dumbbell, Shape::Ring, Shape::FatTree];
    if hosts == 2 && rng.percent(60) { Shape::Pair } else { rng.pick(&shapes) }
}

pub(crate) fn draw_host(rng: &mut SimRng, guess: bool) -> HostPlan {
    let nics = (0..if rng.percent(15) { 2 } else { 1 }).map(|_| draw_nic(rng)).collect();
    let segments = rng.pick(&[1, 1, 2, 7, 15, 64]);
    HostPlan {
        nics,
        tx_caps: TxCaps { max_segments: segments, max_burst_bytes: 65_507 },
        tx_batch: rng.pick(&[1, 3, 32, 64]),
        tx_id: if rng.percent(25) { TxId::Counter } else { TxId::Burst },
        rx_id: if guess { RxId::Guess } else { RxId::Known },
        coalesce_ns: 0,
    }
}

/// Makes some ports coalesce received packets, as sockets do. Drawn separately, so that everything
/// else about a seed stays the same.
pub(crate) fn draw_coalescing(seed: u64, hosts: &mut [HostPlan]) {
    let rng = &mut SimRng::new(seed, COALESCING);
    for host in hosts {
        host.coalesce_ns = rng.pick(&[0, 1, 4, 10]) * MICROSECOND;
    }
}

/// Makes some hosts receive as through shared memory. Drawn separately, so that everything else
/// about a seed stays the same.
pub(crate) fn draw_memory(seed: u64, hosts: &mut [HostPlan]) {
    let rng = &mut SimRng::new(seed, MEMORY);
    for host in hosts {
        if rng.percent(25) {
            host.rx_id = RxId::Memory;
        }
    }
}

/// Gives some devices several lanes. Drawn separately, so that everything else about a seed stays
/// the same.
pub(crate) fn draw_lanes(seed: u64, hosts: &mut [HostPlan]) {
    let rng = &mut SimRng::new(seed, LANES);
    for nic in hosts.iter_mut().flat_map(|host| &mut host.nics) {
        nic.lanes = rng.pick(&[1, 1, 2, 3]);
    }
}

fn draw_nic(rng: &mut SimRng) -> NicPlan {
    NicPlan {
        lanes: 1,
        window_bytes: rng.pick(&[1 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10]),
        one_cq: rng.percent(50),
        event_driven: rng.percent(30),
        poll_interval_ns: if rng.percent(25) { rng.range(1, 200) * MICROSECOND } else { 0 },
        poll_batch: rng.pick(&[1, 2, 16]),
        srq: rng.percent(30).then(|| SrqPlan {
            depth: rng.pick(&[2, 4, 16]),
            repost_ns: if rng.percent(40) { rng.range(1, 300) * MICROSECOND } else { 0 },
        }),
    }
}

pub(crate) fn draw_link(rng: &mut SimRng, delay_ns: u64) -> LinkConfig {
    let queue_bytes = rng.pick(&[16 << 20, 16 << 20, 4 << 20, 1 << 20, 128 << 10]);
    let kmin_bytes = rng.pick(&[2_000, 10_000, 50_000]);
    LinkConfig {
        rate_bps: Some(rng.pick(&[1, 10, 10, 25, 100]) * 1_000_000_000),
        delay_ns,
        queue_bytes,
        ecn: rng.percent(50).then(|| Ecn {
            kmin_bytes,
            kmax_bytes: kmin_bytes * 4,
            pmax: Prob::new(0.2),
        }),
    }
}

pub(crate) fn draw_faults(rng: &mut SimRng, severity: Severity, guess: bool) -> Faults {
    // Mild loss stays far below what could hit eight attempts in a row by chance.
    let scale = match severity {
        Severity::None => return Faults::default(),
        Severity::Mild => 0.002,
        Severity::Rough => 0.03,
    };
    let some = |rng: &mut SimRng, share: u64| {
        if rng.percent(share) {
            Prob::new(scale * rng.range(1, 100) as f64 / 50.0)
        } else {
            Prob::NEVER
        }
    };
    let loss = match rng.below(3) {
        0 => Loss::None,
        1 => Loss::Iid(some(rng, 100)),
        _ => draw_bursts(rng, severity, scale),
    };
    Faults {
        loss,
        duplicate: some(rng, 50),
        reorder: some(rng, 50),
        reorder_ns: rng.pick(&[5, 20, 60]) * MICROSECOND,
        corrupt: some(rng, 40),
        corruption: if guess { Corruption::OneBit } else { Corruption::Anything },
        jitter_ns: if rng.percent(30) { rng.range(1, 20) * MICROSECOND } else { 0 },
    }
}

/// Bursts of losses that make up `rate` of all packets.
///
/// They end after packets, not after time: on an otherwise quiet link, a long one takes all
/// attempts of a request. Mild ones are so short that two of them, one in each direction, do not.
fn draw_bursts(rng: &mut SimRng, severity: Severity, rate: f64) -> Loss {
    let packets = rng.range(2, 12);
    match severity {
        Severity::Rough => Loss::GilbertElliott(GilbertElliott::bursts(rate, packets as f64)),
        Severity::None | Severity::Mild => {
            let packets = packets.min(3) as u32;
            let begin = Prob::new(rate / f64::from(packets));
            Loss::Bursts(Bursts { begin, packets, loss: Prob::ALWAYS })
        }
    }
}

fn draw_conns(
    rng: &mut SimRng,
    hosts: &[HostPlan],
    nic_count: usize,
    rtt_ns: u64,
    heal_ns: u64,
) -> Vec<ConnPlan> {
    let count = rng.range(2, 7);
    let budget = BYTE_BUDGET / (count * 2);
    let has_srq: Vec<bool> =
        hosts.iter().flat_map(|h| h.nics.iter().map(|n| n.srq.is_some())).collect();
    let types = [QpType::Rc, QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud];
    (0..count)
        .map(|_| {
            let qp_type = rng.pick(&types);
            let mtu = rng.pick(&Mtu::ALL);
            let nics = draw_two(rng, nic_count);
            let mut conn = ConnPlan {
                qp_type,
                role: Role::Normal,
                mtu,
                ends: nics.map(|nic| draw_end(rng, nic, rtt_ns)),
                reconnects_ns: Vec::new(),
                drains_ns: Vec::new(),
            };
            for side in 0..2 {
                let peer_srq = qp_type == QpType::Rc && has_srq[nics[1 - side]] && rng.percent(70);
                conn.ends[1 - side].uses_srq = peer_srq;
                let mix = OpMix { qp_type, mtu, peer_srq, budget, heal_ns };
                conn.ends[side].ops = draw_ops(rng, &mix, &conn.ends[side]);
            }
            if qp_type == QpType::Rc && rng.percent(12) {
                conn.reconnects_ns.push(rng.below(heal_ns));
            }
            if qp_type != QpType::Ud && rng.percent(15) {
                conn.drains_ns.push((rng.below(2) as usize, rng.below(heal_ns)));
            }
            conn
        })
        .collect()
}

/// Two engines, sometimes the same one: a host talks to itself too.
pub(super) fn draw_two(rng: &mut SimRng, nic_count: usize) -> [usize; 2] {
    let a = rng.below(nic_count as u64) as usize;
    let b = rng.below(nic_count as u64) as usize;
    if a == b && !rng.percent(20) { [a, (b + 1) % nic_count] } else { [a, b] }
}

fn draw_sacrifices(rng: &mut SimRng, nic_count: usize, rtt_ns: u64) -> Vec<ConnPlan> {
    let count = rng.pick(&[0, 1, 1, 2, 3]);
    (0..count)
        .map(|_| {
            let crime = rng.pick(&Crime::ALL);
            let mtu = rng.pick(&Mtu::ALL);
            let mut ends = draw_two(rng, nic_count).map(|nic| draw_end(rng, nic, rtt_ns));
            if crime == Crime::CqOverflow {
                ends[0].send_depth = OVERFLOWING_SENDS;
            }
            if crime == Crime::NeverReady {
                ends[0].rnr_retry = rng.range(0, 3) as u8;
            }
            ends[0].ops = draw_crime_ops(rng, crime, mtu, &ends[0]);
            let role = Role::Sacrificial(crime);
            ConnPlan {
                qp_type: QpType::Rc,
                role,
                mtu,
                ends,
                reconnects_ns: Vec::new(),
                drains_ns: Vec::new(),
            }
        })
        .collect()
}

pub(crate) fn draw_end(rng: &mut SimRng, nic: usize, rtt_ns: u64) -> EndPlan {
    // Half of all QPs wrap their PSN within their first packets.
    let psn = match rng.below(4) {
        0 => 0xff_ffff - rng.below(8) as u32,
        1 => 0xff_ffff - rng.below(400) as u32,
        2 => 0x80_0000 - rng.below(400) as u32,
        _ => rng.below(1 << 24) as u32,
    };
    // The shortest timeout code that outlasts a round trip, and a few longer ones.
    let shortest = (rtt_ns / 4_096).max(1).ilog2() as u64 + 1;
    let slow_receiver = rng.percent(30);
    EndPlan {
        nic,
        psn,
        send_depth: rng.pick(&[1, 2, 4, 16, 64]),
        recv_depth: rng.pick(&[1, 2, 4, 16, 64]),
        uses_srq: false,
        rd_atomic: rng.pick(&[1, 1, 2, 4, 16]),
        timeout: rng.range(shortest.max(5), shortest.max(5) + 3) as u8,
        retry_count: 7,
        rnr_retry: 7,
        rnr_timer: rng.range(1, 8) as u8,
        signal_all: rng.percent(15),
        max_inline: rng.pick(&[0, 64, 256]),
        rate: draw_rate(rng),
        window: rng.percent(25).then(|| rng.pick(&[8 << 10, 32 << 10, 512 << 10])),
        recv_start_ns: if slow_receiver { rng.range(1, 500) * MICROSECOND } else { 0 },
        recv_delay_ns: if slow_receiver { rng.range(1, 200) * MICROSECOND } else { 0 },
        fec: None,
        ops: Vec::new(),
    }
}

fn draw_rate(rng: &mut SimRng) -> RateControl {
    match rng.below(4) {
        0 => RateControl::Fixed { bits_per_sec: rng.pick(&[200, 1_000, 10_000]) * 1_000_000 },
        1 => RateControl::Dcqcn(DcqcnParams::new(10_000_000_000)),
        _ => RateControl::Unlimited,
    }
}
