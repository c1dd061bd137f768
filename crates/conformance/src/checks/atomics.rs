//! Atomics return the original value, and each executes once.

use bowline_nic::{QpType, SendOp, WcOpcode};

use super::at;
use crate::failure::same;
use crate::lab::{Lab, Pair, Qp, Setup};
use crate::{Case, Outcome, Send};

/// Offset of the responder's word.
const WORD: usize = 64;

fn word(lab: &mut Lab, qp: &Qp, offset: usize) -> Outcome<u64> {
    let bytes = lab.peek(qp, offset, 8)?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

pub(super) fn originals(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let remote = at(&responder, WORD);
    let add = |add| SendOp::FetchAdd { remote, add };
    let swap = |compare, swap| SendOp::CompareSwap { remote, compare, swap };
    let big = 0x0102_0304_0506_0708;
    lab.poke(&responder, WORD, &u64::to_le_bytes(40))?;
    // The request, and the word's value before and after it.
    let steps = [
        (add(2), 40, 42),
        (add(u64::MAX), 42, 41),
        (add(0), 41, 41),
        (swap(41, big), 41, big),
        (swap(41, 7), big, big),
        (swap(big, u64::MAX), big, u64::MAX),
        (add(1), u64::MAX, 0),
    ];
    for (n, (op, before, after)) in steps.into_iter().enumerate() {
        let n = n as u64;
        let want = match op {
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            _ => WcOpcode::CompareSwap,
        };
        lab.send(&requester, &Send::new(n, op, requester.region.piece(8, 8)))?;
        let wc = lab.done(&requester, n)?;
        same("atomic", (wc.opcode, wc.byte_len), (want, 8))?;
        same("the original", word(lab, &requester, 8)?, before)?;
        same("the word after", word(lab, &responder, WORD)?, after)?;
        same("the words beside it", lab.peek(&responder, WORD - 8, 8)?, vec![0; 8])?;
        same("the words beside it", lab.peek(&responder, WORD + 8, 8)?, vec![0; 8])?;
    }
    Ok(())
}

/// Many concurrent additions each return a different original value. One that the responder
/// executed twice because of a lost response would leave a gap.
pub(super) fn exactly_once(lab: &mut Lab, case: &Case) -> Outcome {
    const COUNT: u64 = 64;
    let pair = lab.pair(case, &Setup { rd_atomic: 4, ..Setup::new(QpType::Rc) })?;
    let Pair { requester, responder } = pair;
    for n in 0..COUNT {
        let op = SendOp::FetchAdd { remote: at(&responder, WORD), add: 1 };
        let piece = requester.region.piece(8 * n as usize, 8);
        lab.send(&requester, &Send::new(n, op, piece))?;
    }
    for n in 0..COUNT {
        lab.done(&requester, n)?;
        same("the original", word(lab, &requester, 8 * n as usize)?, n)?;
    }
    same("the sum", word(lab, &responder, WORD)?, COUNT)
}

/// A word that is not aligned to 8 is rejected when it is posted.
pub(super) fn misaligned(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let op = SendOp::FetchAdd { remote: at(&responder, WORD + 4), add: 1 };
    let posted = lab.send(&requester, &Send::new(1, op, requester.region.piece(0, 8)));
    same("posting was refused", posted.is_err(), true)
}
