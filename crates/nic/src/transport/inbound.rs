//! Reassembles a SEND or WRITE from its packets: the same for RC and UC, which differ only in how
//! they react to a refusal.

use bowline_wire::{OpKind, OpcodeInfo, PacketView, Position, Reth, Service};

use crate::landing::Landed;
use crate::qp::{Cx, QpCore};
use crate::queue::RecvWqe;
use crate::train::Train;
use crate::types::{Access, Completion, WcOpcode, WcStatus};

/// Why a packet was refused. None of it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It violates the protocol: order of opcodes, lengths, rights of the QP.
    Invalid,
    /// Its key, range or rights do not allow the access.
    Access,
    /// No receive is posted.
    NoReceive,
    /// The message is longer than the receive.
    TooLong,
    /// The receive's own list is not valid memory.
    LocalProtection,
}

/// A message being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Message {
    #[default]
    None,
    Send {
        received: u32,
    },
    Write {
        va: u64,
        rkey: u32,
        left: u32,
        total: u32,
    },
}

/// The receiving end of a connection's SENDs and WRITEs.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    message: Message,
    /// The receive for the current message, or for the next one.
    wqe: RecvWqe,
    has_wqe: bool,
}

impl Inbound {
    /// Whether a message has begun and not ended.
    pub(crate) fn in_message(&self) -> bool {
        self.message != Message::None
    }

    /// Handles one packet in sequence. On success returns whether it ended a message.
    pub(crate) fn accept(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> Result<bool, Refusal> {
        let info = packet.info();
        self.check_order(info)?;
        check_length(core.mtu(), info.position, packet.payload().len())?;
        match info.kind {
            OpKind::Send => self.accept_send(core, cx, packet, info),
            OpKind::Write => self.accept_write(core, cx, packet, info),
            _ => Err(Refusal::Invalid),
        }
    }

    /// Handles WRITEs of one packet each, in sequence, until one needs the slow path. Returns how
    /// many. None of them requests an acknowledgement, so none ends what a program may wait for.
    pub(crate) fn accept_writes(
        &mut self,
        core: &QpCore,
        cx: &mut Cx<'_>,
        train: &mut Train<'_>,
    ) -> u32 {
        let (peer, len) = (core.peer(), train.payload_len());
        let is_allowed = core.attrs.access.contains(Access::REMOTE_WRITE);
        if self.in_message() || !is_allowed || !(1..=core.mtu() as usize).contains(&len) {
            return 0;
        }
        let mut taken = 0;
        let write = |reth: &Reth, bytes: &[u8]| {
            reth.len as usize == len
                && cx.memory.remote_write(peer, reth.rkey, reth.va, bytes, false).is_ok()
        };
        while train.next_write(write) {
            taken += 1;
        }
        cx.counters.rx_message_bytes += u64::from(taken) * len as u64;
        taken
    }

    /// Handles packets from the middle of the current message, in sequence, until one needs the
    /// slow path. Returns how many.
    pub(crate) fn accept_train(
        &mut self,
        core: &QpCore,
        cx: &mut Cx<'_>,
        train: &mut Train<'_>,
    ) -> u32 {
        let (peer, len) = (core.peer(), core.mtu());
        if train.payload_len() != len as usize {
            return 0;
        }
        let mut taken = 0;
        match &mut self.message {
            // The rest is checked first: frames taken from a train cannot be returned.
            Message::Write { va, rkey, left, .. }
                if train.kind() == OpKind::Write
                    && core.attrs.access.contains(Access::REMOTE_WRITE) =>
            {
                let Ok(place) = cx.memory.remote_place(peer, *rkey, *va, *left) else {
                    return 0;
                };
                train.limit((*left).saturating_sub(1) / len);
                while let Some(bytes) = train.next()
                    && place.write_at(taken * len, bytes).is_ok()
                {
                    taken += 1;
                }
                *va = va.wrapping_add(u64::from(taken) * u64::from(len));
                *left -= taken * len;
            }
            Message::Send { received } if train.kind() == OpKind::Send => {
                let room = self.wqe.capacity().saturating_sub((*received).into());
                train.limit((room.min((u32::MAX - *received).into()) / u64::from(len)) as u32);
                while let Some(bytes) = train.next()
                    && cx.memory.scatter(peer.pd, &self.wqe.sges, *received, bytes, false).is_ok()
                {
                    *received += len;
                    taken += 1;
                }
            }
            _ => {}
        }
        taken
    }

    /// Drops a message whose remainder will not come. Its receive serves the next one.
    pub(crate) fn abandon(&mut self) -> bool {
        core::mem::take(&mut self.message) != Message::None
    }

    /// Drops a message that its sender will restart from the beginning, and gives back the receive
    /// that was taken for it.
    pub(crate) fn give_back(&mut self) -> Option<RecvWqe> {
        self.message = Message::None;
        core::mem::take(&mut self.has_wqe).then(|| core::mem::take(&mut self.wqe))
    }

    /// The QP has failed: completes the receive that was taken.
    pub(crate) fn fail(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, status: WcStatus) {
        self.message = Message::None;
        if core::mem::take(&mut self.has_wqe) {
            core.fail_recv(cx, self.wqe.wr_id, status);
        }
    }

    fn check_order(&self, info: &OpcodeInfo) -> Result<(), Refusal> {
        let in_order = match self.message {
            Message::None => info.position.starts(),
            Message::Send { .. } => !info.position.starts() && info.kind == OpKind::Send,
            Message::Write { .. } => !info.position.starts() && info.kind == OpKind::Write,
        };
        if in_order { Ok(()) } else { Err(Refusal::Invalid) }
    }

    fn accept_send(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        info: &OpcodeInfo,
    ) -> Result<bool, Refusal> {
        let bytes = packet.payload();
        let received = match self.message {
            Message::Send { received } => received,
            _ => {
                self.take_wqe(core, cx)?;
                0
            }
        };
        let end = u64::from(received) + bytes.len() as u64;
        if end > self.wqe.capacity() {
            return Err(Refusal::TooLong);
        }
        cx.memory
            .scatter(core.init.pd, &self.wqe.sges, received, bytes, info.position.ends())
            .map_err(|_| Refusal::LocalProtection)?;
        if !info.position.ends() {
            self.message = Message::Send { received: end as u32 };
            return Ok(false);
        }
        let invalidated = match packet.ieth() {
            Some(ieth) => {
                cx.memory.remote_invalidate(core.peer(), ieth.rkey).map_err(|_| Refusal::Access)?;
                Some(ieth.rkey)
            }
            None => None,
        };
        cx.counters.rx_message_bytes += end;
        self.complete(core, cx, packet, WcOpcode::Recv, end as u32, invalidated);
        Ok(true)
    }

    fn accept_write(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        info: &OpcodeInfo,
    ) -> Result<bool, Refusal> {
        if !core.attrs.access.contains(Access::REMOTE_WRITE) {
            return Err(Refusal::Invalid);
        }
        let peer = core.peer();
        let bytes = packet.payload();
        let len = bytes.len() as u32;
        let (va, rkey, left, total) = match self.message {
            Message::Write { va, rkey, left, total } => (va, rkey, left, total),
            _ => {
                let reth = packet.reth().ok_or(Refusal::Invalid)?;
                // One packet alone is checked when it is written.
                let is_alone = info.position == Position::Only && !info.has_imm;
                let is_written_whole = is_alone && len > 0 && reth.len == len;
                // An empty WRITE touches no memory, so its key is not checked, except for a
                // landing: it trusts what it is told, and only the peer knows the key.
                if (reth.len > 0 || core.lands) && !is_written_whole {
                    cx.memory
                        .check_remote(peer, reth.rkey, reth.va, reth.len, Access::REMOTE_WRITE)
                        .map_err(|_| Refusal::Access)?;
                }
                (reth.va, reth.rkey, reth.len, reth.len)
            }
        };
        // The announced length must be reached exactly with the last packet.
        let consistent = if info.position.ends() { len == left } else { len < left };
        if !consistent {
            return Err(Refusal::Invalid);
        }
        let lands = core.lands && info.position == Position::Only && info.has_imm;
        if info.has_imm && !lands {
            self.take_wqe(core, cx)?;
        }
        if len > 0 {
            // Landings are notified once per group of packets that arrived together, after a fence.
            let ends = info.position.ends() && !(cx.together && (lands || goes_on(packet, info)));
            cx.memory.remote_write(peer, rkey, va, bytes, ends).map_err(|_| Refusal::Access)?;
        }
        if !info.position.ends() {
            let va = va.wrapping_add(u64::from(len));
            self.message = Message::Write { va, rkey, left: left - len, total };
            return Ok(false);
        }
        cx.counters.rx_message_bytes += u64::from(total);
        match packet.imm() {
            Some(imm) if lands => cx.landed.push(Landed { qpn: core.qpn, imm, bytes: total }),
            Some(_) => self.complete(core, cx, packet, WcOpcode::RecvWriteImm, total, None),
            None => {}
        }
        self.message = Message::None;
        Ok(true)
    }

    fn take_wqe(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        if !self.has_wqe {
            self.has_wqe = core.take_recv(cx, &mut self.wqe);
        }
        if self.has_wqe { Ok(()) } else { Err(Refusal::NoReceive) }
    }

    fn complete(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        opcode: WcOpcode,
        byte_len: u32,
        invalidated: Option<u32>,
    ) {
        self.message = Message::None;
        self.has_wqe = false;
        core.two_sided.received += 1;
        let completion = Completion {
            wr_id: self.wqe.wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            imm: packet.imm(),
            invalidated,
            src_qpn: core.attrs.dest_qpn,
            solicited: packet.solicited(),
            ..Completion::default()
        };
        core.complete_recv(cx, completion);
    }
}

/// Whether this WRITE of one packet is part of a longer one that continues after it.
///
/// Bowline divides short WRITEs into one WRITE per packet, and requests an acknowledgement with the
/// last of them. So do other requesters with each message, long or short: what requests none is not
/// the end of anything that a program may wait for. UC has no acknowledgements to tell by.
#[inline]
fn goes_on(packet: &PacketView<'_>, info: &OpcodeInfo) -> bool {
    info.position == Position::Only
        && !info.has_imm
        && !packet.ack_req()
        && matches!(packet.opcode().service(), Some(Service::Rc | Service::Xrc))
}

/// Checks the payload length that a packet may have at its position in the message.
fn check_length(mtu: u32, position: Position, len: usize) -> Result<(), Refusal> {
    let mtu = mtu as usize;
    let fits = match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => (1..=mtu).contains(&len),
        Position::Only => len <= mtu,
    };
    if fits { Ok(()) } else { Err(Refusal::Invalid) }
}

#[cfg(test)]
mod tests {
    use bowline_wire::Opcode;

    use super::*;

    fn goes_on(opcode: Opcode, ack_req: bool) -> bool {
        let ext_len = opcode.info().expect("a known opcode").ext_len;
        let mut bytes = vec![0; 12 + usize::from(ext_len) + 4];
        (bytes[0], bytes[8]) = (opcode.0, u8::from(ack_req) << 7);
        let packet = PacketView::parse(&bytes).expect("a whole packet");
        super::goes_on(&packet, packet.info())
    }

    #[test]
    fn a_write_goes_on_until_an_acknowledgement_is_requested() {
        let xrc_write_only = Opcode(super::super::outbound::XRC | Opcode::RC_WRITE_ONLY.0);
        for opcode in [Opcode::RC_WRITE_ONLY, xrc_write_only] {
            assert!(goes_on(opcode, false));
            assert!(!goes_on(opcode, true), "{opcode:?} ends a message");
        }
    }

    #[test]
    fn what_a_program_is_told_of_or_may_wait_for_ends_a_message() {
        use Opcode as O;
        for opcode in [O::RC_WRITE_LAST, O::RC_WRITE_ONLY_IMM, O::UC_WRITE_ONLY] {
            assert!(!goes_on(opcode, false), "{opcode:?}");
        }
    }
}
