//! Drawing a scenario from its seed.

use bowline_link::{Corruption, Faults, GilbertElliott, LinkConfig, Loss, Prob};
use bowline_multicast::Policy;
use bowline_nic::Mtu;

use super::scenario::{Action, GroupPlan, Kind, MemberPlan, MessagePlan, MulticastScenario, Shape};
use crate::attack::{AttackPlan, Attacker};
use crate::rng::SimRng;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const GIGABIT: u64 = 1_000_000_000;
/// Apart from the streams of the other storms, of links and of memory.
const STREAM: u64 = 0x3c57;
const TRUNK_STREAM: u64 = 0x3c58;
/// Most requests of a group: they fit its send queue.
const MAX_MESSAGES: u64 = 30;
/// Most packets of a message.
const MAX_PACKETS: u64 = 24;
const MAX_MEMBERS: u64 = 16;
/// Several timeouts of the sender's.
const PATIENCE_NS: [u64; 3] = [30 * MILLISECOND, 60 * MILLISECOND, 200 * MILLISECOND];

impl MulticastScenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, attacker: Attacker) -> MulticastScenario {
        let rng = &mut SimRng::new(seed, STREAM);
        let hosts = rng.range(2, 16) as usize;
        let shape = match rng.below(4) {
            0 => Shape::Star,
            1 | 2 => Shape::LeafSpine([rng.range(2, 5), rng.range(1, 3)].map(|n| n as usize)),
            _ => Shape::FatTree,
        };
        let cable = LinkConfig {
            rate_bps: Some(rng.pick(&[1, 10, 100]) * GIGABIT),
            delay_ns: rng.pick(&[1, 10, 100]) * MICROSECOND,
            queue_bytes: rng.pick(&[16 << 20, 1 << 20, 64 << 10]),
            ecn: None,
        };
        let span_ns = rng.pick(&[MILLISECOND, 10 * MILLISECOND, 60 * MILLISECOND]);
        let faults = draw_faults(rng);
        let mut groups: Vec<GroupPlan> =
            (0..rng.range(1, 3)).map(|_| draw_group(rng, hosts)).collect();
        let mut actions = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            draw_traffic(rng, index, group, span_ns, &mut actions);
            draw_trouble(rng, index, group, span_ns, &mut actions);
        }
        if rng.percent(25) {
            draw_restarts(rng, span_ns, &mut actions);
        }
        let (v6, ecmp) = (rng.percent(20), rng.percent(60));
        let attack = AttackPlan::draw(seed, attacker, hosts, span_ns);
        for burst in attack.iter().flat_map(|attack| &attack.bursts) {
            actions.push((burst.at_ns, Action::Attack(burst.forgeries)));
        }
        let rng = &mut SimRng::new(seed, TRUNK_STREAM);
        for (index, group) in groups.iter_mut().enumerate() {
            group.has_trunk = rng.percent(50);
            if group.has_trunk && rng.percent(20) {
                actions.push((rng.below(span_ns), Action::LoseTrunk(index)));
            }
        }
        let end = actions.iter().map(|(at, _)| *at).max().unwrap_or(0);
        actions.push((end.max(2 * span_ns) + 1, Action::Heal));
        actions.sort_by_key(|(at, _)| *at);
        MulticastScenario { seed, shape, hosts, v6, ecmp, cable, faults, groups, actions, attack }
    }
}

/// Faults of links, which cycle through them.
fn draw_faults(rng: &mut SimRng) -> Vec<Faults> {
    if rng.percent(15) {
        return vec![Faults::default()];
    }
    // A few links are bad, or all are slightly bad.
    let [links, worst] = rng.pick(&[[1, 20], [7, 100], [5, 60]]);
    let mut faults: Vec<Faults> =
        (0..links).map(|_| draw_fault(rng, worst as f64 / 1_000.0)).collect();
    if rng.percent(40) {
        faults.extend([Faults::default(); 4]);
    }
    faults
}

fn draw_fault(rng: &mut SimRng, worst: f64) -> Faults {
    let some = |rng: &mut SimRng, share: u64, most: f64| {
        let p = most * rng.range(1, 100) as f64 / 100.0;
        if rng.percent(share) { Prob::new(p) } else { Prob::NEVER }
    };
    let loss = match rng.below(4) {
        0 => Loss::None,
        1 => Loss::GilbertElliott(GilbertElliott::bursts(worst / 2.0, rng.range(2, 30) as f64)),
        _ => Loss::Iid(some(rng, 100, worst)),
    };
    Faults {
        loss,
        duplicate: some(rng, 30, worst),
        reorder: some(rng, 40, worst),
        reorder_ns: rng.pick(&[5 * MICROSECOND, 100 * MICROSECOND, 3 * MILLISECOND]),
        corrupt: some(rng, 40, worst),
        corruption: Corruption::Anything,
        jitter_ns: if rng.percent(30) { rng.range(1, 100) * MICROSECOND } else { 0 },
    }
}

fn draw_group(rng: &mut SimRng, hosts: usize) -> GroupPlan {
    let sender = rng.below(hosts as u64) as usize;
    let messages = draw_messages(rng);
    let (first, count) = (rng.pick(&[1, 2, 3, MAX_MEMBERS]), rng.range(0, 2));
    let first = rng.range(1, first);
    let joiners = if rng.percent(40) { count.min(MAX_MEMBERS - first) } else { 0 };
    let slow_percent = rng.pick(&[0, 0, 20, 100]);
    let mut members: Vec<MemberPlan> = (0..first + joiners)
        .map(|member| {
            // Anywhere but at the sender's host, perhaps at one host twice.
            let host = (sender + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
            let joins_before =
                if member < first { 0 } else { rng.range(1, messages.len() as u64) as usize };
            let pad = rng.range(8, 200) as u32;
            MemberPlan { host, joins_before, pad, is_slow: rng.percent(slow_percent) }
        })
        .collect();
    members.sort_by_key(|member| member.joins_before);
    let any = rng.below(1 << 24) as u32;
    GroupPlan {
        sender,
        members,
        mtu: rng.pick(&[Mtu::B256, Mtu::B256, Mtu::B1024, Mtu::B4096]),
        // Numbers start shortly before they wrap around, or before their sign changes.
        first_psn: rng.pick(&[0xff_fff0, 0x7f_fff0, 0, any]),
        as_in_the_paper: rng.percent(15),
        policy: draw_policy(rng, first as usize),
        messages,
        has_trunk: false,
    }
}

fn draw_policy(rng: &mut SimRng, members: usize) -> Policy {
    let after_ns = rng.pick(&PATIENCE_NS);
    match rng.below(4) {
        0 => Policy::Fail,
        1 => Policy::Quorum { k: rng.range(1, members as u64) as usize, after_ns },
        _ => Policy::Evict { after_ns, least: rng.range(1, members as u64) as usize },
    }
}

fn draw_messages(rng: &mut SimRng) -> Vec<MessagePlan> {
    let count = rng.range(1, MAX_MESSAGES);
    let mut messages: Vec<MessagePlan> = (0..count)
        .map(|_| {
            let imm = rng.percent(50).then(|| rng.bits() as u32);
            let kind = if rng.percent(50) { Kind::Send(imm) } else { Kind::Write(imm) };
            let len = match rng.below(6) {
                0 => rng.below(2),
                1 => rng.range(1, 4) * 256,
                2 => rng.range(1, 256),
                _ => rng.below(MAX_PACKETS * 256),
            };
            MessagePlan { kind, len: len as u32 }
        })
        .collect();
    if rng.percent(15) {
        // The last one: it ends the group.
        let kind = rng.pick(&[Kind::Read, Kind::FetchAdd, Kind::WriteBeyond]);
        messages.push(MessagePlan { kind, len: 8 });
    }
    messages
}

fn draw_traffic(
    rng: &mut SimRng,
    index: usize,
    group: &GroupPlan,
    span_ns: u64,
    actions: &mut Vec<(u64, Action)>,
) {
    let span = if rng.percent(30) { 1 } else { span_ns };
    actions.extend(group.messages.iter().map(|_| (rng.below(span), Action::Post(index))));
    let receives = group.messages.iter().filter(|m| m.kind.takes_receive()).count();
    for (member, _) in group.members.iter().enumerate().filter(|(_, plan)| plan.is_slow) {
        let times = (0..receives).map(|_| rng.below(2 * span_ns));
        actions.extend(times.map(|at| (at, Action::Receive(index, member))));
    }
}

fn draw_trouble(
    rng: &mut SimRng,
    index: usize,
    group: &GroupPlan,
    span_ns: u64,
    actions: &mut Vec<(u64, Action)>,
) {
    let any = |rng: &mut SimRng| rng.below(group.members.len() as u64) as usize;
    if rng.percent(25) {
        for _ in 0..rng.range(1, 4) {
            let (at, member) = (rng.below(span_ns), any(rng));
            let until = at + rng.pick(&[100 * MICROSECOND, 5 * MILLISECOND, 80 * MILLISECOND]);
            actions.push((at, Action::Pause(index, member, until)));
        }
    }
    for (share, action) in [
        (20, Action::Kill as fn(usize, usize) -> Action),
        (20, Action::Leave as fn(usize, usize) -> Action),
        (10, Action::Revoke as fn(usize, usize) -> Action),
    ] {
        if rng.percent(share) {
            actions.extend(
                (0..rng.range(1, 2)).map(|_| (rng.below(span_ns), action(index, any(rng)))),
            );
        }
    }
}

fn draw_restarts(rng: &mut SimRng, span_ns: u64, actions: &mut Vec<(u64, Action)>) {
    for _ in 0..rng.range(1, 3) {
        let (at, switch) = (rng.below(span_ns), rng.bits() as u16 as usize);
        let outage = rng.pick(&[0, 50 * MICROSECOND, 2 * MILLISECOND]);
        actions.push((at, Action::Restart(switch)));
        actions.push((at + outage, Action::Reinstall(switch)));
    }
}
