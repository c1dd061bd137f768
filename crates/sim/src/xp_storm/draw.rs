//! Drawing a scenario from its seed.

use bowline_link::{Corruption, Faults, GilbertElliott, LinkConfig, Loss, Prob};
use bowline_nic::{Mtu, XpOptions};

use super::scenario::{Kind, MessagePlan, ReceivePlan, XpScenario};
use crate::attack::{AttackPlan, Attacker};
use crate::rng::SimRng;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Apart from the streams of the other storms, of links and of memory.
const STREAM: u64 = 0x0e9;
/// Most requests of a host.
const MAX_MESSAGES: u64 = 40;
/// Most packets of a message.
const MAX_PACKETS: u64 = 40;

impl XpScenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, attacker: Attacker) -> XpScenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let coalesce_ns = rng.pick(&[0, 0, 4, 20]) * MICROSECOND;
        let cable = LinkConfig {
            rate_bps: Some(rng.pick(&[1, 10, 100]) * SECOND),
            delay_ns: rng.pick(&[1, 20, 500]) * MICROSECOND,
            queue_bytes: rng.pick(&[16 << 20, 1 << 20, 16 << 10]),
            ecn: None,
        };
        let span_ns = rng.pick(&[100, 1_000, 10_000]) * MICROSECOND;
        let faults = [draw_faults(rng, span_ns), draw_faults(rng, span_ns)];
        let mtu = rng.pick(&[Mtu::B256, Mtu::B256, Mtu::B1024, Mtu::B4096]);
        let options = [0, 1].map(|_| XpOptions {
            window: rng.pick(&[1, 1, 1, 2, 4, 8, 16]),
            grace_ns: rng.pick(&[0, 0, 20 * MICROSECOND, MILLISECOND]),
            loss_log: 2 * MAX_MESSAGES as u32,
        });
        // Numbers start shortly before they wrap around, or before their sign changes.
        let tokens = [0, 1].map(|_| {
            let any = rng.below(1 << 24) as u32;
            rng.pick(&[0xff_ffff, 0x7f_ffff, 0, any])
        });
        let rate_bps =
            [0, 1].map(|_| rng.percent(30).then(|| rng.pick(&[100_000_000, SECOND, 10 * SECOND])));
        let messages = [0, 1].map(|_| draw_messages(rng, mtu, span_ns));
        let receives = [1, 0].map(|peer: usize| draw_receives(rng, &messages[peer], span_ns));
        let swift = [0, 1].map(|_| rng.percent(30));
        XpScenario {
            seed,
            coalesce_ns,
            cable,
            faults,
            mtu,
            options,
            tokens,
            rate_bps,
            messages,
            receives,
            swift,
            attack: AttackPlan::draw(seed, attacker, 2, 2 * span_ns),
            sealed: None,
        }
    }
}

fn draw_faults(rng: &mut SimRng, span_ns: u64) -> Faults {
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
        2 => Loss::Iid(some(rng, 100, 0.3)),
        3 => Loss::GilbertElliott(GilbertElliott::bursts(0.1, rng.range(2, 80) as f64)),
        _ => Loss::Iid(Prob::new(0.8)),
    };
    Faults {
        loss,
        duplicate: some(rng, 50, 0.3),
        reorder: some(rng, 70, 0.4),
        // Sometimes past every deadline.
        reorder_ns: rng.pick(&[5 * MICROSECOND, 100 * MICROSECOND, span_ns, 4 * span_ns]),
        corrupt: some(rng, 30, 0.05),
        corruption: Corruption::Anything,
        jitter_ns: if rng.percent(40) { rng.range(1, 500) * MICROSECOND } else { 0 },
    }
}

/// When each of `count` things happens, in order.
fn draw_times(rng: &mut SimRng, count: usize, span_ns: u64) -> Vec<u64> {
    let span = if rng.percent(30) { 1 } else { span_ns };
    let mut times: Vec<u64> = (0..count).map(|_| rng.below(span)).collect();
    times.sort_unstable();
    times
}

fn draw_cuts(rng: &mut SimRng, len: u32) -> Vec<u32> {
    let mut cuts = Vec::new();
    if len > 0 && rng.percent(40) {
        cuts.extend((0..rng.range(1, 3)).map(|_| rng.below(u64::from(len) + 1) as u32));
        cuts.sort_unstable();
    }
    cuts
}

fn draw_len(rng: &mut SimRng, mtu: u64) -> u32 {
    let len = match rng.below(8) {
        0 => rng.below(2),
        1 => rng.range(1, 8) * mtu,
        2 => rng.range(1, mtu),
        _ => rng.below(MAX_PACKETS * mtu),
    };
    len as u32
}

fn draw_messages(rng: &mut SimRng, mtu: Mtu, span_ns: u64) -> Vec<MessagePlan> {
    let count = rng.range(1, MAX_MESSAGES) as usize;
    let times = draw_times(rng, count, span_ns);
    let reads = rng.percent(40);
    let strides = rng.percent(30);
    times
        .into_iter()
        .map(|at_ns| {
            let imm = rng.percent(50).then(|| rng.bits() as u32);
            let kind = match rng.below(10) {
                0 if reads => Kind::Read,
                0..5 => Kind::Send(imm),
                5..8 => Kind::Write(Some(rng.bits() as u32)),
                _ => Kind::Write(None),
            };
            let len = draw_len(rng, mtu.bytes().into());
            MessagePlan {
                kind,
                len,
                cuts: draw_cuts(rng, len),
                stride: if strides { rng.pick(&[0, 2, 4, 16, 64]) } else { 0 },
                // A READ's memory is in use until it completes.
                signaled: kind == Kind::Read || rng.percent(70),
                at_ns,
                timeout_ns: draw_timeout(rng, span_ns),
            }
        })
        .collect()
}

fn draw_timeout(rng: &mut SimRng, span_ns: u64) -> u64 {
    match rng.below(6) {
        0 => rng.below(20 * MICROSECOND),
        1 => rng.below(span_ns),
        _ => span_ns + rng.below(2 * span_ns),
    }
}

fn draw_receives(rng: &mut SimRng, peer: &[MessagePlan], span_ns: u64) -> Vec<ReceivePlan> {
    let taking: Vec<&MessagePlan> = peer.iter().filter(|m| m.kind.takes_receive()).collect();
    let early = rng.percent(60);
    let times = draw_times(rng, taking.len(), span_ns);
    taking
        .iter()
        .zip(times)
        .map(|(message, at)| {
            let room = match rng.below(20) {
                0 => message.len / 2,
                1..5 => message.len + rng.below(300) as u32,
                _ => message.len,
            };
            // WRITEs do not use a receive's buffer.
            let capacity = if let Kind::Write(_) = message.kind { 0 } else { room };
            let at_ns = if early { 0 } else { at };
            let cuts = draw_cuts(rng, capacity);
            ReceivePlan { capacity, cuts, at_ns, timeout_ns: draw_timeout(rng, span_ns) }
        })
        .collect()
}
