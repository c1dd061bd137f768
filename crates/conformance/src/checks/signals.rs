//! Flags of requests: which complete, which carry their payload inline, which wake the receiver.

use std::time::Duration;

use bowline_nic::{QpType, Remote, SendFlags, SendOp, WcStatus};

use super::{at, pattern};
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, Setup};
use crate::{Case, Outcome, Send};

/// Unsignaled sends produce no completion, and later completions imply that they are done.
pub(super) fn unsignaled(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    for n in 0..8 {
        lab.recv(&responder, n, 64 * n as usize, 64)?;
    }
    lab.poke(&requester, 0, &pattern(1, 512))?;
    for n in 0..8_u64 {
        let flags = if n % 4 == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let piece = requester.region.piece(64 * n as usize, 64);
        lab.send(&requester, &Send { flags, ..Send::new(n, SendOp::Send, piece) })?;
    }
    lab.done(&requester, 3)?;
    lab.done(&requester, 7)?;
    for n in 0..8 {
        lab.done(&responder, n)?;
    }
    same_bytes("messages", &lab.peek(&responder, 0, 512)?, &pattern(1, 512))?;
    lab.quiet(&requester, Duration::from_millis(2))
}

/// An inline request has copied its bytes when the call returns.
pub(super) fn inline(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    for (n, len) in [1, 31, 64].into_iter().enumerate() {
        let (n, payload) = (n as u64, pattern(n, len));
        lab.recv(&responder, n, 0, 64)?;
        lab.poke(&requester, 0, &payload)?;
        let piece = requester.region.piece(0, len);
        lab.send(&requester, &Send { inline: true, ..Send::new(n, SendOp::Send, piece) })?;
        lab.poke(&requester, 0, &[0xff; 64])?;
        lab.done(&requester, n)?;
        same("length", lab.done(&responder, n)?.byte_len, len as u32)?;
        same_bytes("inline bytes", &lab.peek(&responder, 0, len)?, &payload)?;
    }
    Ok(())
}

/// Only solicited completions wake a receiver that waits for those.
pub(super) fn solicited(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    lab.end(responder.side).arm_solicited(responder.id)?;
    for (n, solicited) in [(0, false), (1, true)] {
        lab.recv(&responder, n, 0, 64)?;
        let mut send = Send::new(n, SendOp::Send, requester.region.piece(0, 64));
        send.flags.set(SendFlags::SOLICITED, solicited);
        lab.send(&requester, &send)?;
        lab.done(&responder, n)?;
        lab.done(&requester, n)?;
        let woken = lab.end(responder.side).notified(responder.id)?;
        same(&format!("woken by a message, solicited {solicited}"), woken, solicited)?;
    }
    Ok(())
}

/// A fenced send starts once the READ before it has its data.
pub(super) fn fence(lab: &mut Lab, case: &Case) -> Outcome {
    const LEN: usize = 20_000;
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    lab.poke(&responder, 0, &pattern(4, LEN))?;
    lab.recv(&responder, 9, LEN, LEN)?;
    // The message carries what the READ fetches.
    let piece = requester.region.piece(0, LEN);
    lab.send(&requester, &Send::new(1, SendOp::Read(at(&responder, 0)), piece))?;
    let flags = SendFlags::SIGNALED | SendFlags::FENCE;
    lab.send(&requester, &Send { flags, ..Send::new(2, SendOp::Send, piece) })?;
    lab.done(&requester, 1)?;
    lab.done(&requester, 2)?;
    lab.done(&responder, 9)?;
    same_bytes("what came back", &lab.peek(&responder, LEN, LEN)?, &pattern(4, LEN))
}

/// A SEND with invalidate delivers its bytes and revokes a key.
pub(super) fn invalidate(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let revoked = lab.register_revocable(&responder, 4096)?;
    // It is valid until it is revoked.
    let to = Remote { addr: revoked.addr, rkey: revoked.rkey };
    lab.send(&requester, &Send::new(0, SendOp::Write(to), requester.region.piece(0, 64)))?;
    lab.done(&requester, 0)?;
    lab.recv(&responder, 5, 0, 64)?;
    lab.poke(&requester, 0, &pattern(2, 64))?;
    let piece = requester.region.piece(0, 64);
    lab.send(&requester, &Send::new(1, SendOp::SendInvalidate(revoked.rkey), piece))?;
    let wc = lab.done(&responder, 5)?;
    same("the key that was revoked", wc.invalidated, Some(revoked.rkey))?;
    lab.done(&requester, 1)?;
    same_bytes("message", &lab.peek(&responder, 0, 64)?, &pattern(2, 64))?;

    lab.send(&requester, &Send::new(2, SendOp::Write(to), piece))?;
    lab.expect(&requester, 2, WcStatus::RemAccessErr).map(drop)
}
