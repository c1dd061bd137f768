//! Unreliable connection: no acknowledgements. A message with a missing packet is dropped whole;
//! the receiver resumes at the next message.

use bowline_wire::{Opcode, OpcodeSet, PacketView, Psn, Service};

use super::descriptor::{MAX_PSNS, Operations, TransportDescriptor};
use super::inbound::{Inbound, Refusal};
use super::{Transport, local, outbound};
use crate::frame::FrameMeta;
use crate::memory::AccessDenied;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::train::Train;
use crate::types::{QpState, WcStatus};

/// Opcodes of the unreliable connection service start here.
const SERVICE: u8 = 0x20;

/// Properties of UC.
pub(super) static DESCRIPTOR: TransportDescriptor = TransportDescriptor {
    name: "UC",
    service: Service::Uc,
    opcodes: OpcodeSet::range(Opcode::UC_SEND_FIRST, Opcode::UC_WRITE_ONLY_IMM),
    operations: Operations::SEND
        .union(Operations::SEND_IMM)
        .union(Operations::WRITE)
        .union(Operations::WRITE_IMM)
        .union(Operations::WRITE_PACKETS)
        .union(Operations::WINDOWS),
    max_packets: MAX_PSNS,
    connected: true,
    reliable: false,
    shimmable: true,
    movable: false,
    landings: true,
    deadlines: false,
    addressed: false,
    annotated: false,
    build: || Box::<Uc>::default(),
};

/// The UC transport.
#[derive(Debug)]
pub(super) struct Uc {
    next_psn: Psn,
    expected_psn: Psn,
    /// Next packet of the request at the head of the queue.
    next_packet: u32,
    inbound: Inbound,
}

impl Default for Uc {
    fn default() -> Self {
        let psn = Psn::new(0);
        Uc { next_psn: psn, expected_psn: psn, next_packet: 0, inbound: Inbound::default() }
    }
}

impl Transport for Uc {
    fn entered(&mut self, core: &mut QpCore, from: QpState) {
        match core.state {
            QpState::Rtr => self.expected_psn = core.attrs.rq_psn,
            QpState::Rts if from == QpState::Rtr => self.next_psn = core.attrs.sq_psn,
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
        let psn = packet.psn();
        if psn != self.expected_psn && self.inbound.abandon() {
            cx.counters.drop_message += 1;
        }
        self.expected_psn = psn.next();
        if !self.inbound.in_message() && !packet.info().position.starts() {
            // The rest of a message whose beginning is lost.
            cx.counters.drop_sequence += 1;
            return false;
        }
        if let Err(refusal) = self.inbound.accept(core, cx, packet) {
            self.refuse(core, cx, packet, refusal);
        }
        core.has_failed()
    }

    fn receive_train(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, train: &mut Train<'_>) -> u32 {
        if train.psn() != self.expected_psn {
            return 0;
        }
        let taken = self.inbound.accept_train(core, cx, train);
        self.expected_psn = self.expected_psn.add(taken);
        taken
    }

    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        let mut left = budget;
        while left > 0 {
            let number = core.sq.head();
            let may_start = core.state == QpState::Rts;
            let may_finish = core.state == QpState::Sqd && self.next_packet > 0;
            let Some(mut wqe) = core.sq.get(number).copied().filter(|_| may_start || may_finish)
            else {
                return Progress::Idle;
            };
            if core.limits.pacer.next() > cx.now {
                return Progress::Paced;
            }
            if !sink.has_room() {
                return Progress::More;
            }
            if wqe.op.is_local() {
                let done = local::execute(core, cx, &wqe.op);
                core.sq.pop();
                if done.is_err() {
                    core.complete_send(cx, &wqe, WcStatus::MwBindErr);
                    core.fail_send_queue();
                    return Progress::Idle;
                }
                core.complete_send(cx, &wqe, WcStatus::Success);
                continue;
            }
            wqe.packets = outbound::packets_of(wqe.len, core.mtu());
            let k = self.next_packet;
            let piece = outbound::Piece {
                number,
                wqe: &wqe,
                k,
                psn: self.next_psn,
                cut: outbound::Cut::Message,
            };
            let Ok(sent) = send(core, cx, sink, piece, left) else {
                self.next_packet = 0;
                core.sq.pop();
                core.complete_send(cx, &wqe, WcStatus::LocProtErr);
                core.fail_send_queue();
                return Progress::Idle;
            };
            left -= sent;
            self.next_psn = self.next_psn.add(sent);
            self.next_packet += sent;
            if self.next_packet == wqe.packets {
                self.next_packet = 0;
                core.sq.pop();
                core.complete_send(cx, &wqe, WcStatus::Success);
            }
        }
        Progress::More
    }

    fn has_work(&self, core: &QpCore) -> bool {
        match core.state {
            QpState::Rts => !core.sq.is_empty(),
            QpState::Sqd => self.next_packet > 0,
            _ => false,
        }
    }

    fn is_drained(&self, _core: &QpCore) -> bool {
        self.next_packet == 0
    }

    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.next_packet = 0;
        self.inbound.fail(core, cx, WcStatus::WrFlushErr);
    }
}

/// Sends a packet, or a run of packets from the middle of a message, at most `most`; returns how
/// many.
#[inline]
fn send(
    core: &mut QpCore,
    cx: &mut Cx<'_>,
    sink: &mut Sink<'_>,
    piece: outbound::Piece<'_>,
    most: u32,
) -> Result<u32, AccessDenied> {
    let header = outbound::header::<SERVICE>(core, piece, false);
    let run = outbound::send_run(core, cx, sink, piece, &header, most.min(piece.alike()));
    if run > 0 {
        return Ok(run);
    }
    outbound::packet_payload(core, cx, piece)?;
    let ecn = core.data_ecn();
    sink.send(core, cx, &header, ecn);
    Ok(1)
}

impl Uc {
    /// The peer cannot be told, and must not be able to break the QP: the message is dropped.
    fn refuse(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        refusal: Refusal,
    ) {
        self.inbound.abandon();
        match refusal {
            Refusal::Access => cx.counters.access_violations += 1,
            Refusal::NoReceive => cx.counters.drop_no_receive += 1,
            Refusal::Invalid | Refusal::TooLong => cx.counters.drop_message += 1,
            Refusal::LocalProtection => {
                // Our own receive is unusable; keeping it would drop every later message too.
                self.inbound.fail(core, cx, WcStatus::LocProtErr);
                core.fail();
                return;
            }
        }
        // A first packet out of order may still begin a message of its own.
        if refusal == Refusal::Invalid && packet.info().position.starts() {
            let _ = self.inbound.accept(core, cx, packet);
        }
    }
}
