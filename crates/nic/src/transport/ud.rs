//! Unreliable datagrams: one packet per message, to any QP whose Q_Key is known.

use bowline_wire::{
    Bth, Deth, FlowKey, ImmDt, OpKind, Opcode, OpcodeSet, PacketView, Psn, Service, ud_grh,
};

use super::descriptor::{Operations, TransportDescriptor};
use super::{Transport, outbound};
use crate::frame::{ECN_MASK, FrameMeta};
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::{RecvWqe, Wqe};
use crate::tx::{Flow, HeaderBuf, pad_of};
use crate::types::{Completion, QpState, SendFlags, SendOp, UdDest, WcOpcode, WcStatus};

/// Space for a GRH at the start of a receive, before the datagram.
const GRH_LEN: u32 = 40;
/// A request's Q_Key with this bit selects the QP's own: the standard's privileged keys.
const QKEY_OF_QP: u32 = 1 << 31;

/// Properties of UD.
pub(super) static DESCRIPTOR: TransportDescriptor = TransportDescriptor {
    name: "UD",
    service: Service::Ud,
    opcodes: OpcodeSet::range(Opcode::UD_SEND_ONLY, Opcode::UD_SEND_ONLY_IMM),
    operations: Operations::SEND.union(Operations::SEND_IMM),
    max_packets: 1,
    connected: false,
    reliable: false,
    shimmable: false,
    movable: false,
    landings: false,
    deadlines: false,
    addressed: false,
    annotated: false,
    build: || Box::<Ud>::default(),
};

/// The UD transport.
#[derive(Debug)]
pub(super) struct Ud {
    next_psn: Psn,
    wqe: RecvWqe,
}

impl Default for Ud {
    fn default() -> Self {
        Ud { next_psn: Psn::new(0), wqe: RecvWqe::default() }
    }
}

impl Transport for Ud {
    fn entered(&mut self, core: &mut QpCore, from: QpState) {
        if core.state == QpState::Rts && from == QpState::Rtr {
            self.next_psn = core.attrs.sq_psn;
        }
    }

    fn receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        meta: Option<&FrameMeta>,
    ) -> bool {
        let (Some(deth), Some(meta), OpKind::Send) = (packet.deth(), meta, packet.info().kind)
        else {
            cx.counters.drop_malformed += 1;
            return false;
        };
        if deth.qkey != core.attrs.qkey {
            cx.counters.drop_qkey += 1;
            return false;
        }
        let bytes = packet.payload();
        if bytes.len() > core.mtu() as usize {
            cx.counters.drop_malformed += 1;
            return false;
        }
        if !core.take_recv(cx, &mut self.wqe) {
            cx.counters.drop_no_receive += 1;
            return false;
        }
        let byte_len = GRH_LEN + bytes.len() as u32;
        let grh = ud_grh(meta.src, meta.dst, meta.tos, meta.ttl, packet.as_bytes().len() as u16);
        let pd = core.init.pd;
        let status = if u64::from(byte_len) > self.wqe.capacity() {
            WcStatus::LocLenErr
        } else if cx.memory.check_local(pd, &self.wqe.sges, true).is_err()
            || cx.memory.scatter(pd, &self.wqe.sges, 0, &grh, true).is_err()
            || cx.memory.scatter(pd, &self.wqe.sges, GRH_LEN, bytes, true).is_err()
        {
            WcStatus::LocProtErr
        } else {
            cx.counters.rx_message_bytes += bytes.len() as u64;
            WcStatus::Success
        };
        let completion = Completion {
            wr_id: self.wqe.wr_id,
            status,
            opcode: WcOpcode::Recv,
            byte_len,
            imm: packet.imm(),
            src_qpn: deth.src_qpn,
            grh: true,
            solicited: packet.solicited(),
            ..Completion::default()
        };
        core.complete_recv(cx, completion);
        if status == WcStatus::LocProtErr {
            core.fail();
        }
        core.has_failed()
    }

    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        for _ in 0..budget {
            let number = core.sq.head();
            if core.state != QpState::Rts {
                return Progress::Idle;
            }
            let Some(wqe) = core.sq.get(number).copied() else {
                return Progress::Idle;
            };
            if core.limits.pacer.next() > cx.now {
                return Progress::Paced;
            }
            if !sink.has_room() {
                return Progress::More;
            }
            let dest = core.sq.dest(number).copied();
            let gathered = outbound::payload(core, cx, number, &wqe, 0, wqe.len);
            core.sq.pop();
            let status = match (gathered, dest) {
                (Ok(()), Some(dest)) => {
                    self.send(core, cx, sink, &wqe, &dest);
                    WcStatus::Success
                }
                _ => WcStatus::LocProtErr,
            };
            core.complete_send(cx, &wqe, status);
            if status != WcStatus::Success {
                core.fail_send_queue();
                return Progress::Idle;
            }
        }
        Progress::More
    }

    fn has_work(&self, core: &QpCore) -> bool {
        core.state == QpState::Rts && !core.sq.is_empty()
    }

    fn is_drained(&self, _core: &QpCore) -> bool {
        true
    }

    fn abort(&mut self, _core: &mut QpCore, _cx: &mut Cx<'_>) {}
}

impl Ud {
    fn send(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        wqe: &Wqe,
        dest: &UdDest,
    ) {
        let imm = match wqe.op {
            SendOp::SendImm(imm) => Some(imm),
            _ => None,
        };
        let opcode = if imm.is_some() { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
        let mut bth = Bth::new(opcode, dest.qpn, self.next_psn);
        bth.pad = pad_of(wqe.len as usize);
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let qkey = if dest.qkey & QKEY_OF_QP != 0 { core.attrs.qkey } else { dest.qkey };
        let deth = Deth { qkey, src_qpn: core.qpn, reserved8: 0 };
        let mut header = HeaderBuf::new(&bth);
        header.push(|bytes| deth.emit(bytes));
        if let Some(imm) = imm {
            header.push(|bytes| ImmDt(imm).emit(bytes));
        }
        let key = FlowKey {
            src: cx.config.addr,
            dst: dest.av.dst,
            src_port: cx.config.udp_port,
            dst_port: cx.config.peer_udp_port,
        };
        let mut flow = Flow::new(key, dest.av.traffic_class & !ECN_MASK);
        sink.send_datagram(core, cx, &mut flow, &header);
        self.next_psn = self.next_psn.next();
    }
}
