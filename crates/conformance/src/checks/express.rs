//! XP's semantics over UC: what ends a message, by when, and that nothing touches its memory after
//! that.

use std::time::Duration;

use bowline_nic::{
    Access, Completion, EndMark, LossRecord, QpType, Remote, SendFlags, SendOp, Time, WcOpcode,
    WcStatus, XpOptions,
};
use bowline_sdr::express::{ExpressQp, ExpressRecv, ExpressSend, Target};

use super::pattern;
use crate::failure::{same, same_bytes};
use crate::lab::{Lab, Pair, Setup};
use crate::station::{OnEnd, Station};
use crate::{Case, Failure, Outcome, Piece, Region, Send, Side};

/// How long after its deadline a completion may be seen: every call to a foreign end is a remote
/// call, into an emulated guest.
const SLACK: Duration = Duration::from_millis(500);
/// For messages that have enough time.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(1);
const ROOM: usize = 24 << 10;
/// The contents of memory before a message and after it.
const BEFORE: u8 = 0xee;
const AFTER: u8 = 0x54;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::BIND_WINDOW);

/// One end of a connection.
struct Endpoint {
    side: Side,
    qp: ExpressQp<Piece>,
    station: Station,
    memory: Region,
}

/// A connection: the sender, and the receiver with memory that the peer can be granted.
struct Link {
    ends: [Endpoint; 2],
    pair: Pair,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl Link {
    fn new(lab: &mut Lab, case: &Case) -> Outcome<Link> {
        let (uc, rc) = (Setup::new(QpType::Uc), Setup::new(QpType::Rc));
        let (pair, control) = (lab.pair(case, &uc)?, lab.pair(case, &rc)?);
        let mtu = case.mtu.bytes() as usize;
        // Accepts reordered fragments, and reports what is missing.
        let options = XpOptions { window: 1, grace_ns: 20_000_000, loss_log: 64 };
        let qps = [(pair.requester, control.requester), (pair.responder, control.responder)];
        let mut ends = Vec::new();
        for (uc, rc) in qps {
            let station = Station::new(lab.end(uc.side), uc, rc, mtu)?;
            let memory = lab.register(uc.side, ROOM, RIGHTS)?;
            let qp = ExpressQp::new(case.mtu, options).map_err(|e| Failure::new(e.to_string()))?;
            ends.push(Endpoint { side: uc.side, qp, station, memory });
        }
        let ends = ends.try_into().map_err(|_| Failure::new("two ends"))?;
        Ok(Link { ends, pair })
    }

    /// Posts a receive over all of the receiver's memory.
    fn recv(&mut self, lab: &mut Lab, wr_id: u64, time: Duration) -> Outcome<Duration> {
        let Endpoint { side, memory, qp, .. } = &mut self.ends[RECEIVER];
        lab.end(*side).poke(memory.id, 0, &[BEFORE; ROOM])?;
        let deadline = lab.now() + time;
        let (place, len) = (memory.piece(0, ROOM), ROOM as u32);
        let recv = ExpressRecv { wr_id, place, len, deadline: at(deadline) };
        qp.post_recv(&recv).map_err(|e| Failure::new(e.to_string()))?;
        Ok(deadline)
    }

    /// Posts a send of these bytes.
    fn send(
        &mut self,
        lab: &mut Lab,
        wr_id: u64,
        bytes: &[u8],
        target: Target,
        time: Duration,
    ) -> Outcome<Duration> {
        let Endpoint { side, memory, qp, .. } = &mut self.ends[SENDER];
        lab.end(*side).poke(memory.id, 0, bytes)?;
        let deadline = lab.now() + time;
        let (place, len) = (memory.piece(0, bytes.len()), bytes.len() as u32);
        let send = ExpressSend { wr_id, place, len, target, deadline: at(deadline) };
        qp.post_send(&send).map_err(|e| Failure::new(e.to_string()))?;
        Ok(deadline)
    }

    /// Drives both ends once.
    fn drive(&mut self, lab: &mut Lab) -> Outcome {
        for Endpoint { side, qp, station, .. } in &mut self.ends {
            let now = at(lab.now());
            qp.drive(now, &mut OnEnd { end: lab.end(*side), station });
            station.check()?;
        }
        Ok(())
    }

    /// Drives both ends for a while.
    fn idle(&mut self, lab: &mut Lab, time: Duration) -> Outcome {
        let until = lab.now() + time;
        while lab.now() < until {
            self.drive(lab)?;
            lab.pass(STEP)?;
        }
        Ok(())
    }

    /// Waits for the next completion of an end, which must come by its deadline.
    fn wait(&mut self, lab: &mut Lab, end: usize, deadline: Duration) -> Outcome<Completion> {
        loop {
            self.drive(lab)?;
            if let Some(wc) = self.ends[end].qp.poll() {
                same("status", wc.status, WcStatus::Success)?;
                return Ok(wc);
            }
            if lab.now() > deadline + SLACK {
                let late = lab.now() - deadline;
                return Err(Failure::new(format!("no completion {late:?} after its deadline")));
            }
            lab.pass(STEP)?;
        }
    }

    /// The receiver's memory.
    fn received(&self, lab: &mut Lab) -> Outcome<Vec<u8>> {
        let Endpoint { side, memory, .. } = &self.ends[RECEIVER];
        lab.end(*side).peek(memory.piece(0, ROOM))
    }

    /// Checks a completion against the receiver's memory, where `bytes` were to go to `offset`.
    fn judge(&mut self, lab: &mut Lab, wc: &Completion, bytes: &[u8], offset: usize) -> Outcome {
        let mut wanted = vec![BEFORE; ROOM];
        wanted[offset..offset + bytes.len()].copy_from_slice(bytes);
        if wc.end == EndMark::Whole {
            same("bytes of a whole message", wc.byte_len as usize, bytes.len())?;
        } else {
            let loss = self.ends[RECEIVER].qp.take_loss();
            let loss = loss.ok_or_else(|| Failure::new("no record of what is missing"))?;
            let LossRecord { message_len, missing, .. } = loss;
            let missing_bytes: u32 = missing.iter().map(|range| range.end - range.start).sum();
            // An unknown length reaches to the end of the receive.
            let len = message_len.unwrap_or(ROOM as u32);
            same("bytes there and missing", wc.byte_len + missing_bytes, len)?;
            for range in missing {
                let (start, end) = (offset + range.start as usize, offset + range.end as usize);
                wanted[start.min(ROOM)..end.min(ROOM)].fill(BEFORE);
            }
        }
        same_bytes("the receiver's memory", &self.received(lab)?, &wanted)
    }

    /// The application owns the memory again, and nothing may touch it.
    fn take_back(&mut self, lab: &mut Lab) -> Outcome {
        let Endpoint { side, memory, .. } = &self.ends[RECEIVER];
        lab.end(*side).poke(memory.id, 0, &[AFTER; ROOM])
    }

    fn is_untouched(&self, lab: &mut Lab) -> Outcome {
        same_bytes("memory after its message", &self.received(lab)?, &[AFTER; ROOM])
    }

    /// Sends a packet to a key, like a sender that does not know that the message is over.
    fn send_late(&mut self, lab: &mut Lab, remote: Remote, len: usize) -> Outcome {
        let piece = self.ends[SENDER].memory.piece(0, len);
        let qp = self.pair.requester;
        // Unsignaled: its completion would be mistaken for a fragment's.
        let flags = SendFlags::empty();
        lab.send(&qp, &Send { flags, ..Send::new(0, SendOp::WriteImm(remote, 0), piece) })
    }

    fn close(self, lab: &mut Lab) -> Outcome {
        self.ends.into_iter().try_for_each(|end| end.station.close(lab.end(end.side)))
    }
}

fn at(time: Duration) -> Time {
    Time::from_nanos(time.as_nanos() as u64)
}

/// Sends messages of these lengths one after the other, and checks each; some may lose fragments.
fn messages(
    lab: &mut Lab,
    case: &Case,
    lengths: &[usize],
    target: impl Fn(usize) -> Target,
) -> Outcome {
    let mut link = Link::new(lab, case)?;
    let mut whole = 0;
    for (n, len) in lengths.iter().enumerate() {
        let target = target(n);
        let end = message(lab, &mut link, n, *len, target)
            .map_err(|e| Failure::new(format!("message {n}, {len} bytes, {target:?}: {e}")))?;
        whole += usize::from(end == EndMark::Whole);
    }
    link.close(lab)?;
    if whole * 2 < lengths.len() {
        let all = lengths.len();
        return Err(Failure::new(format!("only {whole} of {all} messages were whole")));
    }
    Ok(())
}

/// Sends one message, and checks its outcome.
fn message(
    lab: &mut Lab,
    link: &mut Link,
    n: usize,
    len: usize,
    target: Target,
) -> Outcome<EndMark> {
    let (offset, imm, opcodes) = match target {
        Target::Send(imm) => (0, imm, [WcOpcode::Send, WcOpcode::Recv]),
        Target::WriteImm(offset, imm) => {
            (offset as usize, Some(imm), [WcOpcode::Write, WcOpcode::RecvWriteImm])
        }
    };
    let (bytes, wr_id) = (pattern(n, len), n as u64);
    // The receive of a message that is lost entirely has to end too.
    let time = PATIENCE / 2;
    let receive_by = link.recv(lab, wr_id, time)?;
    let send_by = link.send(lab, wr_id, &bytes, target, time)?;
    let sent = link.wait(lab, SENDER, send_by)?;
    same("the send", (sent.wr_id, sent.opcode), (wr_id, opcodes[SENDER]))?;
    let got = link.wait(lab, RECEIVER, receive_by)?;
    same("the receive", got.wr_id, wr_id)?;
    link.judge(lab, &got, &bytes, offset)?;
    if got.end == EndMark::Whole {
        same("a whole message", (got.opcode, got.imm), (opcodes[RECEIVER], imm))?;
    }
    link.take_back(lab)?;
    link.idle(lab, STEP * 3)?;
    link.is_untouched(lab)?;
    Ok(got.end)
}

/// Lengths around fragment boundaries.
fn lengths(case: &Case) -> [usize; 7] {
    let mtu = case.mtu.bytes() as usize;
    [0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu, 20 * mtu + 9]
}

pub(super) fn sends(lab: &mut Lab, case: &Case) -> Outcome {
    let imm = |n: usize| (n % 2 == 1).then_some(0xdead_0000 + n as u32);
    messages(lab, case, &lengths(case), |n| Target::Send(imm(n)))
}

pub(super) fn writes(lab: &mut Lab, case: &Case) -> Outcome {
    let target = |n: usize| Target::WriteImm(100 * n as u32, 0xbeef_0000 + n as u32);
    messages(lab, case, &lengths(case), target)
}

/// So many long ones that at a loss of 1 % several of them miss something.
pub(super) fn many(lab: &mut Lab, case: &Case) -> Outcome {
    let lengths = [20 * case.mtu.bytes() as usize; 30];
    messages(lab, case, &lengths, |n| match n % 2 {
        0 => Target::Send(None),
        _ => Target::WriteImm(n as u32, n as u32),
    })
}

/// Requests without a responding peer end by their deadline, and keep their numbers.
pub(super) fn deadlines(lab: &mut Lab, case: &Case) -> Outcome {
    let mut link = Link::new(lab, case)?;
    let short = Duration::from_millis(100);
    // A receive whose message never arrives.
    let by = link.recv(lab, 1, short)?;
    let got = link.wait(lab, RECEIVER, by)?;
    same("the receive", (got.wr_id, got.byte_len, got.end), (1, 0, EndMark::Deadline))?;
    same("its deadline has passed", lab.now() >= by, true)?;
    link.ends[RECEIVER].qp.take_loss();
    // Its message, to a revoked key: it is sent, and goes nowhere.
    link.take_back(lab)?;
    let bytes = pattern(1, 5000);
    let by = link.send(lab, 1, &bytes, Target::Send(None), PATIENCE)?;
    same("the late send", link.wait(lab, SENDER, by)?.wr_id, 1)?;
    link.idle(lab, STEP * 10)?;
    link.is_untouched(lab)?;
    // A message without a receive.
    let by = link.send(lab, 2, &bytes, Target::WriteImm(0, 5), short)?;
    let sent = link.wait(lab, SENDER, by)?;
    same("the send", (sent.wr_id, sent.byte_len, sent.end), (2, 0, EndMark::Deadline))?;
    // The next message preempts the receive of that one, and lands in its own.
    let by = link.recv(lab, 2, PATIENCE)?;
    let next_by = link.recv(lab, 3, PATIENCE)?;
    link.send(lab, 3, &bytes, Target::Send(None), PATIENCE)?;
    let got = link.wait(lab, RECEIVER, by)?;
    same("the receive of none", (got.wr_id, got.byte_len), (2, 0))?;
    link.ends[RECEIVER].qp.take_loss();
    let got = link.wait(lab, RECEIVER, next_by)?;
    same("the next receive", got.wr_id, 3)?;
    link.judge(lab, &got, &bytes, 0)?;
    link.close(lab)
}

/// Packets that arrive after their message has ended, by its deadline or complete, touch nothing.
pub(super) fn late_packets(lab: &mut Lab, case: &Case) -> Outcome {
    let mut link = Link::new(lab, case)?;
    let mtu = case.mtu.bytes() as usize;
    let bytes = pattern(3, 5 * mtu);
    for (n, is_sent) in [(0, true), (1, false)] {
        let time = if is_sent { PATIENCE } else { Duration::from_millis(200) };
        let by = link.recv(lab, n, time)?;
        // Until the key is open, and its peer may know it.
        let remote = loop {
            link.drive(lab)?;
            match link.ends[RECEIVER].station.granted(n) {
                Some(remote) => break remote,
                None => lab.pass(STEP)?,
            }
        };
        if is_sent {
            let by = link.send(lab, n, &bytes, Target::Send(None), PATIENCE)?;
            link.wait(lab, SENDER, by)?;
        }
        let got = link.wait(lab, RECEIVER, by)?;
        link.judge(lab, &got, &bytes, 0)?;
        link.take_back(lab)?;
        for k in 0..5 {
            let addr = remote.addr + (k * mtu) as u64;
            link.send_late(lab, Remote { addr, ..remote }, mtu)?;
        }
        link.idle(lab, Duration::from_millis(50))?;
        link.is_untouched(lab)?;
    }
    link.close(lab)
}
