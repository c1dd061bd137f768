//! Restores a missing packet from a repair.

use bowline_wire::{OpKind, PacketView, Psn, Qpn, RepairHeader};

use super::{Cx, Decoder, Up};
use crate::counters::bump;
use crate::reorder::HeldPacket;
use crate::symbol::Unit;

/// What a lane of a block is missing.
enum Lacks {
    Nothing,
    One(Psn),
    More,
}

/// Why a packet could not be restored.
enum Failure {
    NoMemory,
    Implausible,
}

impl Decoder {
    /// Restores a packet, if the repair's lane misses just one, and hands up what is then in order.
    /// The repair's numbers are valid, and its block is not before `next`.
    pub(super) fn try_restore(
        &mut self,
        cx: Cx<'_>,
        header: &RepairHeader,
        body: &[u8],
        qpn: Qpn,
        next: Psn,
        up: Up<'_>,
    ) -> bool {
        let psn = match self.lacks(header, next) {
            Lacks::Nothing => {
                bump(&cx.counters.wasted);
                return false;
            }
            Lacks::One(psn) => psn,
            Lacks::More => {
                // Perhaps one of them is only late. But a gap that nothing else has shown yet must
                // not wait for ever.
                self.wait(cx);
                return true;
            }
        };
        let has_prefix = next.after(header.base.add(header.isn.into()));
        if has_prefix && !self.follows(header) {
            bump(&cx.counters.misaligned);
            self.wait(cx);
            return true;
        }
        let packet = match self.restore(cx, header, body, qpn, psn, has_prefix) {
            Ok(packet) => packet,
            Err(why) => {
                bump(match why {
                    Failure::NoMemory => &cx.counters.unprotected,
                    Failure::Implausible => &cx.counters.rejected,
                });
                self.wait(cx);
                return true;
            }
        };
        if !core::mem::replace(&mut self.counted, true) {
            let end = header.base.add(header.count.into());
            self.missing_until(Some(end)).iter_bursts(|burst| self.losses.on_burst(burst));
        }
        bump(&cx.counters.recovered);
        self.held.insert_buffer(packet);
        self.wait(cx);
        self.drain(cx, up);
        true
    }

    /// Packets of the lane that have neither been handed up nor are held.
    fn lacks(&self, header: &RepairHeader, next: Psn) -> Lacks {
        let mut lacks = Lacks::Nothing;
        for k in (header.isn..header.count).step_by(header.c.into()) {
            let psn = header.base.add(k.into());
            if psn.before(next) || self.held.find(psn).is_some() {
                continue;
            }
            lacks = match lacks {
                Lacks::Nothing => Lacks::One(psn),
                _ => return Lacks::More,
            };
        }
        lacks
    }

    /// Whether the units cover the part of the repair's block before `next`.
    fn follows(&self, header: &RepairHeader) -> bool {
        let block = &self.block;
        block.open
            && block.exact
            && block.base == header.base
            && (block.r, block.c) == (header.r, header.c)
            && block.generation == header.generation
            && block.has_first == header.has_first
    }

    /// From now on the packets after a gap wait as long as packets may still arrive.
    fn wait(&mut self, cx: Cx<'_>) {
        self.deadline = cx.now.plus_nanos(cx.hold_ns);
    }

    fn restore(
        &self,
        cx: Cx<'_>,
        header: &RepairHeader,
        body: &[u8],
        qpn: Qpn,
        psn: Psn,
        has_prefix: bool,
    ) -> Result<HeldPacket, Failure> {
        if self.held.is_full() {
            return Err(Failure::NoMemory);
        }
        let mut sum = Unit::take(cx.pool, self.mtu).ok_or(Failure::NoMemory)?;
        let complete = self.sum_of_rest(&mut sum, header, body, has_prefix).is_some();
        let bytes = cx.pool.take(self.mtu);
        let written = bytes.map(|mut bytes| {
            let len = if complete { sum.write_packet(qpn, psn, &mut bytes) } else { None };
            (len, bytes)
        });
        sum.give(cx.pool, self.mtu);
        let (len, bytes) = written.ok_or(Failure::NoMemory)?;
        let len = len.filter(|len| {
            let view = PacketView::parse(&bytes[..*len]);
            view.is_ok_and(|view| self.is_plausible(&view, header, psn))
        });
        match len {
            Some(len) => Ok(HeldPacket { psn, is_ack: false, bytes, len }),
            None => {
                cx.pool.give(self.mtu, bytes);
                Err(Failure::Implausible)
            }
        }
    }

    /// The sum of the repair and all packets of its lane that have arrived.
    fn sum_of_rest(
        &self,
        sum: &mut Unit,
        header: &RepairHeader,
        body: &[u8],
        has_prefix: bool,
    ) -> Option<()> {
        if !sum.add_repair(header, body) {
            return None;
        }
        if has_prefix {
            sum.add_unit(self.units.get(usize::from(header.isn))?);
        }
        for k in (header.isn..header.count).step_by(header.c.into()) {
            let Some(held) = self.held.find(header.base.add(k.into())) else { continue };
            let view = held.view()?;
            if view.payload().len() > self.mtu.bytes() as usize {
                return None;
            }
            sum.add_packet(&view);
        }
        Some(())
    }

    /// Whether the sender can have sent a restored packet in this place: it belongs to this stream,
    /// and has the lengths and the position that the repair's edge metadata imply.
    fn is_plausible(&self, packet: &PacketView<'_>, header: &RepairHeader, psn: Psn) -> bool {
        let info = packet.info();
        let kind_fits = match info.kind {
            OpKind::ReadResponse | OpKind::AtomicAck => self.response,
            OpKind::Send
            | OpKind::Write
            | OpKind::ReadRequest
            | OpKind::CompareSwap
            | OpKind::FetchAdd => !self.response,
            OpKind::Ack
            | OpKind::Cnp
            | OpKind::Repair
            | OpKind::Probe
            | OpKind::Feedback
            | OpKind::Sealed => false,
        };
        let k = psn.diff(header.base);
        let starts = header.has_first && k == 0;
        let ends = header.has_last && k + 1 == i32::from(header.count);
        let len = if ends { u32::from(header.last_len) } else { self.mtu.bytes() };
        kind_fits
            && info.service == self.service
            && (info.position.starts(), info.position.ends()) == (starts, ends)
            && packet.payload().len() as u32 == len
            && len <= self.mtu.bytes()
    }
}
