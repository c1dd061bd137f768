//! Drawing a scenario from its seed.

use bowline_link::{Corruption, Faults, GilbertElliott, LinkConfig, Loss, Prob};
use bowline_nic::Mtu;
use bowline_sdr::{ImmLayout, ReliableConfig, SdrConfig};

use super::scenario::{MessagePlan, PlainMessage, PlainPlan, SdrScenario};
use crate::attack::{AttackPlan, Attacker};
use crate::rng::SimRng;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Apart from the streams of the other storm, of links and of memory.
const STREAM: u64 = 0x5d1;
/// Coalescing of ports has its own stream, so that everything else about a seed stays the same.
const COALESCING: u64 = 0x9a1;
/// Payload packets of a direction, roughly: limits a seed to a few thousand packets.
const PACKET_BUDGET: u64 = 250;

impl SdrScenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, attacker: Attacker) -> SdrScenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let coalesce_ns = SimRng::new(seed, COALESCING).pick(&[0, 0, 4, 10]) * MICROSECOND;
        let cable = LinkConfig {
            rate_bps: Some(rng.pick(&[1, 10, 25, 100]) * SECOND),
            delay_ns: rng.pick(&[1, 20, 500, 5_000]) * MICROSECOND,
            queue_bytes: rng.pick(&[16 << 20, 16 << 20, 1 << 20, 64 << 10]),
            ecn: None,
        };
        let faults = [draw_faults(rng), draw_faults(rng)];
        let heal_ns = rng.range(10, 200) * MILLISECOND;
        let may_fail = rng.percent(10);
        let mut reliable = draw_reliable(rng);
        let mut outages = Vec::new();
        if may_fail {
            reliable.timeout_ns = 300 * MILLISECOND;
            outages.push((rng.below(heal_ns), rng.range(400, 900) * MILLISECOND));
        } else if rng.percent(25) {
            outages.push((rng.below(heal_ns), rng.range(1, 50) * MILLISECOND));
        }
        let end_ns = outages.iter().map(|(at, ns)| at + ns).fold(heal_ns, u64::max);
        let pauses = if rng.percent(25) {
            let host = rng.below(2) as usize;
            vec![(host, rng.below(heal_ns), rng.range(50, 20_000) * MICROSECOND)]
        } else {
            Vec::new()
        };
        let messages = [0, 1].map(|_| draw_messages(rng, &reliable, heal_ns));
        let plain = draw_plain(rng, heal_ns);
        SdrScenario {
            seed,
            coalesce_ns,
            cable,
            faults,
            pauses,
            outages,
            heal_ns: end_ns,
            may_fail,
            reliable,
            messages,
            plain,
            attack: AttackPlan::draw(seed, attacker, 2, end_ns),
            sealed: None,
        }
    }
}

fn draw_faults(rng: &mut SimRng) -> Faults {
    if rng.percent(10) {
        return Faults::default();
    }
    let some = |rng: &mut SimRng, share: u64, most: f64| {
        let p = most * rng.range(1, 100) as f64 / 100.0;
        if rng.percent(share) { Prob::new(p) } else { Prob::NEVER }
    };
    let loss = match rng.below(5) {
        0 => Loss::None,
        1 => Loss::Iid(some(rng, 100, 0.02)),
        2 => Loss::Iid(some(rng, 100, 0.5)),
        // Sometimes longer than a group with its parity.
        3 => Loss::GilbertElliott(GilbertElliott::bursts(0.1, rng.range(2, 80) as f64)),
        // Hardly anything arrives, acknowledgements included.
        _ => Loss::Iid(Prob::new(0.9)),
    };
    Faults {
        loss,
        duplicate: some(rng, 50, 0.2),
        reorder: some(rng, 60, 0.3),
        // Long enough for IDs to wrap around meanwhile.
        reorder_ns: rng.pick(&[20, 500, 5_000, 30_000]) * MICROSECOND,
        corrupt: some(rng, 40, 0.05),
        corruption: Corruption::Anything,
        jitter_ns: if rng.percent(30) { rng.range(1, 2_000) * MICROSECOND } else { 0 },
    }
}

fn draw_sdr(rng: &mut SimRng, id_bits: u8) -> SdrConfig {
    let mtu = rng.pick(&[Mtu::B256, Mtu::B256, Mtu::B1024, Mtu::B4096]);
    let user_bits = rng.pick(&[0, 2, 4, 8]);
    let layout = ImmLayout::new(id_bits, 32 - id_bits - user_bits, user_bits);
    SdrConfig {
        layout: layout.expect("the bits add up to 32"),
        mtu,
        chunk_bytes: mtu.bytes() << rng.below(4),
        generations: rng.pick(&[1, 2, 4]),
        channels: rng.pick(&[1, 1, 2, 4]),
        rate_bps: rng.percent(25).then(|| rng.pick(&[200_000_000, SECOND])),
        ..SdrConfig::default()
    }
}

fn draw_reliable(rng: &mut SimRng) -> ReliableConfig {
    let id_bits = rng.range(3, 6) as u8;
    let sdr = draw_sdr(rng, id_bits);
    let k = rng.pick(&[1, 2, 4, 8, 32]);
    let m = rng.pick(&[0, 1, 2, 4, 8]).min(k);
    let groups = rng.range(1, if m == 0 { 4 } else { 3 });
    let group_bytes = u64::from(k) * u64::from(sdr.chunk_bytes);
    // Small enough for a few messages within the budget.
    let most = (PACKET_BUDGET / 2) * u64::from(sdr.mtu.bytes());
    let max_write = (group_bytes * groups - rng.below(group_bytes)).clamp(1, most);
    ReliableConfig { sdr, max_write, k, m, timeout_ns: 60 * SECOND, ..ReliableConfig::default() }
}

fn draw_times(rng: &mut SimRng, count: usize, heal_ns: u64) -> Vec<u64> {
    // All at once, or one after the other.
    let span = if rng.percent(30) { 1 } else { heal_ns };
    let mut times: Vec<u64> = (0..count).map(|_| rng.below(span)).collect();
    times.sort_unstable();
    times
}

fn draw_len(rng: &mut SimRng, most: u64, unit: u64) -> u64 {
    match rng.below(8) {
        0 => 0,
        1 => 1,
        2 => most,
        3 => (rng.range(1, (most / unit).max(1)) * unit).min(most),
        _ => rng.range(1, most),
    }
}

fn draw_messages(rng: &mut SimRng, config: &ReliableConfig, heal_ns: u64) -> Vec<MessagePlan> {
    let count = rng.range(0, 12) as usize;
    let writes = draw_times(rng, count, heal_ns);
    let recvs = draw_times(rng, count, heal_ns);
    let mtu = u64::from(config.sdr.mtu.bytes());
    let mut budget = PACKET_BUDGET * mtu;
    let times = writes.into_iter().zip(recvs);
    times
        .map(|(write_ns, recv_ns)| {
            let most = config.max_write.min(budget.max(mtu));
            let len = draw_len(rng, most, config.sdr.chunk_bytes.into());
            budget = budget.saturating_sub(len);
            let capacity = match rng.below(20) {
                0 => len.saturating_sub(1),
                1..6 => config.max_write,
                6..10 => rng.range(len, config.max_write),
                _ => len,
            };
            let scheme = rng.below(config.schemes.len() as u64) as usize;
            let imm = rng.percent(50).then(|| rng.bits() as u32);
            MessagePlan { len, capacity, scheme, imm, write_ns, recv_ns }
        })
        .collect()
}

fn draw_plain(rng: &mut SimRng, heal_ns: u64) -> PlainPlan {
    let id_bits = rng.range(1, 4) as u8;
    let mut config = draw_sdr(rng, id_bits);
    config.max_message = rng.range(1, 40) * u64::from(config.mtu.bytes());
    let messages = [0, 1].map(|_| draw_plain_messages(rng, &config, heal_ns));
    PlainPlan { config, messages }
}

fn draw_plain_messages(rng: &mut SimRng, config: &SdrConfig, heal_ns: u64) -> Vec<PlainMessage> {
    let count = rng.range(0, 24) as usize;
    let sends = draw_times(rng, count, heal_ns);
    let recvs = draw_times(rng, count, heal_ns);
    let mtu = u64::from(config.mtu.bytes());
    // Early completion makes packets late.
    let patience_ns = rng.pick(&[10 * MICROSECOND, MILLISECOND, 20 * MILLISECOND, heal_ns]);
    let times = sends.into_iter().zip(recvs);
    times
        .map(|(send_ns, recv_ns)| {
            let len = draw_len(rng, config.max_message.min(20 * mtu), config.chunk_bytes.into());
            let capacity = match rng.below(20) {
                0 => len / 2,
                1..4 => config.max_message,
                _ => len,
            };
            let packets = len.div_ceil(mtu).max(1);
            let pieces = if rng.percent(40) {
                // Some packets twice, some perhaps never.
                let piece = |rng: &mut SimRng| {
                    let first = rng.below(packets);
                    (first, rng.range(1, packets - first))
                };
                (0..rng.range(1, 5)).map(|_| piece(rng)).collect()
            } else {
                Vec::new()
            };
            PlainMessage {
                len,
                capacity,
                imm: rng.percent(50).then(|| rng.bits() as u32),
                pieces,
                send_ns,
                recv_ns,
                complete_ns: rng.below(patience_ns),
            }
        })
        .collect()
}
