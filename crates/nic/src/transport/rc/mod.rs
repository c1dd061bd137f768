//! Reliable connection: acknowledged, in order, exactly once, by go-back-N.
//!
//! Extended reliable connections are the same with other opcodes, and an extra header in requests:
//! see [`extended`].
//!
//! A QP consists of two state machines that share only the QP: the requester processes the send
//! queue ([`requester`]), the responder carries out the peer's requests ([`responder`]).

mod acks;
mod direct;
mod extended;
mod requester;
mod resources;
mod responder;
mod rtt;

use bowline_wire::{OpKind, Opcode, OpcodeSet, PacketView, Service};

use self::extended::Addressed;
pub(super) use self::extended::EXTENDED;
use self::requester::Requester;
use self::responder::Responder;
use super::descriptor::{MAX_PSNS, Operations, TransportDescriptor};
use super::outbound::XRC;
use super::{Position, Signs, Transport};
use crate::frame::FrameMeta;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::RecvWqe;
use crate::sched::PathTable;
use crate::time::Time;
use crate::train::Train;
use crate::types::QpState;

/// Opcodes of the reliable connection service start here.
const SERVICE: u8 = 0x00;

/// Properties of RC.
pub(super) static DESCRIPTOR: TransportDescriptor = TransportDescriptor {
    name: "RC",
    service: Service::Rc,
    opcodes: OpcodeSet::range(Opcode::RC_SEND_FIRST, Opcode::RC_SEND_ONLY_INV),
    // Each message in a sequence of single-packet messages would need its own place among the
    // requests that await acknowledgement.
    operations: Operations::all().difference(Operations::WRITE_PACKETS),
    max_packets: MAX_PSNS,
    connected: true,
    reliable: true,
    shimmable: true,
    movable: true,
    landings: false,
    deadlines: false,
    addressed: false,
    annotated: false,
    build: || Box::<Rc<SERVICE>>::default(),
};

/// The RC and XRC transports: the services whose opcodes start at `SERVICE`.
#[derive(Debug, Default)]
pub(super) struct Rc<const SERVICE: u8> {
    requester: Requester<SERVICE>,
    responder: Responder<SERVICE>,
    requester_first: bool,
    /// Used by XRC alone.
    addressed: Addressed,
}

impl<const SERVICE: u8> Rc<SERVICE> {
    /// Handles a request of the peer's.
    #[inline]
    fn take_request(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> bool {
        // One reply answers many requests: once it is due, further requests have no consequences.
        let was_due = self.responder.has_work();
        self.responder.receive(core, cx, packet);
        core.has_failed() || (!was_due && self.responder.has_work())
    }
}

impl<const SERVICE: u8> Transport for Rc<SERVICE> {
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
            _ if SERVICE == XRC => self.take_addressed(core, cx, packet),
            _ => self.take_request(core, cx, packet),
        }
    }

    fn receive_train(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, train: &mut Train<'_>) -> u32 {
        // Each XRC packet names its addressee.
        if SERVICE == XRC { 0 } else { self.responder.receive_train(core, cx, train) }
    }

    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        // Half of the turn each when both have work, and they alternate in going first: a pacer may
        // let only one packet through, and an endless READ from the peer must not block our own
        // requests for ever.
        //
        // A standalone acknowledgement goes before requests, in every turn. Programs answer a
        // message as soon as they have it, and expect the sender's completion to arrive before
        // their answer: a NIC acknowledges a message before it reports it to its program.
        self.requester_first = !self.requester_first && !self.responder.owes_reply_alone();
        let both = self.requester.has_work(core) && self.responder.has_work();
        let share = if both { budget.div_ceil(2) } else { budget };
        let mut progress = [Progress::Idle; 2];
        for (i, slot) in progress.iter_mut().enumerate() {
            *slot = if (i == 0) == self.requester_first {
                self.requester.transmit(core, cx, sink, share)
            } else if SERVICE == XRC {
                self.as_addressee(core, cx, |responder, core, cx| {
                    responder.transmit(core, cx, sink, share)
                })
            } else {
                self.responder.transmit(core, cx, sink, share)
            };
            if core.has_failed() {
                return Progress::Idle;
            }
        }
        // The one that needs the QP to run again soonest.
        [
            Progress::More,
            Progress::Copied,
            Progress::Paced,
            Progress::PathFull,
            Progress::WindowFull,
        ]
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

    fn carry_out(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.carry_out(core, cx);
    }

    fn resend(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.resend(core, cx);
    }

    fn in_flight_bytes(&self, core: &QpCore) -> Option<u64> {
        Some(self.requester.in_flight_bytes(core))
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.requester.rtt.smoothed_ns()
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

    fn signs(&self) -> Signs {
        Signs {
            acknowledged: self.requester.una,
            expected: self.responder.expected(),
            answers: self.requester.probe_answers,
        }
    }

    fn probe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, sink: &mut Sink<'_>) {
        self.requester.probe(core, cx, sink);
    }

    fn give_back(&mut self) -> Option<RecvWqe> {
        self.responder.give_back()
    }

    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.requester.abort(core, cx);
        if SERVICE == XRC {
            self.as_addressee(core, cx, |responder, core, cx| responder.abort(core, cx));
        } else {
            self.responder.abort(core, cx);
        }
    }
}
