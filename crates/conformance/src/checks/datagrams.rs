//! Datagrams: the header before them, and those that must not arrive.

use std::net::IpAddr;
use std::time::Duration;

use bowline_nic::{QpType, SendOp, WcOpcode};

use super::{GUARD, GUARD_BYTE, pattern};
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, QKEY, Setup};
use crate::{Case, Datagram, Failure, Outcome, Send};

const GRH: usize = 40;
const A_WHILE: Duration = Duration::from_millis(10);

fn post(
    lab: &mut Lab,
    pair: &Pair,
    wr_id: u64,
    len: usize,
    qkey: u32,
    imm: Option<u32>,
) -> Outcome {
    let Pair { requester, responder } = pair;
    let addr = lab.end(responder.side).addr();
    let to = Some(Datagram { addr, qpn: responder.qpn, qkey });
    let op = imm.map_or(SendOp::Send, SendOp::SendImm);
    lab.send(requester, &Send { to, ..Send::new(wr_id, op, requester.region.piece(0, len)) })?;
    lab.done(requester, wr_id).map(drop)
}

fn deliver(lab: &mut Lab, pair: &Pair, n: usize, len: usize, imm: Option<u32>) -> Outcome {
    let Pair { requester, responder } = pair;
    let payload = pattern(n, len);
    lab.poke(requester, 0, &payload)?;
    lab.poke(responder, 0, &vec![GUARD_BYTE; GRH + len + GUARD])?;
    lab.recv(responder, 100, 0, GRH + len)?;
    post(lab, pair, n as u64, len, QKEY, imm)?;
    let wc = lab.done(responder, 100)?;
    let want = (WcOpcode::Recv, (GRH + len) as u32, imm, true);
    same("receive", (wc.opcode, wc.byte_len, wc.imm, wc.grh), want)?;
    same("source QP", wc.src_qpn.get(), requester.qpn)?;
    let got = lab.peek(responder, GRH, len + GUARD)?;
    let want = [payload, vec![GUARD_BYTE; GUARD]].concat();
    same_bytes(&format!("datagram of {len} bytes"), &got, &want)
}

pub(super) fn lengths(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Ud))?;
    let mtu = case.mtu.bytes() as usize;
    for (n, len) in [0, 1, 2, 3, 4, 65, mtu - 1, mtu].into_iter().enumerate() {
        deliver(lab, &pair, n, len, None)?;
        deliver(lab, &pair, n, len, Some(0xfeed_0000 + n as u32))?;
    }
    Ok(())
}

/// The 40 bytes before a datagram hold its IP header; over IPv4, in the last 20.
pub(super) fn grh(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Ud))?;
    deliver(lab, &pair, 1, 100, None)?;
    let header = lab.peek(&pair.responder, 0, GRH)?;
    let from = lab.end(pair.requester.side).addr();
    let to = lab.end(pair.responder.side).addr();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = &header[20..];
            same("version and length", ip[0], 0x45)?;
            same("protocol", ip[9], 17)?;
            same_bytes("source address", &ip[12..16], &from.octets())?;
            same_bytes("destination address", &ip[16..20], &to.octets())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            same("version", header[0] >> 4, 6)?;
            same("next header", header[6], 17)?;
            same_bytes("source address", &header[8..24], &from.octets())?;
            same_bytes("destination address", &header[24..40], &to.octets())
        }
        _ => Err(Failure::new("the ends have addresses of two families")),
    }
}

pub(super) fn wrong_qkey(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Ud))?;
    lab.recv(&pair.responder, 99, 4096, GRH + 64)?;
    post(lab, &pair, 1, 64, QKEY ^ 1, None)?;
    lab.quiet(&pair.responder, A_WHILE)?;
    // The receive is still available for the next one.
    post(lab, &pair, 2, 64, QKEY, None)?;
    lab.done(&pair.responder, 99).map(drop)
}

pub(super) fn no_receive(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Ud))?;
    post(lab, &pair, 1, 64, QKEY, None)?;
    lab.quiet(&pair.responder, A_WHILE)?;
    deliver(lab, &pair, 2, 64, None)
}
