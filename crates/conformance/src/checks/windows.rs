//! Memory windows of type 2: keys that work requests bind and revoke.

use std::time::Duration;

use bowline_nic::{Access, QpState, QpType, Remote, SendOp, WcOpcode, WcStatus};

use super::pattern;
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, Setup};
use crate::{Case, Outcome, Qp, Region, Send, quirks};

const A_WHILE: Duration = Duration::from_millis(10);
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::BIND_WINDOW);
const OFFSET: usize = 1000;
const LEN: usize = 3000;

/// Binds a window to a part of one of the responder's regions.
fn bind(lab: &mut Lab, responder: &Qp, region: &Region) -> Outcome<Remote> {
    let remote =
        lab.end(responder.side).bind_window(responder.id, 70, region.piece(OFFSET, LEN))?;
    same("opcode", lab.done(responder, 70)?.opcode, WcOpcode::BindWindow)?;
    same("its address", remote.addr, region.addr + OFFSET as u64)?;
    Ok(remote)
}

/// Writes through a window and checks the responder's memory.
fn write(lab: &mut Lab, pair: &Pair, region: &Region, remote: Remote, n: usize) -> Outcome {
    let payload = pattern(n, LEN);
    lab.poke(&pair.requester, 0, &payload)?;
    lab.recv(&pair.responder, 2, 0, 0)?;
    let op = SendOp::WriteImm(remote, 7);
    lab.send(&pair.requester, &Send::new(1, op, pair.requester.region.piece(0, LEN)))?;
    lab.done(&pair.requester, 1)?;
    lab.done(&pair.responder, 2)?;
    let got = lab.end(pair.responder.side).peek(region.piece(0, OFFSET + LEN + 100))?;
    let wanted = [&[0; OFFSET][..], &payload, &[0; 100]].concat();
    same_bytes("memory around the window", &got, &wanted)
}

fn revoke(lab: &mut Lab, by: &Qp, rkey: u32) -> Outcome {
    let nothing = by.region.piece(0, 0);
    lab.send(by, &Send::new(71, SendOp::LocalInvalidate(rkey), nothing))?;
    same("opcode", lab.done(by, 71)?.opcode, WcOpcode::LocalInvalidate)
}

pub(super) fn on_rc(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let region = lab.register(responder.side, 8192, RIGHTS)?;
    for n in 0..3 {
        let remote = bind(lab, &responder, &region)?;
        write(lab, &pair, &region, remote, n)?;
        revoke(lab, &responder, remote.rkey)?;
        lab.end(responder.side).free_window(remote.rkey)?;
    }
    let remote = bind(lab, &responder, &region)?;
    revoke(lab, &responder, remote.rkey)?;
    let op = SendOp::Write(remote);
    lab.send(&requester, &Send::new(1, op, requester.region.piece(0, 8)))?;
    lab.expect(&requester, 1, WcStatus::RemAccessErr)?;
    lab.reaches(&responder, QpState::Err)?;
    lab.end(responder.side).free_window(remote.rkey)
}

pub(super) fn on_uc(lab: &mut Lab, case: &Case) -> Outcome {
    let pair = lab.pair(case, &Setup::new(QpType::Uc))?;
    let helper = lab.pair(case, &Setup::new(QpType::Rc))?;
    let Pair { requester, responder } = pair;
    let region = lab.register(responder.side, 8192, RIGHTS)?;
    let on_uc = quirks::revokes_on_uc(lab.maker(&responder));
    let revoker = if on_uc { responder } else { helper.responder };
    for n in 0..3 {
        let remote = bind(lab, &responder, &region)?;
        write(lab, &pair, &region, remote, n)?;
        revoke(lab, &revoker, remote.rkey)?;
        lab.end(responder.side).poke(region.id, OFFSET, &[0xee; LEN])?;
        let op = SendOp::Write(remote);
        lab.send(&requester, &Send::new(1, op, requester.region.piece(0, LEN)))?;
        lab.done(&requester, 1)?;
        lab.quiet(&responder, A_WHILE)?;
        let after = lab.end(responder.side).peek(region.piece(OFFSET, LEN))?;
        same_bytes("memory after the key was revoked", &after, &[0xee; LEN])?;
        lab.end(responder.side).poke(region.id, OFFSET, &[0; LEN])?;
        lab.end(responder.side).free_window(remote.rkey)?;
    }
    Ok(())
}
