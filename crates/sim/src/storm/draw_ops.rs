//! Drawing what an end sends.

use bowline_nic::{Mtu, QpType};

use super::crime::Crime;
use super::scenario::{EndPlan, OpKind, OpPlan, Target};
use crate::rng::SimRng;

/// Parameters of an end's operations.
pub(crate) struct OpMix {
    pub(crate) qp_type: QpType,
    pub(crate) mtu: Mtu,
    pub(crate) peer_srq: bool,
    /// Payload bytes of all its operations.
    pub(crate) budget: u64,
    /// Operations spread over this time.
    pub(crate) heal_ns: u64,
}

/// Longest message.
const MAX_LEN: u64 = 64 << 10;
/// Longest message into receives that any message may use, so that all of them can be that long.
const MAX_SHARED_LEN: u64 = 8 << 10;
/// Longest READ of the few that are longer than any message.
pub(super) const LONG_READ: u64 = 600 << 10;
const MAX_OPS: usize = 60;
const MAX_PIECES: u64 = 4;
/// Bytes of a region that a SEND may revoke.
pub(super) const REVOCABLE_BYTES: u32 = 64;

pub(crate) fn draw_ops(rng: &mut SimRng, mix: &OpMix, end: &EndPlan) -> Vec<OpPlan> {
    let count = rng.range(1, MAX_OPS as u64) as usize;
    let mut left = mix.budget;
    let busy = rng.percent(50);
    let mut ops = Vec::with_capacity(count);
    for _ in 0..count {
        let kind = draw_kind(rng, mix.qp_type);
        let mut op = draw_op(rng, kind, mix, end);
        if !busy && rng.percent(30) {
            op.think_ns = rng.below(mix.heal_ns / 8);
        }
        if u64::from(op.len) > left {
            op.len = rng.below(left.min(64) + 1) as u32;
            op.inline &= op.len <= end.max_inline;
        }
        if kind.is_atomic() {
            op.len = 8;
        }
        if kind == OpKind::Read && mix.mtu >= Mtu::B1024 && rng.percent(2) {
            // Long enough that a requester may have to ask for it in pieces.
            op.len = rng.range(MAX_LEN, LONG_READ) as u32;
        }
        left -= u64::from(op.len).min(left);
        ops.push(op);
    }
    limit_unsignaled(&mut ops, end);
    ops
}

/// A queue full of unsignaled requests would wait for a completion that never comes.
fn limit_unsignaled(ops: &mut [OpPlan], end: &EndPlan) {
    let most = (end.send_depth / 2) as usize;
    let mut silent = 0;
    for op in ops.iter_mut() {
        silent = if op.signaled || end.signal_all { 0 } else { silent + 1 };
        if silent > most || end.send_depth == 1 {
            op.signaled = true;
            silent = 0;
        }
    }
    if let Some(last) = ops.last_mut() {
        last.signaled = true;
    }
}

fn draw_kind(rng: &mut SimRng, qp_type: QpType) -> OpKind {
    const RC: [OpKind; 12] = [
        OpKind::Send,
        OpKind::Send,
        OpKind::SendImm,
        OpKind::SendInvalidate,
        OpKind::Write,
        OpKind::Write,
        OpKind::WriteImm,
        OpKind::Read,
        OpKind::Read,
        OpKind::CompareSwap,
        OpKind::FetchAdd,
        OpKind::FetchAdd,
    ];
    const UC: [OpKind; 4] = [OpKind::Send, OpKind::SendImm, OpKind::Write, OpKind::WriteImm];
    const UD: [OpKind; 2] = [OpKind::Send, OpKind::SendImm];
    match qp_type {
        QpType::Rc | QpType::Xrc => rng.pick(&RC),
        QpType::Uc | QpType::Xp => rng.pick(&UC),
        QpType::Ud => rng.pick(&UD),
    }
}

fn draw_op(rng: &mut SimRng, kind: OpKind, mix: &OpMix, end: &EndPlan) -> OpPlan {
    let shared = mix.qp_type == QpType::Uc || (mix.peer_srq && kind.is_send());
    let max = match mix.qp_type {
        QpType::Ud => u64::from(mix.mtu.bytes()),
        _ if shared => MAX_SHARED_LEN,
        _ => MAX_LEN,
    };
    let len = draw_len(rng, u64::from(mix.mtu.bytes()), max) as u32;
    let can_inline = matches!(
        kind,
        OpKind::Send | OpKind::SendImm | OpKind::SendInvalidate | OpKind::Write | OpKind::WriteImm
    );
    OpPlan {
        kind,
        len,
        pieces: if kind.is_atomic() || rng.percent(60) {
            1
        } else {
            rng.range(2, MAX_PIECES) as u8
        },
        signaled: rng.percent(60),
        fence: mix.qp_type == QpType::Rc && rng.percent(10),
        solicited: rng.percent(20),
        inline: can_inline && len <= end.max_inline && rng.percent(70),
        target: if rng.percent(40) { Target::Earlier(rng.below(4) as u8) } else { Target::Fresh },
        choice: rng.below(256) as u8,
        bad: false,
        stray: draw_stray(rng, kind, mix.qp_type),
        think_ns: 0,
    }
}

fn draw_stray(rng: &mut SimRng, kind: OpKind, qp_type: QpType) -> bool {
    let can_vanish = match qp_type {
        QpType::Rc | QpType::Xrc => false,
        QpType::Uc | QpType::Xp => kind.is_write(),
        QpType::Ud => true,
    };
    can_vanish && rng.percent(5)
}

/// Lengths around packet boundaries, and a few others.
fn draw_len(rng: &mut SimRng, mtu: u64, max: u64) -> u64 {
    let near = |rng: &mut SimRng, len: u64| (len + rng.below(3)).saturating_sub(1);
    let len = match rng.below(10) {
        0 => 0,
        1 => rng.range(1, 9),
        2 | 3 => near(rng, mtu),
        4 => near(rng, mtu * 2),
        5 => {
            let packets = rng.range(3, 8);
            near(rng, mtu * packets)
        }
        6 => rng.below(mtu * 4),
        7 => rng.below(2_000),
        8 => rng.below(300),
        _ => rng.below(max + 1),
    };
    len.min(max)
}

/// A few good requests, the bad one, and a few after it that must be flushed.
pub(super) fn draw_crime_ops(
    rng: &mut SimRng,
    crime: Crime,
    mtu: Mtu,
    end: &EndPlan,
) -> Vec<OpPlan> {
    let mix = OpMix { qp_type: QpType::Rc, mtu, peer_srq: false, budget: 0, heal_ns: 0 };
    let op = |rng: &mut SimRng, kind: OpKind| {
        let mut op = draw_op(rng, kind, &mix, end);
        op.len = draw_len(rng, u64::from(mtu.bytes()), 8_192).max(2) as u32;
        op.len = if kind.is_atomic() { 8 } else { op.len };
        op.inline = false;
        op.target = Target::Fresh;
        op
    };
    let good = rng.range(1, 4);
    let behind = rng.range(1, 3);
    let (bad, bad_count) = match crime {
        Crime::WriteBadKey
        | Crime::WriteOutOfBounds
        | Crime::WriteNoRight
        | Crime::WriteRevokedKey
        | Crime::WriteNoQpRight => (OpKind::Write, 1),
        Crime::CqOverflow => (OpKind::Write, end.send_depth as usize),
        Crime::ReadBadKey | Crime::ReadOutOfBounds | Crime::ReadNoRight => (OpKind::Read, 1),
        Crime::AtomicNoRight => (rng.pick(&[OpKind::FetchAdd, OpKind::CompareSwap]), 1),
        Crime::SendTooLong
        | Crime::SendBadLocalKey
        | Crime::RecvBadLocalKey
        | Crime::NeverReady => (OpKind::Send, 1),
        Crime::PeerGone | Crime::RemoteDereg | Crime::LocalDereg => (OpKind::Write, 12),
    };
    let good = match crime {
        Crime::WriteNoQpRight | Crime::CqOverflow => 0,
        _ => good,
    };
    let mut ops: Vec<OpPlan> = (0..good).map(|_| op(rng, OpKind::Write)).collect();
    if crime == Crime::WriteRevokedKey {
        ops.push(op(rng, OpKind::SendInvalidate));
    }
    let is_bad = !crime.is_gradual() && crime != Crime::CqOverflow;
    ops.extend((0..bad_count).map(|_| OpPlan { bad: is_bad, ..op(rng, bad) }));
    match crime {
        Crime::CqOverflow => ops.iter_mut().for_each(|op| op.signaled = true),
        _ => ops.extend((0..behind).map(|_| op(rng, OpKind::Write))),
    }
    if crime == Crime::WriteRevokedKey {
        // Within the bounds of what was revoked.
        ops.iter_mut().filter(|op| op.bad).for_each(|op| op.len = op.len.min(REVOCABLE_BYTES));
    }
    if crime.is_gradual() {
        for op in &mut ops {
            op.think_ns = rng.below(200_000);
        }
    }
    limit_unsignaled(&mut ops, end);
    ops
}
