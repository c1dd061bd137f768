//! Reliable data: what arrives is what was sent, once, and nothing else changes.

use bowline_nic::{QpType, SendOp, WcOpcode, WcStatus};

use super::{GUARD, at, blank, guarded, lengths, pattern};
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, Setup};
use crate::{Case, Outcome, Send};

pub(super) fn sends(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    for (n, len) in lengths(case.mtu).into_iter().enumerate() {
        send(lab, &pair, n, len)?;
    }
    Ok(())
}

pub(super) fn writes(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    for (n, len) in lengths(case.mtu).into_iter().enumerate() {
        write(lab, &pair, n, len)?;
    }
    Ok(())
}

pub(super) fn reads(lab: &mut Lab, case: &Case, qp_type: QpType) -> Outcome {
    let pair = lab.pair(case, &Setup::new(qp_type))?;
    for (n, len) in lengths(case.mtu).into_iter().enumerate() {
        read(lab, &pair, n, len)?;
    }
    Ok(())
}

pub(super) fn long_messages(lab: &mut Lab, case: &Case) -> Outcome {
    const LEN: usize = 256 << 10;
    let setup = Setup { region_len: LEN + 2 * GUARD, ..Setup::new(QpType::Rc) };
    let pair = lab.pair(case, &setup)?;
    send(lab, &pair, 1, LEN)?;
    write(lab, &pair, 2, LEN)?;
    read(lab, &pair, 3, LEN)
}

/// Sends a message into a receive of exactly its length.
pub(super) fn send(lab: &mut Lab, pair: &Pair, n: usize, len: usize) -> Outcome {
    let Pair { requester, responder } = pair;
    let (payload, wr_id) = (pattern(n, len), n as u64);
    lab.poke(requester, 0, &payload)?;
    lab.poke(responder, 0, &blank(len))?;
    lab.recv(responder, 100 + wr_id, GUARD, len)?;
    lab.send(requester, &Send::new(wr_id, SendOp::Send, requester.region.piece(0, len)))?;
    let wc = lab.done(responder, 100 + wr_id)?;
    same("receive", (wc.opcode, wc.byte_len, wc.imm), (WcOpcode::Recv, len as u32, None))?;
    let wc = lab.done(requester, wr_id)?;
    same("opcode of the send", wc.opcode, WcOpcode::Send)?;
    let got = lab.peek(responder, 0, len + 2 * GUARD)?;
    same_bytes(&format!("{len} bytes sent"), &got, &guarded(&payload))
}

fn write(lab: &mut Lab, pair: &Pair, n: usize, len: usize) -> Outcome {
    let Pair { requester, responder } = pair;
    let (payload, wr_id) = (pattern(n, len), n as u64);
    lab.poke(requester, 0, &payload)?;
    lab.poke(responder, 0, &blank(len))?;
    let op = SendOp::Write(at(responder, GUARD));
    lab.send(requester, &Send::new(wr_id, op, requester.region.piece(0, len)))?;
    let wc = lab.done(requester, wr_id)?;
    same("opcode of the write", wc.opcode, WcOpcode::Write)?;
    let got = lab.peek(responder, 0, len + 2 * GUARD)?;
    same_bytes(&format!("{len} bytes written"), &got, &guarded(&payload))?;
    same("completions of the responder", lab.end(responder.side).poll(responder.id)?.len(), 0)
}

fn read(lab: &mut Lab, pair: &Pair, n: usize, len: usize) -> Outcome {
    let Pair { requester, responder } = pair;
    let (payload, wr_id) = (pattern(n, len), n as u64);
    lab.poke(responder, 0, &payload)?;
    lab.poke(requester, 0, &blank(len))?;
    let op = SendOp::Read(at(responder, 0));
    lab.send(requester, &Send::new(wr_id, op, requester.region.piece(GUARD, len)))?;
    let wc = lab.done(requester, wr_id)?;
    same("read", (wc.opcode, wc.byte_len), (WcOpcode::Read, len as u32))?;
    let got = lab.peek(requester, 0, len + 2 * GUARD)?;
    same_bytes(&format!("{len} bytes read"), &got, &guarded(&payload))
}

/// Immediate data, with messages and with writes, for any value and any length.
pub(super) fn immediates(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let mtu = case.mtu.bytes() as usize;
    let cases = [(0, 0), (0x0102_0304, 1), (u32::MAX, mtu), (0x8000_0001, 2 * mtu + 3)];
    for (n, (imm, len)) in cases.into_iter().enumerate() {
        immediate(lab, &pair, 2 * n, len, imm, false)?;
        immediate(lab, &pair, 2 * n + 1, len, imm, true)?;
    }
    Ok(())
}

pub(super) fn immediate(
    lab: &mut Lab,
    pair: &Pair,
    n: usize,
    len: usize,
    imm: u32,
    is_write: bool,
) -> Outcome {
    let Pair { requester, responder } = pair;
    let (payload, wr_id) = (pattern(n, len), n as u64);
    lab.poke(requester, 0, &payload)?;
    lab.poke(responder, 0, &blank(len))?;
    // A write uses no bytes of its receive, so that may be empty.
    lab.recv(responder, 100 + wr_id, GUARD, if is_write { 0 } else { len })?;
    let (op, opcode) = match is_write {
        true => (SendOp::WriteImm(at(responder, GUARD), imm), WcOpcode::RecvWriteImm),
        false => (SendOp::SendImm(imm), WcOpcode::Recv),
    };
    lab.send(requester, &Send::new(wr_id, op, requester.region.piece(0, len)))?;
    let wc = lab.done(responder, 100 + wr_id)?;
    same("receive", (wc.opcode, wc.byte_len, wc.imm), (opcode, len as u32, Some(imm)))?;
    lab.done(requester, wr_id)?;
    let got = lab.peek(responder, 0, len + 2 * GUARD)?;
    same_bytes(&format!("{len} bytes with an immediate"), &got, &guarded(&payload))
}

/// Many messages posted at once arrive in order and complete in order.
pub(super) fn many_in_flight(lab: &mut Lab, case: &Case) -> Outcome {
    const COUNT: usize = 48;
    const SLOT: usize = 1200;
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    lab.poke(&requester, 0, &pattern(5, COUNT * SLOT))?;
    for n in 0..COUNT {
        lab.recv(&responder, n as u64, n * SLOT, SLOT)?;
    }
    for n in 0..COUNT {
        let piece = requester.region.piece(n * SLOT, SLOT);
        lab.send(&requester, &Send::new(n as u64, SendOp::SendImm(n as u32), piece))?;
    }
    for (qp, what) in [(&responder, "receives"), (&requester, "sends")] {
        let got: Vec<_> = lab.wait(qp, COUNT)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let want: Vec<_> = (0..COUNT as u64).map(|n| (n, WcStatus::Success)).collect();
        same(what, got, want)?;
    }
    same_bytes("messages", &lab.peek(&responder, 0, COUNT * SLOT)?, &pattern(5, COUNT * SLOT))
}

/// More READs are posted than may be outstanding: the requester holds back the rest.
pub(super) fn many_reads(lab: &mut Lab, case: &Case) -> Outcome {
    const COUNT: usize = 24;
    const SLOT: usize = 2500;
    let pair = lab.pair(case, &Setup { rd_atomic: 2, ..Setup::new(QpType::Rc) })?;
    let Pair { requester, responder } = pair;
    lab.poke(&responder, 0, &pattern(9, COUNT * SLOT))?;
    for n in 0..COUNT {
        let op = SendOp::Read(at(&responder, n * SLOT));
        let piece = requester.region.piece(n * SLOT, SLOT);
        lab.send(&requester, &Send::new(n as u64, op, piece))?;
    }
    let got: Vec<_> = lab.wait(&requester, COUNT)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let want: Vec<_> = (0..COUNT as u64).map(|n| (n, WcStatus::Success)).collect();
    same("reads", got, want)?;
    same_bytes("bytes read", &lab.peek(&requester, 0, COUNT * SLOT)?, &pattern(9, COUNT * SLOT))
}

/// Sequence numbers go from 2^24 - 1 to 0 in the middle of messages, in both directions.
pub(super) fn psn_wrap(lab: &mut Lab, case: &Case) -> Outcome {
    let len = 5 * case.mtu.bytes() as usize;
    for before_wrap in [1, 2, 4] {
        let psns = [0x100_0000 - before_wrap, 0x100_0000 - before_wrap];
        let pair = lab.pair(case, &Setup { psns, ..Setup::new(QpType::Rc) })?;
        write(lab, &pair, 1, len)?;
        let pair = lab.pair(case, &Setup { psns, ..Setup::new(QpType::Rc) })?;
        read(lab, &pair, 2, len)?;
        send(lab, &pair, 3, len)?;
    }
    Ok(())
}
