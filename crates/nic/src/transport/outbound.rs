//! Segments a SEND or WRITE into packets: the same for RC and UC.

use core::num::NonZeroU32;

use bowline_wire::{ICRC_LEN, Ieth, ImmDt, Opcode, Psn, Reth, XrcEth};

use crate::memory::{AccessDenied, Segment};
use crate::qp::{Cx, QpCore, Sink};
use crate::queue::Wqe;
use crate::tx::{HeaderBuf, pad_of};
use crate::types::{SendFlags, SendOp};

/// Packets of a message of `len` bytes; an empty one takes one packet.
#[inline]
pub(crate) fn packets_of(len: u32, mtu: u32) -> u32 {
    len.div_ceil(mtu).max(1)
}

/// How a message is divided into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// First, middle and last packets: a full MTU each, and the remainder.
    Message,
    /// One WRITE per packet, all of this length. The last one may overlap the one before it.
    Writes(NonZeroU32),
}

/// Most packets of a WRITE sent as single WRITEs. Above, full bursts save nothing that can be
/// measured. A constant: what is sent again must be cut as it was the first time.
const MAX_WRITES: u32 = 128;

impl Cut {
    /// How RC divides a request whose packets are counted.
    ///
    /// To the peer one WRITE per packet is as good as one WRITE of many: only the requester counts
    /// messages. A first packet is longer than the next ones by a RETH and therefore ends a burst,
    /// which costs a short message time at both ends. A WRITE with immediate stays whole, since its
    /// receive reports the total length.
    #[inline]
    pub(crate) fn of_reliable(core: &QpCore, wqe: &Wqe) -> Cut {
        let is_short = (2..=MAX_WRITES).contains(&wqe.packets);
        if !is_short || !core.splits_writes || !matches!(wqe.op, SendOp::Write(_)) {
            return Cut::Message;
        }
        // Whole words, so that no packet has padding.
        let len = wqe.len.div_ceil(wqe.packets).next_multiple_of(4);
        NonZeroU32::new(len).map_or(Cut::Message, Cut::Writes)
    }
}

/// Opcodes of extended reliable connections start here; their requests have an extra header.
pub(crate) const XRC: u8 = 0xa0;

/// Codes of the standard's operations within a service's group of opcodes.
const SEND_FIRST: u8 = 0x00;
const WRITE_FIRST: u8 = 0x06;
const WRITE_ONLY: u8 = 0x0a;
const WRITE_ONLY_IMM: u8 = 0x0b;
const SEND_LAST_INVALIDATE: u8 = 0x16;
const SEND_ONLY_INVALIDATE: u8 = 0x17;

/// The opcode of a packet, in the group of opcodes starting at `SERVICE`.
#[inline]
fn opcode<const SERVICE: u8>(piece: Piece<'_>) -> Opcode {
    let Piece { wqe, k, cut, .. } = piece;
    let (first, last) = (k == 0, k + 1 == wqe.packets);
    match wqe.op {
        SendOp::WritePackets(..) => return Opcode(SERVICE | WRITE_ONLY_IMM),
        _ if cut != Cut::Message => return Opcode(SERVICE | WRITE_ONLY),
        _ => {}
    }
    if let SendOp::SendInvalidate(_) = wqe.op
        && last
    {
        let code = if first { SEND_ONLY_INVALIDATE } else { SEND_LAST_INVALIDATE };
        return Opcode(SERVICE | code);
    }
    let (base, imm) = match wqe.op {
        SendOp::Write(_) => (WRITE_FIRST, false),
        SendOp::WriteImm(..) => (WRITE_FIRST, true),
        SendOp::SendImm(_) => (SEND_FIRST, true),
        _ => (SEND_FIRST, false),
    };
    // Within each group: first, middle, last, last with immediate, only, only with immediate.
    let position = match (first, last) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2 + u8::from(imm),
        (true, true) => 4 + u8::from(imm),
    };
    Opcode(SERVICE | (base + position))
}

/// One packet of a request.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    /// Number of the request on its queue.
    pub(crate) number: u64,
    pub(crate) wqe: &'a Wqe,
    /// Index of the packet in the request.
    pub(crate) k: u32,
    pub(crate) psn: Psn,
    pub(crate) cut: Cut,
}

impl Piece<'_> {
    /// Offset and length of its payload in the message.
    #[inline]
    fn span(&self, mtu: u32) -> (u32, u32) {
        match self.cut {
            Cut::Message => {
                let offset = self.k * mtu;
                (offset, mtu.min(self.wqe.len - offset))
            }
            Cut::Writes(len) => {
                let len = len.get();
                ((self.k * len).min(self.wqe.len - len), len)
            }
        }
    }

    /// How many packets from this one on are alike: in the middle of a message, or WRITEs of a
    /// packet each except the last.
    #[inline]
    pub(crate) fn alike(&self) -> u32 {
        match self.wqe.op {
            // These are messages of their own.
            SendOp::WritePackets(..) => 0,
            _ if self.k == 0 && self.cut == Cut::Message => 0,
            _ => self.wqe.packets - 1 - self.k,
        }
    }

    /// Turns the header of an earlier packet that is [alike](Self::alike) into this one's.
    #[inline]
    pub(crate) fn renumber(&self, header: &mut HeaderBuf, ack_req: bool) {
        header.renumber(self.psn, ack_req);
        if let (Cut::Writes(len), SendOp::Write(remote)) = (self.cut, self.wqe.op) {
            let offset = u64::from(self.k) * u64::from(len.get());
            header.set_va(remote.addr.wrapping_add(offset));
        }
    }
}

/// Builds a packet of a SEND or WRITE: its header, and its payload in `cx.segments`.
#[inline]
pub(crate) fn build<const SERVICE: u8>(
    core: &QpCore,
    cx: &mut Cx<'_>,
    piece: Piece<'_>,
    ack_req: bool,
) -> Result<HeaderBuf, AccessDenied> {
    packet_payload(core, cx, piece)?;
    Ok(header::<SERVICE>(core, piece, ack_req))
}

/// Gathers a packet's payload into `cx.segments`.
#[inline]
pub(crate) fn packet_payload(
    core: &QpCore,
    cx: &mut Cx<'_>,
    piece: Piece<'_>,
) -> Result<(), AccessDenied> {
    let (offset, len) = piece.span(core.mtu());
    payload(core, cx, piece.number, piece.wqe, offset, len)
}

/// The header of a packet of a SEND or WRITE.
#[inline]
pub(crate) fn header<const SERVICE: u8>(
    core: &QpCore,
    piece: Piece<'_>,
    ack_req: bool,
) -> HeaderBuf {
    let Piece { wqe, k, psn, .. } = piece;
    let (offset, len) = piece.span(core.mtu());
    let last = k + 1 == wqe.packets;
    let mut bth = core.bth(opcode::<SERVICE>(piece), psn);
    bth.pad = pad_of(len as usize);
    bth.ack_req = ack_req;
    bth.solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
    let mut header = HeaderBuf::new(&bth);
    if SERVICE == XRC {
        address(core, &mut header, piece.number);
    }
    if piece.cut != Cut::Message && !last {
        header.set_goes_on();
    }
    if let SendOp::Write(remote) | SendOp::WriteImm(remote, _) = wqe.op
        && (k == 0 || piece.cut != Cut::Message)
    {
        let len = if piece.cut == Cut::Message { wqe.len } else { len };
        let va = remote.addr.wrapping_add(u64::from(offset));
        let rkey = core.remote_key(remote.rkey);
        header.push(|bytes| Reth { va, rkey, len }.emit(bytes));
    }
    match wqe.op {
        SendOp::WritePackets(remote, series) => {
            let va = remote.addr.wrapping_add(u64::from(offset));
            header.push(|bytes| Reth { va, rkey: remote.rkey, len }.emit(bytes));
            header.push(|bytes| ImmDt(series.imm(k)).emit(bytes));
        }
        SendOp::SendImm(imm) | SendOp::WriteImm(_, imm) if last => {
            header.push(|bytes| ImmDt(imm).emit(bytes));
        }
        SendOp::SendInvalidate(rkey) if last => header.push(|bytes| Ieth { rkey }.emit(bytes)),
        _ => {}
    }
    header
}

/// Names the shared receive queue that an XRC request is for.
#[inline]
pub(crate) fn address(core: &QpCore, header: &mut HeaderBuf, number: u64) {
    let srqn = core.sq.srqn(number);
    header.push(|bytes| XrcEth { reserved8: 0, srqn }.emit(bytes));
}

/// How many packets like the one with this header, at most `most`, can be sent as one run; each
/// carries `payload_len` bytes.
#[inline]
pub(crate) fn run_len(
    core: &QpCore,
    cx: &Cx<'_>,
    sink: &Sink<'_>,
    header: &HeaderBuf,
    payload_len: u32,
    most: u32,
) -> u32 {
    let len = (header.as_slice().len() + ICRC_LEN) as u32 + payload_len;
    let mut packets = most.min(sink.run_room(len));
    if core.limits.pacer.is_controlled() {
        packets = packets.min(core.limits.pacer.burst_packets(cx.now, len));
    }
    packets
}

/// Sends packets that are [alike](Piece::alike) as one run, at most `most`; `header` is that of the
/// first. Returns how many: 0 if they have to be handled one by one.
pub(crate) fn send_run(
    core: &mut QpCore,
    cx: &mut Cx<'_>,
    sink: &mut Sink<'_>,
    first: Piece<'_>,
    header: &HeaderBuf,
    most: u32,
) -> u32 {
    let len = match first.cut {
        Cut::Message => core.mtu(),
        Cut::Writes(len) if sink.takes_writes(core) => len.get(),
        Cut::Writes(_) => return 0,
    };
    let packets = run_len(core, cx, sink, header, len, most);
    if packets < 2 {
        return 0;
    }
    let gathered = payload(core, cx, first.number, first.wqe, first.k * len, packets * len);
    if gathered.is_err() || cx.segments.len() != 1 {
        return 0;
    }
    let ecn = core.data_ecn();
    match first.cut {
        Cut::Message => sink.send_run(core, cx, header, ecn, len),
        Cut::Writes(_) => sink.send_writes(core, cx, header, ecn, len),
    }
    packets
}

/// Gathers `len` bytes at `offset` of a message into `cx.segments`.
#[inline]
pub(crate) fn payload(
    core: &QpCore,
    cx: &mut Cx<'_>,
    number: u64,
    wqe: &Wqe,
    offset: u32,
    len: u32,
) -> Result<(), AccessDenied> {
    cx.segments.clear();
    if wqe.inline {
        let bytes = &core.sq.inline(number)[offset as usize..][..len as usize];
        if !bytes.is_empty() {
            cx.segments.push(Segment::of_slice(bytes));
        }
        return Ok(());
    }
    cx.memory.gather(core.init.pd, core.sq.sges(number), offset, len, cx.segments)
}
