//! Reliable connection: acknowledged, in order, exactly once, by go-back-N.
//!
//! A QP is two machines that share nothing but the QP: the requester works off the send queue
//! ([`requester`]), the responder carries out the peer's requests ([`responder`]).

mod acks;
mod requester;
mod resources;
mod responder;
mod rtt;

use bowline_wire::{OpKind, Opcode, OpcodeSet, PacketView, Service};

use self::requester::Requester;
use self::responder::Responder;
use super::descriptor::{MAX_PSNS, Operations, TransportDescriptor};
use super::{Position, Transport};
use crate::frame::FrameMeta;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::RecvWqe;
use crate::sched::PathTable;
use crate::time::Time;
use crate::train::Train;
use crate::types::QpState;

/// Opcodes of the reliable connection service start here.
const SERVICE: u8 = 0x00;

/// What RC is.
pub(super) static DESCRIPTOR: TransportDescriptor = TransportDescriptor {
    name: "RC",
    service: Service::Rc,
    opcodes: OpcodeSet::range(Opcode::RC_SEND_FIRST, Opcode::RC_SEND_ONLY_INV),
    // A sequence of single-packet messages would each need its own place among the requests that await
    // acknowledgement.
    operations: Operations::all().difference(Operations::WRITE_PACKETS),
    max_packets: MAX_PSNS,
    connected: true,
    reliable: true,
    shimmable: true,
    movable: true,
    landings: false,
    deadlines: false,
    build: || Box::<Rc>::default(),
};

/// The RC transport.
#[derive(Debug, Default)]
pub(super) struct Rc {
    requester: Requester,
    responder: Responder,
    requester_first: bool,
}

impl Transport for Rc {
    fn entered(&mut self, core: &mut QpCore, from: QpState) {
        match core.state {
            QpState::Rtr => self.responder.start(core),
            QpState::Rts if from == QpState::Rtr => self.requester.start(core),
            _ => {}
        }
    }

    fn receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        _meta: Option<&FrameMeta>,
    ) -> bool {
        match packet.info().kind {
            OpKind::Ack | OpKind::AtomicAck | OpKind::ReadResponse => {
                self.requester.receive(core, cx, packet);
                true
            }
            _ => {
                // One answer serves many requests: once it is due, nothing more follows.
                let was_due = self.responder.has_work();
                self.responder.receive(core, cx, packet);
                core.has_failed() || (!was_due && self.responder.has_work())
            }
        }
    }

    fn receive_train(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, train: &mut Train<'_>) -> u32 {
        self.responder.receive_train(core, cx, train)
    }

    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        // Half of the turn each when both have work, and each first every other time: a pacer may
        // let only one packet through, and an endless READ from the peer must not keep our own
        // requests waiting for ever.
        self.requester_first = !self.requester_first;
        let both = self.requester.has_work(core) && self.responder.has_work();
        let share = if both { budget.div_ceil(2) } else { budget };
        let mut progress = [Progress::Idle; 2];
        for (i, slot) in progress.iter_mut().enumerate() {
            *slot = if (i == 0) == self.requester_first {
                self.requester.transmit(core, cx, sink, share)
            } else {
                self.responder.transmit(core, cx, sink, share)
            };
            if core.has_failed() {
                return Progress::Idle;
            }
        }
        // Whichever calls for the QP to be served again soonest.
        [Progress::More, Progress::Paced, Progress::PathFull, Progress::WindowFull]
            .into_iter()
            .find(|p| progress.contains(p))
            .unwrap_or(Progress::Idle)
    }

    fn has_work(&self, core: &QpCore) -> bool {
        self.responder.has_work() || self.requester.has_work(core)
    }

    fn deadline(&self) -> Time {
        self.requester.deadline()
    }

    fn handle_timeout(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.handle_timeout(core, cx);
    }

    fn resend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.resend(core, cx);
    }

    fn in_flight_bytes(&self, core: &QpCore) -> Option<u64> {
        Some(self.requester.in_flight_bytes(core))
    }

    fn is_drained(&self, core: &QpCore) -> bool {
        self.requester.is_drained(core)
    }

    fn suspend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.suspend(core, cx);
        self.responder.suspend();
    }

    fn release_charge(&mut self, core: &QpCore, paths: &mut PathTable) {
        self.requester.release_charge(core, paths);
    }

    fn position(&self) -> Position {
        Position {
            started: self.requester.started,
            expected: self.responder.expected(),
            progress_at: self.requester.progress_at,
        }
    }

    fn give_back(&mut self) -> Option<RecvWqe> {
        self.responder.give_back()
    }

    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.abort(core, cx);
        self.responder.abort(core, cx);
    }
}
