//! What happens to queued work when a queue pair fails.

use bowline_nic::{QpState, QpType, Remote, SendOp, WcStatus};

use super::at;
use crate::failure::same;
use crate::lab::{ALL_RIGHTS, Lab, Pair, Qp, Setup};
use crate::{Case, Outcome, Send, quirks};

/// Statuses and identifiers of the next completions.
fn next(lab: &mut Lab, qp: &Qp, count: usize) -> Outcome<Vec<(u64, WcStatus)>> {
    Ok(lab.wait(qp, count)?.iter().map(|wc| (wc.wr_id, wc.status)).collect())
}

fn flushed(ids: std::ops::Range<u64>) -> Vec<(u64, WcStatus)> {
    ids.map(|id| (id, WcStatus::WrFlushErr)).collect()
}

/// Sends after the rejected one, and all receives, are flushed in the order they were posted.
pub(super) fn after_nak(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    for n in 100..104 {
        lab.recv(&requester, n, 0, 64)?;
    }
    let bad = Remote { rkey: responder.region.rkey ^ 0x5500, ..at(&responder, 0) };
    let piece = requester.region.piece(0, 8);
    lab.send(&requester, &Send::new(0, SendOp::Write(bad), piece))?;
    for n in 1..6 {
        lab.send(&requester, &Send::new(n, SendOp::Write(at(&responder, 64)), piece))?;
    }
    // Sends and receives have separate queues: only the order within each is fixed.
    let mut all = next(lab, &requester, 10)?;
    all.sort_by_key(|(id, _)| *id >= 100);
    let refused = vec![(0, WcStatus::RemAccessErr)];
    same("flushed", all, [refused, flushed(1..6), flushed(100..104)].concat())?;
    lab.reaches(&requester, QpState::Err)?;
    // Work posted to a queue pair in error is flushed as well.
    if quirks::flushes_late_receives(lab.maker(&requester)) {
        lab.recv(&requester, 200, 0, 64)?;
        lab.expect(&requester, 200, WcStatus::WrFlushErr)?;
    }
    lab.send(&requester, &Send::new(201, SendOp::Send, piece))?;
    lab.expect(&requester, 201, WcStatus::WrFlushErr).map(drop)
}

/// Moving a queue pair to the error state flushes its queues.
pub(super) fn after_modify(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, .. } = pair;
    for n in 100..108 {
        lab.recv(&requester, n, 0, 64)?;
    }
    // No receive was posted for this one, so it is still queued.
    lab.send(&requester, &Send::new(1, SendOp::Send, requester.region.piece(0, 8)))?;
    lab.end(requester.side).fail(requester.id)?;
    let mut all = next(lab, &requester, 9)?;
    all.sort_by_key(|(id, _)| *id >= 100);
    same("flushed", all, [flushed(1..2), flushed(100..108)].concat())
}

/// A request on memory that is no longer registered fails locally, before anything is sent.
pub(super) fn local_protection(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let gone = lab.register(requester.side, 4096, ALL_RIGHTS)?;
    lab.deregister(requester.side, gone.id)?;
    lab.recv(&responder, 7, 0, 64)?;
    lab.send(&requester, &Send::new(1, SendOp::Send, gone.piece(0, 64)))?;
    lab.send(&requester, &Send::new(2, SendOp::Send, requester.region.piece(0, 64)))?;
    let status = quirks::dead_local_key(lab.maker(&requester));
    lab.expect(&requester, 1, status)?;
    lab.expect(&requester, 2, WcStatus::WrFlushErr)?;
    lab.reaches(&requester, QpState::Err)?;
    lab.quiet(&responder, std::time::Duration::from_millis(5))
}
