//! Unreliable connections, UC and XP: what cannot be delivered is lost silently, and the next
//! message is not affected.

use std::time::Duration;

use bowline_nic::{QpState, QpType, Remote, SendOp, WcOpcode};

use super::{GUARD, at, blank, data, guarded, lengths, pattern};
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, Setup};
use crate::{Case, Outcome, Send};

const A_WHILE: Duration = Duration::from_millis(10);

pub(super) fn sends(lab: &mut Lab, case: &Case, qp_type: QpType) -> Outcome {
    let pair = lab.pair(case, &Setup::new(qp_type))?;
    for (n, len) in lengths(case.mtu).into_iter().enumerate() {
        data::send(lab, &pair, n, len)?;
        data::immediate(lab, &pair, 50 + n, len, 0xdead_0000 + n as u32, false)?;
    }
    Ok(())
}

pub(super) fn writes(lab: &mut Lab, case: &Case, qp_type: QpType) -> Outcome {
    let pair = lab.pair(case, &Setup::new(qp_type))?;
    let Pair { requester, responder } = pair;
    for (n, len) in lengths(case.mtu).into_iter().enumerate() {
        // A plain write, whose arrival only the next message shows.
        let payload = pattern(n, len);
        lab.poke(&requester, 0, &payload)?;
        lab.poke(&responder, 0, &blank(len))?;
        let op = SendOp::Write(at(&responder, GUARD));
        lab.send(&requester, &Send::new(1, op, requester.region.piece(0, len)))?;
        same("opcode", lab.done(&requester, 1)?.opcode, WcOpcode::Write)?;
        lab.recv(&responder, 2, 32 << 10, 64)?;
        lab.send(&requester, &Send::new(3, SendOp::Send, requester.region.piece(0, 4)))?;
        lab.done(&requester, 3)?;
        lab.done(&responder, 2)?;
        let got = lab.peek(&responder, 0, len + 2 * GUARD)?;
        same_bytes(&format!("{len} bytes written"), &got, &guarded(&payload))?;
        data::immediate(lab, &pair, 50 + n, len, n as u32, true)?;
    }
    Ok(())
}

/// A message without a receive is lost; UC's next one uses the next receive.
pub(super) fn uc_without_receive(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Uc))?;
    let Pair { requester, responder } = pair;
    let len = 2 * case.mtu.bytes() as usize + 9;
    lab.send(&requester, &Send::new(1, SendOp::Send, requester.region.piece(0, len)))?;
    lab.done(&requester, 1)?;
    lab.quiet(&responder, A_WHILE)?;
    data::send(lab, &pair, 2, len)?;
    lab.reaches(&responder, QpState::Rts)
}

/// A message without a receive is lost; a receive posted for it later remains assigned to it, so
/// that XP's next message lands where it belongs.
pub(super) fn xp_without_receive(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Xp))?;
    let Pair { requester, responder } = pair;
    let len = 2 * case.mtu.bytes() as usize + 9;
    lab.send(&requester, &Send::new(1, SendOp::Send, requester.region.piece(0, len)))?;
    lab.done(&requester, 1)?;
    lab.quiet(&responder, A_WHILE)?;
    let payload = pattern(1, len);
    lab.poke(&requester, 0, &payload)?;
    lab.poke(&responder, 0, &blank(len))?;
    lab.recv(&responder, 2, GUARD, len)?;
    lab.recv(&responder, 3, GUARD, len)?;
    lab.send(&requester, &Send::new(4, SendOp::Send, requester.region.piece(0, len)))?;
    same("bytes of the lost message", lab.done(&responder, 2)?.byte_len, 0)?;
    same("bytes of the next", lab.done(&responder, 3)?.byte_len as usize, len)?;
    lab.done(&requester, 4)?;
    let got = lab.peek(&responder, 0, len + 2 * GUARD)?;
    same_bytes("the next message", &got, &guarded(&payload))?;
    lab.reaches(&responder, QpState::Rts)
}

pub(super) fn wrong_rkey(lab: &mut Lab, case: &Case, qp_type: QpType) -> Outcome {
    let pair = lab.pair(case, &Setup::new(qp_type))?;
    let Pair { requester, responder } = pair;
    lab.poke(&requester, 0, &[0xab; 64])?;
    let bad = Remote { rkey: responder.region.rkey ^ 0x5500, ..at(&responder, 0) };
    lab.send(&requester, &Send::new(1, SendOp::Write(bad), requester.region.piece(0, 64)))?;
    lab.done(&requester, 1)?;
    lab.quiet(&responder, A_WHILE)?;
    same("the responder's memory", lab.peek(&responder, 0, 64)?, vec![0; 64])?;
    data::send(lab, &pair, 2, 100)
}
