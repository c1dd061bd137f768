//! Rate controllers, which decide how fast a QP may send, and their factories.
//!
//! A QP has a [`ControllerFactory`]
//! ([`Nic::set_rate_controller`](crate::Nic::set_rate_controller)), which builds a
//! [`RateController`] whenever a connection begins: a new path is learned anew. The engine reports
//! what happens to the controller, and asks it for a pacing rate and a window at the start of each
//! of the QP's turns and after every report. The controllers in this module use nothing else;
//! others can be written outside this crate.

mod bbr;
mod choice;
mod dcqcn;
mod eqds;
mod fixed;
mod report;
mod swift;

pub use bbr::BbrParams;
pub use choice::{ParseRateControlError, RateControl};
use core::fmt::Debug;
pub use dcqcn::DcqcnParams;
pub use eqds::{EqdsParams, Grantor};
pub use fixed::FixedRate;
pub use report::{Heard, Report, ReportMeter};
pub use swift::SwiftParams;

use crate::time::Time;
use crate::types::{Mtu, TransportDescriptor};

/// Makes rate controllers, one for each connection.
pub trait ControllerFactory: Debug + Send + Sync {
    /// A controller for a connection that begins at `now`.
    fn build(&self, now: Time, connection: &ControlledConnection) -> Box<dyn RateController>;
}

/// The connection that a controller is for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ControlledConnection {
    /// The transport, which decides what the controller will hear: see [`RateController`].
    pub transport: &'static TransportDescriptor,
    /// Path MTU: the most payload that a packet carries.
    pub mtu: Mtu,
}

impl ControlledConnection {
    /// A connection of this transport. A protocol that spreads one connection over several QPs
    /// builds the controller itself.
    pub fn new(transport: &'static TransportDescriptor, mtu: Mtu) -> ControlledConnection {
        ControlledConnection { transport, mtu }
    }
}

/// Unless a controller knows the path: short beside the round trips of a data center.
pub(crate) const BURST_NS: u32 = 100_000;

/// Hears what happens to a QP, and decides how fast it may send.
///
/// It has no timers of its own: it catches up with whatever should have happened by `now` when it
/// is called. Once built it allocates nothing.
///
/// What it hears depends on the transport. All report what was sent, and pass CNPs on. RC reports
/// what was acknowledged, with round-trip times, what it retransmits, and marks on READ responses.
/// XP reports as much from feedback, which it requests if the controller [wants
/// it](RateController::wants_feedback). UC and UD do not know what becomes of their packets: a
/// protocol above them that does can report it by
/// [`Nic::rate_feedback`](crate::Nic::rate_feedback).
pub trait RateController: Debug + Send {
    /// Bits per second of UDP payload at `now`. `None` is no limit; 0 stops the QP until a later
    /// call makes the controller say otherwise.
    fn pacing_rate_bps(&mut self, now: Time) -> Option<u64>;

    /// Most bytes in flight, on transports that know this number; `None` is no limit. It applies on
    /// top of the window of the path or the QP. With nothing in flight a packet may always go.
    fn window_bytes(&self) -> Option<u64> {
        None
    }

    /// Most bytes that one turn may send, for controllers that count what they allow; `None` is no
    /// limit. A turn that may send anything sends at least one packet.
    fn turn_bytes(&self) -> Option<u64> {
        None
    }

    /// The length of a burst in time; it has at most 60 KiB. A burst is one system call, where
    /// single packets would be one each; a queue on the path has to hold it.
    fn burst_ns(&self) -> u32 {
        BURST_NS
    }

    /// Whether data packets are marked ECN-capable. Asked once.
    fn wants_ecn(&self) -> bool {
        false
    }

    /// Whether it needs to know what arrives. Asked once. A transport that does not acknowledge
    /// packets but can request feedback (XP) then does.
    fn wants_feedback(&self) -> bool {
        false
    }

    /// The QP has had a turn, and sent something.
    fn on_sent(&mut self, now: Time, sent: &Sent) {
        let _ = (now, sent);
    }

    /// The peer has acknowledged something new.
    fn on_acked(&mut self, now: Time, acked: &Acked) {
        let _ = (now, acked);
    }

    /// The transport believes that something was lost.
    fn on_lost(&mut self, now: Time, lost: &Lost) {
        let _ = (now, lost);
    }

    /// This many payload bytes met congestion: a switch has marked their packets.
    fn on_marked(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }

    /// The peer's NIC has sent a CNP.
    fn on_cnp(&mut self, now: Time) {
        let _ = now;
    }

    /// The receiver grants this many more bytes.
    fn on_credit(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }
}

/// What a QP sent in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// UDP payload: data, headers, acknowledgements, and what shims add.
    pub bytes: u64,
    /// Bytes in flight now, counting each packet as a full one, where the transport knows. Data
    /// that READs have requested counts too.
    pub in_flight_bytes: Option<u64>,
    /// There is nothing more to send for now: neither the rate nor a window holds the QP back.
    pub app_limited: bool,
}

/// What was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Payload that was acknowledged, or that came as a READ response.
    pub bytes: u64,
    /// Time from a packet's first transmission to its acknowledgement, if this acknowledges a timed
    /// packet that was sent once. About one packet per round trip is timed.
    pub rtt_ns: Option<u64>,
    /// Bytes still in flight, as in [`Sent`].
    pub in_flight_bytes: u64,
    /// There is nothing more to send for now.
    pub app_limited: bool,
    /// When it arrived, in nanoseconds of the peer's clock, if the peer reports it. It shows the
    /// delivery rate however irregular feedback is.
    pub arrival_ns: Option<u64>,
}

/// What is considered lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Bytes to retransmit, counting each packet as a full one; with go-back-N that is everything
    /// in flight.
    pub bytes: u64,
    /// A timeout. Otherwise a NAK or a missing response revealed the loss.
    pub timeout: bool,
}

/// Feedback from a protocol above a QP to its rate controller: see
/// [`Nic::rate_feedback`](crate::Nic::rate_feedback).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// For [`RateController::on_acked`].
    Acked(Acked),
    /// For [`RateController::on_lost`].
    Lost(Lost),
    /// For [`RateController::on_marked`]: bytes.
    Marked(u64),
    /// For [`RateController::on_credit`]: bytes.
    Credit(u64),
}

impl Feedback {
    /// Passes it to a controller.
    pub fn tell(&self, controller: &mut dyn RateController, now: Time) {
        match self {
            Feedback::Acked(acked) => controller.on_acked(now, acked),
            Feedback::Lost(lost) => controller.on_lost(now, lost),
            Feedback::Marked(bytes) => controller.on_marked(now, *bytes),
            Feedback::Credit(bytes) => controller.on_credit(now, *bytes),
        }
    }
}

#[cfg(test)]
mod tests;
