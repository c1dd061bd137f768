//! XP over UC on any end: a UC queue pair for fragments, memory windows of type 2 as keys, and an
//! RC queue pair as control channel.

use std::collections::{BTreeMap, VecDeque};

use bowline_nic::{Completion, Remote, SendOp, WcOpcode, WcStatus};
use bowline_sdr::express::{Carrier, CarrierEvent, Fragments, GRANT_LEN};

use crate::{End, Failure, Maker, Outcome, Piece, Qp, Send, quirks};

/// Receives for fragments: the depth of the queue pair's receive queue, refilled when half of them
/// are used.
const RECEIVES: u32 = 120;
/// Receives for control messages.
const CONTROL: usize = 64;
/// Where outgoing control messages are built, after the received ones.
const OUTGOING: usize = CONTROL * GRANT_LEN;
/// Requests for fragments outstanding.
const SENDS: u32 = 100;

/// The kind of a completion, in the upper half of its identifier; the lower half is an index.
const BIND: u64 = 1;
const REVOKE: u64 = 2;
const OTHER: u64 = 3;

fn wr_id(kind: u64, which: u64) -> u64 {
    kind << 32 | which & 0xffff_ffff
}

/// The state of one end of a connection.
pub(crate) struct Station {
    uc: Qp,
    rc: Qp,
    mtu: usize,
    maker: Maker,
    /// Bound windows, by the number of their receive.
    windows: BTreeMap<u64, Remote>,
    events: VecDeque<CarrierEvent>,
    /// Receives for fragments that are used up.
    used: u32,
    sending: u32,
    failure: Option<Failure>,
}

impl Station {
    /// Takes over two connected queue pairs of one end.
    pub(crate) fn new(end: &mut dyn End, uc: Qp, rc: Qp, mtu: usize) -> Outcome<Station> {
        end.post_empty_recvs(uc.id, wr_id(OTHER, 0), RECEIVES)?;
        for slot in 0..CONTROL {
            let piece = rc.region.piece(slot * GRANT_LEN, GRANT_LEN);
            end.post_recv(rc.id, wr_id(OTHER, slot as u64), piece)?;
        }
        let maker = end.maker();
        let (windows, events) = (BTreeMap::new(), VecDeque::new());
        Ok(Station { uc, rc, mtu, maker, windows, events, used: 0, sending: 0, failure: None })
    }

    /// The peer's view of a receive's memory, while it is open.
    pub(crate) fn granted(&self, number: u64) -> Option<Remote> {
        self.windows.get(&number).copied()
    }

    /// Why it has failed, if it has.
    pub(crate) fn check(&self) -> Outcome {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Frees the open windows, so that their memory can be deregistered.
    pub(crate) fn close(self, end: &mut dyn End) -> Outcome {
        self.windows.values().try_for_each(|window| end.free_window(window.rkey))
    }
}

/// A station with its end, for one call.
pub(crate) struct OnEnd<'a> {
    pub(crate) end: &'a mut dyn End,
    pub(crate) station: &'a mut Station,
}

impl OnEnd<'_> {
    fn attempt<T>(&mut self, outcome: Outcome<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(failure) => {
                if self.station.failure.is_none() {
                    self.station.failure = Some(failure);
                    self.station.events.push_back(CarrierEvent::Failed);
                }
                None
            }
        }
    }

    /// Polls both queue pairs for completions.
    fn look(&mut self) -> Outcome {
        let (uc, rc) = (self.station.uc.id, self.station.rc.id);
        let mut revoked = Vec::new();
        for qp in [uc, rc] {
            for wc in self.end.poll(qp)? {
                self.completed(&wc, qp == rc, &mut revoked)?;
            }
        }
        // Everything placed before a key was revoked has completed by now.
        while !revoked.is_empty() {
            let found = self.end.poll(uc)?;
            for wc in &found {
                self.completed(wc, false, &mut revoked)?;
            }
            if !found.iter().any(|wc| wc.opcode == WcOpcode::RecvWriteImm) {
                break;
            }
        }
        for number in revoked {
            if let Some(window) = self.station.windows.remove(&number) {
                self.end.free_window(window.rkey)?;
            }
            self.station.events.push_back(CarrierEvent::Revoked { number });
        }
        if self.station.used >= RECEIVES / 2 {
            self.end.post_empty_recvs(uc, wr_id(OTHER, 0), self.station.used)?;
            self.station.used = 0;
        }
        Ok(())
    }

    fn completed(&mut self, wc: &Completion, control: bool, revoked: &mut Vec<u64>) -> Outcome {
        if wc.status != WcStatus::Success {
            return Err(Failure::new(format!("a request of XP over UC failed: {wc:?}")));
        }
        let (kind, which) = (wc.wr_id >> 32, wc.wr_id & 0xffff_ffff);
        let event = match (kind, wc.opcode) {
            (BIND, _) => {
                let Some(remote) = self.station.granted(which) else { return Ok(()) };
                CarrierEvent::Opened { number: which, remote }
            }
            (REVOKE, _) => {
                revoked.push(which);
                return Ok(());
            }
            (_, WcOpcode::RecvWriteImm) => {
                self.station.used += 1;
                CarrierEvent::Landed { imm: wc.imm.unwrap_or(0), bytes: wc.byte_len }
            }
            (_, WcOpcode::Recv) if control => {
                let (rc, slot) = (self.station.rc, which as usize);
                let piece = rc.region.piece(slot * GRANT_LEN, GRANT_LEN);
                let message = self.end.peek(piece)?;
                self.end.post_recv(rc.id, wc.wr_id, piece)?;
                CarrierEvent::Control(message)
            }
            (_, WcOpcode::Write) => {
                self.station.sending -= 1;
                CarrierEvent::Sent { fragments: 1 }
            }
            _ => return Ok(()),
        };
        self.station.events.push_back(event);
        Ok(())
    }

    fn send_fragment(&mut self, fragments: &Fragments<Piece>, k: usize) -> Outcome {
        let (mtu, len) = (self.station.mtu, fragments.len as usize);
        let (start, addr) = (k * mtu, fragments.remote.addr + (k * mtu) as u64);
        let piece = Piece {
            offset: fragments.place.offset + fragments.offset as usize + start,
            len: mtu.min(len - start.min(len)),
            ..fragments.place
        };
        let remote = Remote { addr, ..fragments.remote };
        let op = SendOp::WriteImm(remote, fragments.imms.imm(k as u32));
        self.end.post_send(self.station.uc.id, &Send::new(wr_id(OTHER, 0), op, piece))
    }
}

impl Carrier for OnEnd<'_> {
    type Place = Piece;

    fn open(&mut self, number: u64, place: Piece, len: u32) {
        let piece = Piece { len: len as usize, ..place };
        let bound = self.end.bind_window(self.station.uc.id, wr_id(BIND, number), piece);
        if let Some(remote) = self.attempt(bound) {
            self.station.windows.insert(number, remote);
        }
    }

    fn revoke(&mut self, number: u64) {
        let Some(window) = self.station.granted(number) else { return };
        let on_uc = quirks::revokes_on_uc(self.station.maker);
        let qp = if on_uc { self.station.uc } else { self.station.rc };
        let op = SendOp::LocalInvalidate(window.rkey);
        let send = Send::new(wr_id(REVOKE, number), op, qp.region.piece(0, 0));
        let posted = self.end.post_send(qp.id, &send);
        self.attempt(posted);
    }

    fn write(&mut self, fragments: &Fragments<Piece>) -> u32 {
        let room = SENDS - self.station.sending.min(SENDS);
        let count = fragments.count.min(room);
        for k in 0..count {
            let posted = self.send_fragment(fragments, k as usize);
            if self.attempt(posted).is_none() {
                return k;
            }
            self.station.sending += 1;
        }
        count
    }

    fn tell(&mut self, message: &[u8; GRANT_LEN]) {
        let rc = self.station.rc;
        let piece = rc.region.piece(OUTGOING, GRANT_LEN);
        let told = self.end.poke(rc.region.id, OUTGOING, message).and_then(|()| {
            // Inline, so that the buffer can be reused at once.
            let send = Send { inline: true, ..Send::new(wr_id(OTHER, 0), SendOp::Send, piece) };
            self.end.post_send(rc.id, &send)
        });
        self.attempt(told);
    }

    fn next_event(&mut self) -> Option<CarrierEvent> {
        if self.station.events.is_empty() && self.station.failure.is_none() {
            let looked = self.look();
            self.attempt(looked);
        }
        self.station.events.pop_front()
    }
}
