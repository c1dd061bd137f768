//! How fast a QP may send: rate controllers, and the factories that they come from.
//!
//! A QP gets a [`ControllerFactory`]
//! ([`Nic::set_rate_controller`](crate::Nic::set_rate_controller)), which builds a
//! [`RateController`] whenever a connection begins: a path that is new is learned anew. The engine
//! tells the controller what happens, and asks it for a pacing rate and a window at the beginning
//! of each of the QP's turns and after everything that it has told. The controllers of this module
//! are made of nothing but that; others can be written anywhere.

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

/// Told what happens to a QP, asked how fast it may send.
///
/// It has no timers of its own: whatever should have happened by `now` is caught up with when it is
/// asked or told something. It allocates nothing once built.
///
/// What it hears depends on the transport. All tell what was sent, and pass CNPs on. RC tells what
/// was acknowledged, with round trips, and what it sends again; and marks on the answers to READs.
/// XP tells as much from feedback, for which it asks if the controller [wants
/// it](RateController::wants_feedback). UC and UD hear nothing of what becomes of their packets: a
/// protocol above them that does can tell the controller by
/// [`Nic::rate_feedback`](crate::Nic::rate_feedback).
pub trait RateController: Debug + Send {
    /// Bits per second of UDP payload at `now`. `None` is no limit; 0 holds the QP until the
    /// controller has been told something and says otherwise.
    fn pacing_rate_bps(&mut self, now: Time) -> Option<u64>;

    /// Most bytes in flight, on transports that know what is; `None` is no limit. It applies on top
    /// of the window of the path or the QP, and a packet always goes if nothing is in flight.
    fn window_bytes(&self) -> Option<u64> {
        None
    }

    /// Most bytes that one turn may send, for controllers that count what they allow; `None` is no
    /// limit. A turn that is allowed anything sends a packet at least.
    fn turn_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether data packets say that they understand ECN marks. Asked once.
    fn wants_ecn(&self) -> bool {
        false
    }

    /// Whether it has to hear of what arrives. Asked once. A transport that does not acknowledge
    /// packets but can ask for feedback (XP) does so then.
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

    /// Something was lost, as far as the transport can tell.
    fn on_lost(&mut self, now: Time, lost: &Lost) {
        let _ = (now, lost);
    }

    /// So many bytes of payload met congestion on their way: a switch has marked their packets.
    fn on_marked(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }

    /// The peer's NIC notifies of congestion (CNP).
    fn on_cnp(&mut self, now: Time) {
        let _ = now;
    }

    /// The receiver grants so many more bytes.
    fn on_credit(&mut self, now: Time, bytes: u64) {
        let _ = (now, bytes);
    }
}

/// What a QP has sent in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// UDP payload: data, headers, acknowledgements, and what shims add.
    pub bytes: u64,
    /// What is in flight now, packets counted as full ones, where the transport knows it. What
    /// READs have asked for is in flight too.
    pub in_flight_bytes: Option<u64>,
    /// There is nothing more to send for now: neither the rate nor a window is what holds the QP
    /// back.
    pub app_limited: bool,
}

/// What has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// Payload that was acknowledged, or that came as the answer to a READ.
    pub bytes: u64,
    /// Time from a packet's first sending to its acknowledgement, if this acknowledges one that was
    /// timed and sent once. About one packet in a round trip is timed.
    pub rtt_ns: Option<u64>,
    /// What is still in flight, as in [`Sent`].
    pub in_flight_bytes: u64,
    /// There is nothing more to send for now.
    pub app_limited: bool,
    /// When it had arrived, in nanoseconds of the peer's clock, where the peer tells. It says how
    /// fast data arrives, however unevenly feedback does.
    pub arrival_ns: Option<u64>,
}

/// What is thought lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// What has to be sent again, packets counted as full ones; with go-back-N that is all that was
    /// in flight.
    pub bytes: u64,
    /// Nothing was heard for too long. Otherwise the peer, or a missing answer, has told.
    pub timeout: bool,
}

/// What a protocol above a QP tells its rate controller: see
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
    /// Tells a controller.
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
