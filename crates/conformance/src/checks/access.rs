//! Requests that the responder must reject: memory stays unchanged, and both ends are told.

use std::time::Duration;

use bowline_nic::{Access, Event, QpState, QpType, Remote, SendOp, WcStatus};

use super::at;
use crate::failure::same;
use crate::lab::{ALL_RIGHTS, Lab, Pair, Setup};
use crate::{Case, Failure, Outcome, Send, quirks};

fn one_sided(remote: Remote) -> [SendOp; 4] {
    [
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 0, swap: 1 },
    ]
}

/// Posts a request that must be rejected, and another after it that must not be executed either.
fn refused(lab: &mut Lab, pair: &Pair, op: SendOp, len: usize) -> Outcome {
    let Pair { requester, responder } = pair;
    lab.poke(requester, 0, &[0xab; 64])?;
    let what = |e: Failure| Failure::new(format!("{op:?}: {e}"));
    lab.send(requester, &Send::new(1, op, requester.region.piece(0, len)))?;
    let good = SendOp::Write(at(responder, 0));
    lab.send(requester, &Send::new(2, good, requester.region.piece(0, 8)))?;
    lab.expect(requester, 1, WcStatus::RemAccessErr).map_err(what)?;
    lab.expect(requester, 2, WcStatus::WrFlushErr).map_err(what)?;
    lab.reaches(requester, QpState::Err)?;
    lab.reaches(responder, QpState::Err)?;
    let untouched = lab.peek(responder, 0, 64)?;
    same("the responder's memory", untouched, vec![0; 64]).map_err(what)?;
    if quirks::raises_access_events(lab.maker(responder)) {
        let is_it = |e: &Event| matches!(e, Event::QpAccessError(q) if q.get() == responder.qpn);
        let raised = lab.raises(responder, is_it)?;
        same("an access error event", raised, true).map_err(what)?;
    }
    Ok(())
}

pub(super) fn wrong_rkey(lab: &mut Lab, case: &Case) -> Outcome {
    for kind in 0..4 {
        let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
        let addr = pair.responder.region.addr;
        // The last byte of a key is chosen by its owner, so a change there must be detected as
        // well.
        let rkey = pair.responder.region.rkey ^ if kind % 2 == 0 { 0x01 } else { 0x5500 };
        refused(lab, &pair, one_sided(Remote { addr, rkey })[kind], 8)?;
    }
    Ok(())
}

pub(super) fn deregistered(lab: &mut Lab, case: &Case) -> Outcome {
    for kind in 0..4 {
        let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
        let gone = lab.register(pair.responder.side, 4096, ALL_RIGHTS)?;
        lab.deregister(pair.responder.side, gone.id)?;
        let remote = Remote { addr: gone.addr, rkey: gone.rkey };
        refused(lab, &pair, one_sided(remote)[kind], 8)?;
    }
    Ok(())
}

pub(super) fn out_of_bounds(lab: &mut Lab, case: &Case) -> Outcome {
    let len = Setup::new(QpType::Rc).region_len;
    for kind in 0..4 {
        let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
        // Just past the end for atomics; across it for the others.
        let (remote, bytes) = match kind {
            0 | 1 => (at(&pair.responder, len - 4), 8),
            _ => (at(&pair.responder, len), 8),
        };
        refused(lab, &pair, one_sided(remote)[kind], bytes)?;
    }
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let addr = pair.responder.region.addr - 8;
    let before = Remote { addr, rkey: pair.responder.region.rkey };
    refused(lab, &pair, SendOp::Write(before), 8)?;
    // A message that leaves the region in its second packet: none of it is executed. A plain WRITE
    // need not be one message on the wire; one with an immediate is.
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let mtu = case.mtu.bytes() as usize;
    let last = at(&pair.responder, len - mtu);
    refused(lab, &pair, SendOp::WriteImm(last, 7), mtu + 1)?;
    let end = lab.peek(&pair.responder, len - mtu, mtu)?;
    same("the end of the region", end.iter().filter(|byte| **byte != 0).count(), 0)
}

/// Every operation needs its access right on the memory.
pub(super) fn memory_rights(lab: &mut Lab, case: &Case) -> Outcome {
    for (kind, right) in RIGHTS.into_iter().enumerate() {
        let setup = Setup { mr_rights: ALL_RIGHTS - right, ..Setup::new(QpType::Rc) };
        let pair = lab.pair(case, &setup)?;
        let remote = at(&pair.responder, 0);
        refused_without_follower(lab, &pair, one_sided(remote)[kind], WcStatus::RemAccessErr)?;
    }
    Ok(())
}

/// And on the queue pair.
pub(super) fn qp_rights(lab: &mut Lab, case: &Case) -> Outcome {
    for (kind, right) in RIGHTS.into_iter().enumerate() {
        let setup = Setup { qp_rights: ALL_RIGHTS - right, ..Setup::new(QpType::Rc) };
        let pair = lab.pair(case, &setup)?;
        let remote = at(&pair.responder, 0);
        refused_without_follower(lab, &pair, one_sided(remote)[kind], WcStatus::RemInvReqErr)?;
    }
    Ok(())
}

const RIGHTS: [Access; 4] =
    [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::REMOTE_ATOMIC];

fn refused_without_follower(lab: &mut Lab, pair: &Pair, op: SendOp, status: WcStatus) -> Outcome {
    let Pair { requester, responder } = pair;
    let what = |e: Failure| Failure::new(format!("{op:?}: {e}"));
    lab.send(requester, &Send::new(1, op, requester.region.piece(0, 8)))?;
    lab.expect(requester, 1, status).map_err(what)?;
    lab.reaches(requester, QpState::Err)?;
    same("the responder's memory", lab.peek(responder, 0, 64)?, vec![0; 64]).map_err(what)
}

/// A message that does not fit its receive fails at both ends.
pub(super) fn too_long_for_receive(lab: &mut Lab, case: &Case) -> Outcome {
    let mtu = case.mtu.bytes() as usize;
    // Too long in the only packet, and in the second of two.
    for (room, len) in [(32, 64), (mtu + 10, mtu + 20)] {
        let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
        let Pair { requester, responder } = pair;
        lab.recv(&responder, 5, 0, room)?;
        lab.recv(&responder, 6, 0, 4096)?;
        lab.poke(&requester, 0, &vec![0xab; len])?;
        lab.send(&requester, &Send::new(1, SendOp::Send, requester.region.piece(0, len)))?;
        let [nak, local] = quirks::too_long_for_receive(lab.maker(&responder));
        lab.expect(&requester, 1, nak)?;
        lab.expect(&responder, 5, local)?;
        lab.expect(&responder, 6, WcStatus::WrFlushErr)?;
        lab.reaches(&responder, QpState::Err)?;
        let beyond = lab.peek(&responder, room, 64)?;
        same("memory beyond the receive", beyond, vec![0; 64])?;
        lab.pass(Duration::from_millis(1))?;
    }
    Ok(())
}
