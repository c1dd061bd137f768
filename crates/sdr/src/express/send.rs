//! The sending half: messages in the order of the peer's receives, each sent once its key is known.

use std::collections::VecDeque;

use bowline_nic::{Completion, EndMark, Mtu, Remote, Time, WcOpcode, WcStatus};

use super::carrier::{Carrier, Fragments};
use super::grant::{Grant, Room};
use super::imm::{self, MAX_FRAGMENTS, Op};
use super::{ExpressSend, MAX_IN_FLIGHT, MAX_MESSAGES, Target};
use crate::error::SdrError;

/// A message that has not completed.
#[derive(Debug)]
struct Message<P> {
    request: ExpressSend<P>,
    grant: Option<Grant>,
    /// What is to be sent next.
    next: Next,
    /// Packets handed to the carrier that have not left yet.
    in_flight: u32,
    /// Bytes handed to the carrier.
    bytes: u32,
    /// Nothing more is handed over once this is set.
    end: Option<(WcStatus, EndMark)>,
}

/// The parts of a message, in sending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Halves of the user's immediate, before this fragment.
    Half {
        upper: bool,
        before: u32,
    },
    Fragment(u32),
    Nothing,
}

impl<P> Message<P> {
    fn imm(&self) -> Option<u32> {
        match self.request.target {
            Target::Send(imm) => imm,
            Target::WriteImm(_, imm) => Some(imm),
        }
    }

    fn fragments(&self, mtu: u32) -> u32 {
        self.request.len.div_ceil(mtu).max(1)
    }

    /// The part to send before a fragment: the immediate precedes the first and the last.
    fn toward(&self, fragment: u32, mtu: u32) -> Next {
        let fragments = self.fragments(mtu);
        match fragment {
            k if k == fragments => Next::Nothing,
            k if self.imm().is_some() && (k == 0 || k + 1 == fragments) => {
                Next::Half { upper: false, before: k }
            }
            k => Next::Fragment(k),
        }
    }

    /// Where it goes, if it fits the grant.
    fn remote(&self, room: &Room) -> Option<Remote> {
        let offset = match self.request.target {
            Target::Send(_) => 0,
            Target::WriteImm(offset, _) => offset,
        };
        let fits = offset.checked_add(self.request.len).is_some_and(|end| end <= room.len);
        let addr = room.remote.addr.wrapping_add(offset.into());
        fits.then_some(Remote { addr, rkey: room.remote.rkey })
    }
}

/// The sending half.
#[derive(Debug)]
pub(super) struct Sender<P> {
    mtu: u32,
    /// Number of the oldest message.
    first: u64,
    messages: VecDeque<Message<P>>,
    /// Grants for messages that have not been posted yet, by number.
    early: VecDeque<Grant>,
    /// What the carrier has accepted and not yet reported: message and packets.
    in_flight: VecDeque<(u64, u32)>,
    in_flight_packets: u32,
    /// No deadline is earlier than this.
    wake: Time,
}

impl<P: Copy> Sender<P> {
    pub(super) fn new(mtu: Mtu) -> Sender<P> {
        Sender {
            mtu: mtu.bytes(),
            first: 0,
            messages: VecDeque::new(),
            early: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_packets: 0,
            wake: Time::NEVER,
        }
    }

    pub(super) fn post(&mut self, request: &ExpressSend<P>) -> Result<(), SdrError> {
        let max = u64::from(MAX_FRAGMENTS) * u64::from(self.mtu);
        if u64::from(request.len) > max {
            return Err(SdrError::TooLong { len: request.len.into(), max });
        }
        if self.messages.len() >= MAX_MESSAGES as usize {
            return Err(SdrError::Full { max: MAX_MESSAGES });
        }
        let number = self.first + self.messages.len() as u64;
        let known = self.early.iter().position(|grant| grant.number == number);
        let grant = known.and_then(|at| self.early.remove(at));
        let mut message = Message {
            request: *request,
            grant,
            next: Next::Nothing,
            in_flight: 0,
            bytes: 0,
            end: None,
        };
        message.next = message.toward(0, self.mtu);
        self.wake = self.wake.min(request.deadline);
        self.messages.push_back(message);
        Ok(())
    }

    pub(super) fn deadline(&self) -> Time {
        self.wake
    }

    /// The peer announces a receive; `false` if it cannot have one.
    pub(super) fn granted(&mut self, grant: &Grant) -> bool {
        let Some(at) = grant.number.checked_sub(self.first) else {
            // It belongs to a finished message.
            return true;
        };
        match self.messages.get_mut(at as usize) {
            Some(message) => message.grant = message.grant.or(Some(*grant)),
            None if at >= u64::from(2 * MAX_MESSAGES) => return false,
            None if self.early.len() >= MAX_MESSAGES as usize => return false,
            None => self.early.push_back(*grant),
        }
        true
    }

    /// Packets have left, in the order in which they were handed over; `false` if there were none.
    pub(super) fn sent(&mut self, mut packets: u32) -> bool {
        while packets > 0 {
            let Some((number, left)) = self.in_flight.front_mut() else { return false };
            let some = packets.min(*left);
            *left -= some;
            packets -= some;
            self.in_flight_packets -= some;
            let at = number.checked_sub(self.first);
            if let Some(message) = at.and_then(|at| self.messages.get_mut(at as usize)) {
                message.in_flight -= some;
            }
            if *left == 0 {
                self.in_flight.pop_front();
            }
        }
        true
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
        self.send(carrier);
        while let Some(message) = self.messages.front()
            && message.in_flight == 0
            && let Some((status, end)) = message.end
        {
            let is_write = matches!(message.request.target, Target::WriteImm(..));
            completions.push_back(Completion {
                wr_id: message.request.wr_id,
                status,
                opcode: if is_write { WcOpcode::Write } else { WcOpcode::Send },
                byte_len: message.bytes,
                end,
                ..Completion::default()
            });
            self.messages.pop_front();
            self.first += 1;
        }
    }

    /// Ends what is due, and determines what is due next.
    fn expire(&mut self, now: Time) {
        self.wake = Time::NEVER;
        for message in self.messages.iter_mut().filter(|message| message.end.is_none()) {
            if message.request.deadline <= now {
                message.end = Some((WcStatus::Success, EndMark::Deadline));
            } else {
                self.wake = self.wake.min(message.request.deadline);
            }
        }
    }

    /// Hands over what the carrier accepts, message after message.
    fn send(&mut self, carrier: &mut impl Carrier<Place = P>) {
        for at in 0..self.messages.len() {
            let message = &mut self.messages[at];
            if message.end.is_some() {
                continue;
            }
            let Some(grant) = message.grant else { return };
            let Some(room) = grant.room else {
                // Its receive has ended already.
                message.end = Some((WcStatus::Success, EndMark::Preempted));
                continue;
            };
            let Some(remote) = message.remote(&room) else {
                message.end = Some((WcStatus::LocLenErr, EndMark::Whole));
                continue;
            };
            while self.in_flight_packets < MAX_IN_FLIGHT {
                let room = MAX_IN_FLIGHT - self.in_flight_packets;
                let number = self.first + at as u64;
                let taken =
                    hand_over(carrier, &mut self.messages[at], number, remote, self.mtu, room);
                if taken == 0 {
                    break;
                }
                self.in_flight.push_back((number, taken));
                self.in_flight_packets += taken;
            }
            let message = &mut self.messages[at];
            if message.next != Next::Nothing {
                return;
            }
            message.end = Some((WcStatus::Success, EndMark::Whole));
        }
    }

    /// The carrier has failed: nothing will leave any more.
    pub(super) fn flush(&mut self, completions: &mut VecDeque<Completion>) {
        self.first += self.messages.len() as u64;
        completions.extend(self.messages.drain(..).map(|message| Completion {
            wr_id: message.request.wr_id,
            status: WcStatus::WrFlushErr,
            ..Completion::default()
        }));
        self.in_flight.clear();
        self.in_flight_packets = 0;
        self.wake = Time::NEVER;
    }
}

/// Hands over the next packets of a message, at most `room`, and returns how many were accepted.
fn hand_over<P: Copy>(
    carrier: &mut impl Carrier<Place = P>,
    message: &mut Message<P>,
    number: u64,
    remote: Remote,
    mtu: u32,
    room: u32,
) -> u32 {
    let (place, total) = (message.request.place, message.request.len);
    let fragments = message.fragments(mtu);
    let is_write = matches!(message.request.target, Target::WriteImm(..));
    match message.next {
        Next::Nothing => 0,
        Next::Half { upper, before } => {
            let imm = message.imm().unwrap_or(0);
            let half = if upper { imm >> 16 } else { imm & 0xffff };
            let imms = imm::series(Op::Half { upper }, number, half);
            let packet = Fragments { place, offset: 0, len: 0, count: 1, remote, imms };
            let taken = carrier.write(&packet);
            if taken > 0 {
                message.next =
                    if upper { Next::Fragment(before) } else { Next::Half { upper: true, before } };
            }
            message.in_flight += taken;
            taken
        }
        Next::Fragment(k) => {
            // The last one has an operation of its own, and goes alone.
            let last = k + 1 == fragments;
            let count = if last { 1 } else { room.min(fragments - 1 - k) };
            let offset = k * mtu;
            let len = (count * mtu).min(total - offset);
            let op = Op::Data { write: is_write, imm: message.imm().is_some(), last };
            let imms = imm::series(op, number, k);
            let remote = Remote { addr: remote.addr.wrapping_add(offset.into()), ..remote };
            let taken = carrier.write(&Fragments { place, offset, len, count, remote, imms });
            let taken = taken.min(count);
            if taken > 0 {
                message.bytes += (taken * mtu).min(total - offset);
                message.next = message.toward(k + taken, mtu);
            }
            message.in_flight += taken;
            taken
        }
    }
}
