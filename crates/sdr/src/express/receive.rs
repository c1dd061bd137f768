//! The receiving half: numbered receives, each with a key of its own until it ends.

use std::collections::VecDeque;

use bowline_nic::{
    Completion, EndMark, LossRecord, Mtu, Remote, Time, WcOpcode, WcStatus, XpOptions,
};

use super::carrier::Carrier;
use super::fragments::{Arrived, NotTaken};
use super::grant::{Grant, Room};
use super::imm::{self, MAX_FRAGMENTS, MESSAGES, Op};
use super::{ExpressCounters, ExpressRecv, MAX_MESSAGES, MAX_OPEN};
use crate::error::SdrError;

/// The state of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for those before it.
    Posted,
    /// Its key is being opened.
    Opening,
    /// Its key is open, and the peer has yet to be told.
    Opened(Remote),
    /// The peer has been told.
    Granted,
    /// Its key is being revoked.
    Revoking,
    /// It has completed.
    Done,
}

/// A receive, and the message arriving in it.
#[derive(Debug)]
struct Receive<P> {
    request: ExpressRecv<P>,
    stage: Stage,
    /// What ended it: its key must be revoked, or is being.
    end: Option<EndMark>,
    /// Its own deadline, or the end of the grace period if that is earlier.
    deadline: Time,
    arrived: Arrived,
    /// Whether the message is a WRITE and has an immediate, once a fragment has told.
    kind: Option<(bool, bool)>,
    /// Halves of the user's immediate.
    halves: [Option<u16>; 2],
}

impl<P> Receive<P> {
    fn new(request: ExpressRecv<P>) -> Receive<P> {
        Receive {
            stage: Stage::Posted,
            end: None,
            deadline: request.deadline,
            arrived: Arrived::default(),
            kind: None,
            halves: [None; 2],
            request,
        }
    }

    fn imm(&self) -> Option<u32> {
        let [Some(lower), Some(upper)] = self.halves else { return None };
        Some(u32::from(upper) << 16 | u32::from(lower))
    }

    fn is_whole(&self) -> bool {
        let wants_imm = self.kind.is_some_and(|(_, imm)| imm);
        self.arrived.is_whole() && (!wants_imm || self.imm().is_some())
    }

    /// The peer may still write it.
    fn is_writable(&self) -> bool {
        matches!(self.stage, Stage::Granted | Stage::Revoking)
    }
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Receiver<P> {
    mtu: u32,
    options: XpOptions,
    /// Number of the oldest receive.
    first: u64,
    receives: VecDeque<Receive<P>>,
    /// Messages before this number have been preempted.
    floor: u64,
    /// No deadline is earlier than this.
    wake: Time,
    losses: VecDeque<LossRecord>,
}

impl<P: Copy> Receiver<P> {
    pub(super) fn new(mtu: Mtu, options: XpOptions) -> Receiver<P> {
        Receiver {
            mtu: mtu.bytes(),
            options,
            first: 0,
            receives: VecDeque::new(),
            floor: 0,
            wake: Time::NEVER,
            losses: VecDeque::new(),
        }
    }

    pub(super) fn post(&mut self, request: &ExpressRecv<P>) -> Result<(), SdrError> {
        let max = u64::from(MAX_FRAGMENTS) * u64::from(self.mtu);
        if u64::from(request.len) > max {
            return Err(SdrError::TooLong { len: request.len.into(), max });
        }
        if self.receives.len() >= MAX_MESSAGES as usize {
            return Err(SdrError::Full { max: MAX_MESSAGES });
        }
        self.wake = self.wake.min(request.deadline);
        self.receives.push_back(Receive::new(*request));
        Ok(())
    }

    pub(super) fn deadline(&self) -> Time {
        self.wake
    }

    pub(super) fn take_loss(&mut self) -> Option<LossRecord> {
        self.losses.pop_front()
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Receive<P>> {
        let at = number.checked_sub(self.first)?;
        self.receives.get_mut(at as usize)
    }

    pub(super) fn opened(&mut self, number: u64, remote: Remote) {
        if let Some(receive) = self.get_mut(number).filter(|r| r.stage == Stage::Opening) {
            receive.stage = Stage::Opened(remote);
        }
    }

    /// A packet was placed.
    pub(super) fn landed(
        &mut self,
        now: Time,
        imm: u32,
        bytes: u32,
        counters: &mut ExpressCounters,
    ) {
        let (op, message, fragment) = imm::split(imm);
        // There are fewer unfinished receives than numbers that an immediate can distinguish.
        let ahead = (message + MESSAGES - self.first % MESSAGES) % MESSAGES;
        let number = self.first + ahead;
        let (mtu, grace_ns) = (self.mtu, self.options.grace_ns);
        let Some(receive) = self.get_mut(number).filter(|r| r.is_writable()) else {
            counters.late += 1;
            return;
        };
        match op {
            Op::Half { upper } => {
                receive.halves[usize::from(upper)] = Some(fragment as u16);
            }
            Op::Data { write, imm, last } => {
                let room = receive.request.len;
                let agrees = receive.kind.is_none_or(|kind| kind == (write, imm));
                let taken = if agrees {
                    receive.arrived.take(fragment, bytes, last, mtu, room)
                } else {
                    Err(NotTaken::Malformed)
                };
                match taken {
                    Ok(()) => receive.kind = Some((write, imm)),
                    Err(NotTaken::Duplicate) => counters.duplicates += 1,
                    Err(NotTaken::Malformed) => counters.malformed += 1,
                }
                if taken.is_err() {
                    return;
                }
            }
        }
        let last = receive.arrived.has_last();
        if receive.end.is_none() {
            if receive.is_whole() {
                receive.end = Some(EndMark::Whole);
            } else if last && grace_ns == 0 {
                receive.end = Some(EndMark::Last);
            } else if last {
                let deadline = now.plus_nanos(grace_ns).min(receive.deadline);
                receive.deadline = deadline;
                self.wake = self.wake.min(deadline);
            }
        }
        self.preempt(number);
    }

    /// A packet of this message implies that all those a window earlier have been given up.
    fn preempt(&mut self, number: u64) {
        let floor = (number + 1).saturating_sub(self.options.window.into());
        for before in self.floor.max(self.first)..floor {
            if let Some(receive) = self.get_mut(before) {
                receive.end = receive.end.or(Some(EndMark::Preempted));
            }
        }
        self.floor = self.floor.max(floor);
    }

    /// The peer cannot write a receive any more: it completes.
    pub(super) fn revoked(&mut self, number: u64, completions: &mut VecDeque<Completion>) {
        if self.get_mut(number).is_some_and(|receive| receive.stage == Stage::Revoking) {
            self.complete(number, completions);
        }
    }

    fn complete(&mut self, number: u64, completions: &mut VecDeque<Completion>) {
        let (mtu, losses) = (self.mtu, self.options.loss_log as usize);
        let Some(receive) = self.get_mut(number) else { return };
        receive.stage = Stage::Done;
        // The missing part may have arrived before the key was revoked.
        let end = if receive.is_whole() { Some(EndMark::Whole) } else { receive.end };
        let end = end.unwrap_or_default();
        let is_write = receive.kind.is_some_and(|(write, _)| write);
        let wr_id = receive.request.wr_id;
        completions.push_back(Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: if is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv },
            byte_len: receive.arrived.bytes(),
            imm: receive.imm(),
            end,
            ..Completion::default()
        });
        if end == EndMark::Whole || losses == 0 {
            return;
        }
        let record = LossRecord {
            wr_id,
            message_len: receive.arrived.len(),
            missing: receive.arrived.missing(mtu, receive.request.len),
        };
        if self.losses.len() >= losses {
            self.losses.pop_front();
        }
        self.losses.push_back(record);
    }

    pub(super) fn drive(
        &mut self,
        now: Time,
        carrier: &mut impl Carrier<Place = P>,
        completions: &mut VecDeque<Completion>,
    ) {
        if self.wake <= now {
            self.expire(now);
        }
        let mut open = 0;
        for at in 0..self.receives.len() {
            let number = self.first + at as u64;
            self.step(number, carrier, &mut open, completions);
        }
        while self.receives.front().is_some_and(|receive| receive.stage == Stage::Done) {
            self.receives.pop_front();
            self.first += 1;
        }
    }

    /// Ends what is due, and determines what is due next.
    fn expire(&mut self, now: Time) {
        let grace = self.options.grace_ns > 0;
        self.wake = Time::NEVER;
        for receive in self.receives.iter_mut().filter(|r| r.end.is_none()) {
            if receive.deadline > now {
                self.wake = self.wake.min(receive.deadline);
            } else if grace && receive.arrived.has_last() && receive.request.deadline > now {
                receive.end = Some(EndMark::Last);
            } else {
                receive.end = Some(EndMark::Deadline);
            }
        }
    }

    /// Advances a receive as far as possible.
    fn step(
        &mut self,
        number: u64,
        carrier: &mut impl Carrier<Place = P>,
        open: &mut u32,
        completions: &mut VecDeque<Completion>,
    ) {
        let given_up = number < self.floor;
        let Some(receive) = self.get_mut(number) else { return };
        if given_up {
            // This includes one that was posted after its message was given up.
            receive.end = receive.end.or(Some(EndMark::Preempted));
        }
        match (receive.stage, receive.end) {
            (Stage::Posted, Some(_)) => {
                carrier.tell(&Grant { number, room: None }.emit());
                return self.complete(number, completions);
            }
            (Stage::Posted, None) if *open < MAX_OPEN => {
                receive.stage = Stage::Opening;
                carrier.open(number, receive.request.place, receive.request.len);
            }
            (stage @ (Stage::Opened(_) | Stage::Granted), Some(_)) => {
                if stage != Stage::Granted {
                    carrier.tell(&Grant { number, room: None }.emit());
                }
                receive.stage = Stage::Revoking;
                carrier.revoke(number);
            }
            (Stage::Opened(remote), None) => {
                receive.stage = Stage::Granted;
                let len = receive.request.len;
                carrier.tell(&Grant { number, room: Some(Room { remote, len }) }.emit());
            }
            _ => {}
        }
        *open += u32::from(!matches!(receive.stage, Stage::Posted | Stage::Done));
    }

    /// The carrier has failed: nothing will arrive any more.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        let waiting = self.receives.drain(..).filter(|receive| receive.stage != Stage::Done);
        completions.extend(waiting.map(|receive| Completion {
            wr_id: receive.request.wr_id,
            status: WcStatus::WrFlushErr,
            opcode: WcOpcode::Recv,
            ..Completion::default()
        }));
        self.wake = Time::NEVER;
    }
}
