//! Transports: one per type of QP, each behind [`Transport`], none knowing another.

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

/// How far a transport has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    /// Requests below this number have begun to be sent.
    pub(crate) started: u64,
    /// PSN of the peer's next request.
    pub(crate) expected: Psn,
    /// When something sent was last heard of, or nothing was under way.
    pub(crate) progress_at: Time,
}

/// What changes whenever the peer of a reliable connection acts. Who wants to change it in the
/// peer's name must know a PSN, but for answers to probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// What it has acknowledged.
    pub(crate) acknowledged: Psn,
    /// What it has sent.
    pub(crate) expected: Psn,
    /// Probes that it has answered.
    pub(crate) answers: u8,
}

/// The protocol of a type of QP.
///
/// A transport works on the queues and attributes in its [`QpCore`]. It reports failures with
/// [`QpCore::fail`], which take effect when the call returns, and never looks at another QP.
pub(crate) trait Transport: Send {
    /// The QP has just changed its state from `from` to what `core` says.
    fn entered(&mut self, core: &mut QpCore, from: QpState);

    /// A packet for this QP: intact, from the right peer, of this transport's service.
    /// `meta` is absent for a packet that a shim has restored.
    ///
    /// Returns whether anything follows from it: something may be ready to send, a deadline may
    /// have changed, or the QP has failed. For most packets of a bulk transfer nothing does.
    fn receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        meta: Option<&FrameMeta>,
    ) -> bool;

    /// Packets from the middle of messages, without requests for acknowledgements: as many of them
    /// as there is nothing special about. Returns how many, from the first on; nothing follows from
    /// them.
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

    /// A deadline may have passed.
    fn handle_timeout(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// The smoothed round trip to the peer, if the transport times it.
    fn round_trip_ns(&self) -> Option<u64> {
        None
    }

    /// What is in flight, packets counted as full ones, if the transport knows.
    fn in_flight_bytes(&self, core: &QpCore) -> Option<u64> {
        let _ = core;
        None
    }

    /// A request or receive with this deadline was posted. Called where requests have deadlines.
    fn posted(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, deadline: Time) {
        let _ = (core, cx, deadline);
    }

    /// Sends again what is not acknowledged. For reliable transports.
    fn resend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// Sets how messages are received, before any has been. For transports whose requests have
    /// deadlines.
    fn set_options(&mut self, options: &XpOptions) {
        let _ = options;
    }

    /// What was missing of the oldest message on record that ended in part.
    fn take_loss(&mut self) -> Option<LossRecord> {
        None
    }

    /// The peer is granted so many more bytes. Called where the transport has asked for it.
    fn grant(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Whether nothing that was started is unfinished.
    fn is_drained(&self, core: &QpCore) -> bool;

    /// The QP leaves this NIC: forget what is true of one path only, so that all that is not
    /// acknowledged is sent again, and answered from the record.
    fn suspend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let _ = (core, cx);
    }

    /// The QP leaves its path: gives back what is charged to it.
    fn release_charge(&mut self, core: &QpCore, paths: &mut PathTable) {
        let _ = (core, paths);
    }

    /// How far it has come.
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

    /// Gives back the receive taken for a message that is half there.
    fn give_back(&mut self) -> Option<RecvWqe> {
        None
    }

    /// The QP is going to the error state, or away: let go of everything, flush what was taken off
    /// a queue.
    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>);
}

/// Type of a QP: which transport it runs.
///
/// This is the list of transports. Whatever else there is to know about one is in its
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
    /// Extended reliable connection: its messages name a shared receive queue of the peer's.
    Xrc,
}

impl QpType {
    /// All of them.
    pub const ALL: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Xp, QpType::Xrc];

    /// The number by which Bowline's set-up exchanges name it.
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

    /// What the transport is.
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
