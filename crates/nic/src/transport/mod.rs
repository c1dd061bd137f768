//! Transports: one per QP type, each behind [`Transport`] and independent of the others.

mod descriptor;
mod inbound;
mod local;
mod outbound;
mod rc;
mod uc;
mod ud;
mod xp;

use bowline_wire::{PacketView, Psn};

pub use self::descriptor::{Operations, TransportDescriptor};
pub(crate) use self::xp::max_stride;
pub use self::xp::{LossRecord, XpOptions};

use crate::frame::FrameMeta;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::RecvWqe;
use crate::sched::PathTable;
use crate::time::Time;
use crate::train::Train;
use crate::types::QpState;

/// How far a transport has got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Requests below this number have been started.
    pub(crate) started: u64,
    /// PSN of the peer's next request.
    pub(crate) expected: Psn,
    /// When the peer last made progress with what was sent, or nothing was in flight.
    pub(crate) progress_at: Time,
}

/// Values that change whenever the peer of a reliable connection acts. To forge such a change an
/// attacker must know a PSN, except for answers to probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// What the peer has acknowledged.
    pub(crate) acknowledged: Psn,
    /// What the peer has sent.
    pub(crate) expected: Psn,
    /// Probes that the peer has answered.
    pub(crate) answers: u8,
}

/// The protocol of a QP type.
///
/// A transport works on the queues and attributes in its [`QpCore`]. It reports failures with
/// [`QpCore::fail`], which take effect when the call returns, and never looks at another QP.
pub(crate) trait Transport: Send {
    /// The QP has just changed its state from `from` to what `core` says.
    fn entered(&mut self, core: &mut QpCore, from: QpState);

    /// A packet for this QP: intact, from the right peer, of this transport's service.
    /// `meta` is absent for a packet that a shim has restored.
    ///
    /// Returns whether the packet has consequences: something may be ready to send, a deadline may
    /// have changed, or the QP has failed. Most packets of a bulk transfer have none.
    fn receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        meta: Option<&FrameMeta>,
    ) -> bool;

    /// Handles packets from the middle of messages, without acknowledgement requests, until one
    /// needs the slow path. Returns how many; they have no consequences.
    fn receive_train(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, train: &mut Train<'_>) -> u32 {
        let _ = (core, cx, train);
        0
    }

    /// Sends up to `budget` packets.
    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress;

    /// Whether [`Transport::transmit`] might send something.
    fn has_work(&self, core: &QpCore) -> bool;

    /// When [`Transport::handle_timeout`] wants to be called.
    fn deadline(&self) -> Time {
        Time::NEVER
    }

    /// Handles deadlines that may have passed.
    fn handle_timeout(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// The smoothed round trip to the peer, if the transport measures it.
    fn round_trip_ns(&self) -> Option<u64> {
        None
    }

    /// Bytes in flight, counting each packet as a full one, if the transport knows.
    fn in_flight_bytes(&self, core: &QpCore) -> Option<u64> {
        let _ = core;
        None
    }

    /// A request or receive with this deadline was posted. Called where requests have deadlines.
    fn posted(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, deadline: Time) {
        let _ = (core, cx, deadline);
    }

    /// A request was posted: carries it out without a packet, if that is possible now.
    fn carry_out(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// Retransmits what is not acknowledged. For reliable transports.
    fn resend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// Sets how messages are received, before the first one. For transports whose requests have
    /// deadlines.
    fn set_options(&mut self, options: &XpOptions) {
        let _ = options;
    }

    /// What was missing of the oldest message on record that ended in part.
    fn take_loss(&mut self) -> Option<LossRecord> {
        None
    }

    /// The peer is granted this many more bytes. Called where the transport has asked for it.
    fn grant(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether everything that was started is finished.
    fn is_drained(&self, core: &QpCore) -> bool;

    /// The QP leaves this NIC: forget what applies to one path only, so that unacknowledged
    /// requests are retransmitted, and answered from the record.
    fn suspend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// The QP leaves its path: releases the bytes charged to it.
    fn release_charge(&mut self, core: &QpCore, paths: &mut PathTable) {
        let _ = (core, paths);
    }

    /// How far it has got.
    fn position(&self) -> Position {
        Position::default()
    }

    /// What the peer has shown of itself.
    fn signs(&self) -> Signs {
        Signs::default()
    }

    /// Asks the peer for an acknowledgement of what it has acknowledged already. For reliable
    /// transports.
    fn probe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, sink: &mut Sink<'_>) {
        let _ = (core, cx, sink);
    }

    /// Gives back the receive taken for a partly received message.
    fn give_back(&mut self) -> Option<RecvWqe> {
        None
    }

    /// The QP goes to the error state, or away: drop all state, and flush what was taken off a
    /// queue.
    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>);
}

/// Type of a QP: which transport it runs.
///
/// This is the list of transports. Everything else about one is in its
/// [`descriptor`](QpType::descriptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// OptiNIC's express path: best effort with deadlines.
    Xp,
    /// Extended reliable connection: its messages name one of the peer's shared receive queues.
    Xrc,
}

impl QpType {
    /// All of them.
    pub const ALL: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Xp, QpType::Xrc];

    /// The number that stands for it in Bowline's set-up exchanges.
    pub const fn code(self) -> u8 {
        match self {
            QpType::Rc => 1,
            QpType::Uc => 2,
            QpType::Ud => 3,
            QpType::Xp => 4,
            QpType::Xrc => 5,
        }
    }

    /// The type of this number.
    pub fn from_code(code: u8) -> Option<QpType> {
        QpType::ALL.into_iter().find(|qp_type| qp_type.code() == code)
    }

    /// Properties of the transport.
    #[inline]
    pub fn descriptor(self) -> &'static TransportDescriptor {
        match self {
            QpType::Rc => &rc::DESCRIPTOR,
            QpType::Uc => &uc::DESCRIPTOR,
            QpType::Ud => &ud::DESCRIPTOR,
            QpType::Xp => &xp::DESCRIPTOR,
            QpType::Xrc => &rc::EXTENDED,
        }
    }
}
