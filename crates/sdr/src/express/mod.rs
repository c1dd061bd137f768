//! XP's semantics on NICs without XP: best effort with deadlines over an unreliable connection.
//!
//! Every fragment of a message is a single-packet WRITE with immediate, and every receive has a key
//! of its own, which is revoked when the receive ends. `docs/xp.md`, "On NICs without it", has the
//! rules and the reasons. The protocol needs only a [`Carrier`]: [`OnNic`] is the soft NIC's, and
//! others implement the trait for foreign NICs.

mod carrier;
mod fragments;
mod grant;
mod imm;
mod nic;
mod receive;
mod send;

use std::collections::VecDeque;

use bowline_nic::{Completion, LossRecord, Mtu, Time, XpOptions};

pub use carrier::{Carrier, CarrierEvent, Fragments};
pub use grant::GRANT_LEN;
pub use imm::{MAX_FRAGMENTS, Op};
pub use nic::{NicInfo, NicObjects, OnNic};
use receive::Receiver;
use send::Sender;

use crate::error::SdrError;

/// Messages posted and not complete, in each direction.
pub const MAX_MESSAGES: u32 = 1024;
/// Receives whose keys are open at a time.
pub const MAX_OPEN: u32 = 32;
/// Fragments handed to the NIC that have not left yet.
pub const MAX_IN_FLIGHT: u32 = 32;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A SEND: to the beginning of the peer's receive, with an optional immediate.
    Send(Option<u32>),
    /// A WRITE with immediate: to this offset of the peer's receive.
    WriteImm(u32, u32),
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct ExpressSend<P> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where its bytes are.
    pub place: P,
    /// How many.
    pub len: u32,
    /// Where they go.
    pub target: Target,
    /// When it ends, however much has been sent by then.
    pub deadline: Time,
}

/// Memory for the peer's next message.
#[derive(Clone, Copy, Debug)]
pub struct ExpressRecv<P> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the memory is.
    pub place: P,
    /// Its length.
    pub len: u32,
    /// When it ends, however much has arrived by then.
    pub deadline: Time,
}

/// Counters of dropped packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpressCounters {
    /// Fragments of messages whose receive has ended, or was never granted.
    pub late: u64,
    /// Fragments that had arrived before.
    pub duplicates: u64,
    /// Fragments and grants that contradict themselves or others.
    pub malformed: u64,
}

/// A queue pair of messages that end by their deadline, over a [`Carrier`].
///
/// Message r goes to receive r, both counted in posting order, so that a message that is lost as a
/// whole does not shift those after it. Completions are those of native XP: see
/// [`EndMark`](bowline_nic::EndMark).
///
/// # Driving it
/// It does no IO and reads no clock. After anything that may have changed the carrier, after every
/// post, and when [`poll_timeout`](ExpressQp::poll_timeout) has come, the owner calls
/// [`drive`](ExpressQp::drive), then calls [`poll`](ExpressQp::poll) until it returns nothing. Time
/// is monotonic.
#[derive(Debug)]
pub struct ExpressQp<P> {
    sender: Sender<P>,
    receiver: Receiver<P>,
    completions: VecDeque<Completion>,
    counters: ExpressCounters,
    failed: bool,
}

impl<P: Copy> ExpressQp<P> {
    /// A queue pair whose fragments carry one MTU each. Both ends must agree on the MTU; the
    /// options are the receiver's choice.
    pub fn new(mtu: Mtu, options: XpOptions) -> Result<ExpressQp<P>, SdrError> {
        if !options.window.is_power_of_two() || options.window > 16 {
            let why = format!("{} is not 1, 2, 4, 8 or 16", options.window);
            return Err(SdrError::Config { what: "window", why });
        }
        Ok(ExpressQp {
            sender: Sender::new(mtu),
            receiver: Receiver::new(mtu, options),
            completions: VecDeque::new(),
            counters: ExpressCounters::default(),
            failed: false,
        })
    }

    /// Adds a message to send.
    pub fn post_send(&mut self, send: &ExpressSend<P>) -> Result<(), SdrError> {
        self.sender.post(send)
    }

    /// Adds memory for the peer's next message.
    pub fn post_recv(&mut self, recv: &ExpressRecv<P>) -> Result<(), SdrError> {
        self.receiver.post(recv)
    }

    /// Processes events and does what is due.
    pub fn drive(&mut self, now: Time, carrier: &mut impl Carrier<Place = P>) {
        self.hear_all(now, carrier);
        loop {
            if self.failed {
                self.sender.flush(&mut self.completions);
                self.receiver.flush(&mut self.completions);
                return;
            }
            self.receiver.drive(now, carrier, &mut self.completions);
            self.sender.drive(now, carrier, &mut self.completions);
            if !self.hear_all(now, carrier) {
                return;
            }
        }
    }

    /// Processes events; returns whether there were any.
    fn hear_all(&mut self, now: Time, carrier: &mut impl Carrier<Place = P>) -> bool {
        let mut heard = false;
        while let Some(event) = carrier.next_event() {
            self.hear(now, event);
            heard = true;
        }
        heard
    }

    fn hear(&mut self, now: Time, event: CarrierEvent) {
        match event {
            CarrierEvent::Opened { number, remote } => self.receiver.opened(number, remote),
            CarrierEvent::Revoked { number } => {
                self.receiver.revoked(number, &mut self.completions);
            }
            CarrierEvent::Landed { imm, bytes } => {
                self.receiver.landed(now, imm, bytes, &mut self.counters);
            }
            CarrierEvent::Sent { fragments } => {
                self.failed |= !self.sender.sent(fragments);
            }
            CarrierEvent::Control(message) => match grant::Grant::parse(&message) {
                Some(grant) if self.sender.granted(&grant) => {}
                _ => self.counters.malformed += 1,
            },
            CarrierEvent::Failed => self.failed = true,
        }
    }

    /// When to call [`drive`](ExpressQp::drive) if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let wake = self.sender.deadline().min(self.receiver.deadline());
        (wake != Time::NEVER).then_some(wake)
    }

    /// The next completed request. Those of receives are in the order in which they ended.
    pub fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The oldest record of what was missing from a receive that ended in part. A QP keeps as many
    /// as its options say.
    pub fn take_loss(&mut self) -> Option<LossRecord> {
        self.receiver.take_loss()
    }

    /// Whether the carrier has failed: then everything outstanding is flushed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Counters of dropped packets, by reason.
    pub fn counters(&self) -> ExpressCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
