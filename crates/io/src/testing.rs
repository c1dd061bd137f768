//! Helpers for the tests of several modules.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use bowline_nic::{FrameMeta, HeaderBuf, IpId, Time, TxBatch, pad_of};
use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn, icrc_of};

use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::sys::EventFd;

/// A loopback address that no other test uses, unique per process and call.
pub(crate) fn fresh_addr() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let call = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    // 22 bits within 127.64.0.0/10: odd, so neither a network nor a usual 127.0.0.x.
    let host = (pid.wrapping_mul(61).wrapping_add(call)) & 0x001f_ffff;
    Ipv4Addr::from(0x7f40_0000 | host << 1 | 1).into()
}

/// A UC WRITE_ONLY header without RETH is not a legal packet, but a port reads no more of it.
pub(crate) fn header(qpn: u32, psn: u32, payload_len: usize) -> HeaderBuf {
    let mut bth = Bth::new(Opcode(0x07), Qpn::new(qpn), Psn::new(psn));
    bth.pad = pad_of(payload_len);
    HeaderBuf::new(&bth)
}

/// Whole packets with a recognisable payload, pushed to a batch the way middleware does: BTH,
/// `payload_len` bytes, ICRC. Packet `i` has PSN `first_psn + i`.
pub(crate) fn push_packets(
    batch: &mut TxBatch,
    key: &FlowKey,
    qpn: u32,
    first_psn: u32,
    lens: &[usize],
) {
    for (i, &len) in lens.iter().enumerate() {
        let psn = first_psn + i as u32;
        let mut frame = header(qpn, psn, len).as_slice().to_vec();
        frame.extend((0..len).map(|b| (b as u32).wrapping_mul(31).wrapping_add(psn) as u8));
        let icrc = icrc_of(key, 0, &frame);
        frame.extend_from_slice(&icrc.to_le_bytes());
        batch.push_summed(key, 0, 0, &frame);
    }
}

/// Whether a received frame's ICRC is that of its envelope, guessed identification included.
pub(crate) fn icrc_is_right(meta: &FrameMeta, dst_port: u16, frame: &[u8]) -> bool {
    let (IpId::Known(id) | IpId::Guess(id)) = meta.ip_id else { return false };
    let key = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port, dst_port };
    let Some((body, trailer)) = frame.split_last_chunk::<4>() else {
        return false;
    };
    icrc_of(&key, id, body) == u32::from_le_bytes(*trailer)
}

/// A port that takes one burst at a time, and is then full until its descriptor was waited for.
pub(crate) struct Narrow<P> {
    inner: P,
    writable: EventFd,
    full: bool,
}

impl<P: Port> Narrow<P> {
    pub(crate) fn new(inner: P) -> Narrow<P> {
        let writable = EventFd::flag().expect("descriptors are left");
        Narrow { inner, writable, full: false }
    }
}

impl<P: Port> Port for Narrow<P> {
    fn caps(&self) -> PortCaps {
        self.inner.caps()
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.full = !self.full;
        if self.full || batch.bursts().len() <= from {
            return Ok(0);
        }
        let mut one = TxBatch::new(self.caps().tx, 128);
        let burst = &batch.bursts()[from];
        let key = FlowKey {
            src: self.caps().addr,
            dst: burst.dst,
            src_port: self.caps().udp_port,
            dst_port: burst.dst_port,
        };
        for (id, packet) in batch.packets(burst).iter().enumerate() {
            one.push_summed(&key, burst.tos, id as u16, batch.bytes(packet));
        }
        self.inner.send(now, &one, 0)?;
        Ok(1)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.inner.recv(now, sink)
    }

    fn fds(&self) -> PortFds {
        PortFds { write: Some(self.writable.as_raw_fd()), ..self.inner.fds() }
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}
