//! One request to several members of a group: its completion means that all of them have it.

use bowline_nic::{QpType, SendOp, WcOpcode};

use super::{GUARD, at, blank, guarded, lengths, pattern};
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Qp, Setup};
use crate::{Case, Outcome, Send};

const IMM: u32 = 0x0102_0304;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    WriteImm,
    Send,
}

pub(super) fn to_two(lab: &mut Lab, case: &Case) -> Outcome {
    let (sender, members) = lab.group(case, &Setup::new(QpType::Rc), 2)?;
    let mut number = 0;
    for len in lengths(case.mtu) {
        for kind in [Kind::Write, Kind::WriteImm, Kind::Send] {
            deliver(lab, (&sender, &members), kind, number, len)?;
            number += 1;
        }
    }
    Ok(())
}

fn deliver(
    lab: &mut Lab,
    (sender, members): (&Qp, &[Qp]),
    kind: Kind,
    number: usize,
    len: usize,
) -> Outcome {
    let (payload, wr_id) = (pattern(number, len), number as u64);
    lab.poke(sender, 0, &payload)?;
    for member in members {
        lab.poke(member, 0, &blank(len))?;
        match kind {
            Kind::Write => {}
            Kind::WriteImm => lab.recv(member, 1000 + wr_id, GUARD, 0)?,
            Kind::Send => lab.recv(member, 1000 + wr_id, GUARD, len)?,
        }
    }
    // The sender addresses memory as the first member does.
    let op = match kind {
        Kind::Write => SendOp::Write(at(&members[0], GUARD)),
        Kind::WriteImm => SendOp::WriteImm(at(&members[0], GUARD), IMM),
        Kind::Send => SendOp::Send,
    };
    lab.send(sender, &Send::new(wr_id, op, sender.region.piece(0, len)))?;
    lab.done(sender, wr_id)?;
    for (index, member) in members.iter().enumerate() {
        let got = lab.peek(member, 0, len + 2 * GUARD)?;
        same_bytes(&format!("{len} bytes at member {index}"), &got, &guarded(&payload))?;
        let want = match kind {
            Kind::Write => continue,
            Kind::WriteImm => (WcOpcode::RecvWriteImm, len as u32, Some(IMM)),
            Kind::Send => (WcOpcode::Recv, len as u32, None),
        };
        let wc = lab.done(member, 1000 + wr_id)?;
        same("receive", (wc.opcode, wc.byte_len, wc.imm), want)?;
    }
    Ok(())
}
