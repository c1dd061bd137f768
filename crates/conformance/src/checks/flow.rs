//! Waits for the peer, and gives up on it.

use std::time::Duration;

use bowline_nic::{QpState, QpType, SendOp, WcStatus};

use super::pattern;
use crate::failure::same_bytes;
use crate::lab::{Lab, Pair, Setup};
use crate::{Case, Outcome, Send, quirks};

/// Long enough for several RNR NAKs, of 0.64 ms each.
const SEVERAL_RNR_NAKS: Duration = Duration::from_millis(10);

/// A message waits for its receive, and so do those after it, in order.
pub(super) fn rnr_recovers(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let len = 2 * case.mtu.bytes() as usize + 7;
    lab.poke(&requester, 0, &pattern(3, 3 * len))?;
    for n in 0..3 {
        let piece = requester.region.piece(n * len, len);
        lab.send(&requester, &Send::new(n as u64, SendOp::Send, piece))?;
    }
    lab.quiet(&requester, SEVERAL_RNR_NAKS)?;
    for n in 0..3 {
        lab.recv(&responder, 10 + n as u64, n * len, len)?;
        lab.done(&responder, 10 + n as u64)?;
        lab.done(&requester, n as u64)?;
    }
    same_bytes("messages", &lab.peek(&responder, 0, 3 * len)?, &pattern(3, 3 * len))
}

/// A requester gives up after the configured number of RNR NAKs.
pub(super) fn rnr_exceeded(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup { rnr_retry: 1, ..Setup::new(QpType::Rc) })?;
    let Pair { requester, responder } = pair;
    let piece = requester.region.piece(0, 64);
    lab.send(&requester, &Send::new(1, SendOp::Send, piece))?;
    lab.expect(&requester, 1, WcStatus::RnrRetryExcErr)?;
    lab.reaches(&requester, QpState::Err)?;
    lab.quiet(&responder, Duration::from_millis(1))
}

/// A peer that does not exist any more does not respond.
pub(super) fn dead_peer(lab: &mut Lab, case: &Case) -> Outcome {
    for retry in [0, 2, 7] {
        // 4.096 µs · 2^10: 4 ms each time.
        let pair = lab.pair(case, &Setup { timeout: 10, retry, ..Setup::new(QpType::Rc) })?;
        if retry == 7 && quirks::seven_retries_never_end(lab.maker(&pair.requester)) {
            continue;
        }
        lab.destroy_qp(&pair.responder)?;
        let piece = pair.requester.region.piece(0, 3000);
        lab.send(&pair.requester, &Send::new(1, SendOp::Send, piece))?;
        lab.send(&pair.requester, &Send::new(2, SendOp::Send, piece))?;
        lab.expect(&pair.requester, 1, WcStatus::RetryExcErr)?;
        lab.expect(&pair.requester, 2, WcStatus::WrFlushErr)?;
        lab.reaches(&pair.requester, QpState::Err)?;
    }
    Ok(())
}

/// Nor does one in the error state.
pub(super) fn peer_in_error(lab: &mut Lab, case: &Case) -> Outcome {
    let setup = Setup { timeout: 10, retry: 2, ..Setup::new(QpType::Rc) };
    let pair = lab.pair(case, &setup)?;
    lab.recv(&pair.responder, 7, 0, 64)?;
    lab.end(pair.responder.side).fail(pair.responder.id)?;
    lab.expect(&pair.responder, 7, WcStatus::WrFlushErr)?;
    let piece = pair.requester.region.piece(0, 64);
    lab.send(&pair.requester, &Send::new(1, SendOp::Send, piece))?;
    lab.expect(&pair.requester, 1, WcStatus::RetryExcErr)?;
    lab.reaches(&pair.requester, QpState::Err)
}
