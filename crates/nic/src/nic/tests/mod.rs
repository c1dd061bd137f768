//! Two NICs connected by a wire that the test controls.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bowline_wire::{FlowKey, Opcode, PacketView, Psn, icrc_of};

use super::*;
use crate::connect::Connect;
use crate::error::PostError;
use crate::frame::IpId;
use crate::memory::{Buffer, Region};
use crate::rate::RateControl;
use crate::tx::{Burst, TxCaps};
use crate::types::*;

mod direct;
mod divided;
mod groups;
mod gsi;
mod keepalive;
mod moving;
mod paths;
mod rates;
mod rc;
mod robustness;
mod shims;
mod uc_ud;
mod verbs;
mod windows;
mod xp;
mod xp_feedback;
mod xrc;

/// A frame on the wire.
#[derive(Clone)]
struct Frame {
    to: usize,
    meta: FrameMeta,
    bytes: Vec<u8>,
}

impl Frame {
    fn opcode(&self) -> Opcode {
        Opcode(self.bytes[0])
    }
}

/// One end: a NIC, a domain, a completion queue, a QP and a region.
struct End {
    nic: Nic,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    buffer: Arc<Buffer>,
    key: MrKey,
}

struct Pair {
    ends: [End; 2],
    now: Time,
    mtu: Mtu,
    /// READs and atomics that may be outstanding.
    reads: u8,
}

const ALL: Access = Access::all();

fn addr(i: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + i as u8))
}

impl End {
    fn new(i: usize, init: impl FnOnce(&mut QpInit)) -> End {
        // Peers that ask for credit get some.
        let grant_bps = Some(10_000_000_000);
        let config = NicConfig { grant_bps, ..NicConfig::new(addr(i), [i as u8; 32]) };
        let mut nic = Nic::new(config).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(1024).unwrap();
        let mut qp = QpInit::new(QpType::Rc, pd, cq);
        qp.max_inline = 256;
        qp.max_send_sge = 4;
        qp.max_recv_sge = 4;
        init(&mut qp);
        let qpn = nic.create_qp(&qp).unwrap();
        let buffer = Buffer::new(1 << 20);
        let key = nic.register(pd, Region::owned(buffer.clone()), 0x1_0000, ALL).unwrap();
        End { nic, pd, cq, qpn, buffer, key }
    }

    fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge::new(self.key, 0x1_0000 + offset, len)
    }

    fn remote(&self, offset: u64) -> Remote {
        Remote { addr: 0x1_0000 + offset, rkey: self.key.0 }
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut out = vec![Completion::default(); 64];
        let n = self.nic.poll_cq(self.cq, &mut out).unwrap();
        out.truncate(n);
        out
    }

    fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn state(&self) -> QpState {
        self.nic.query_qp(self.qpn).unwrap().state
    }
}

impl Pair {
    fn rc() -> Pair {
        Pair::new(Mtu::B1024, |_| {})
    }

    fn of(qp_type: QpType) -> Pair {
        Pair::new(Mtu::B1024, |init| init.qp_type = qp_type)
    }

    fn new(mtu: Mtu, init: impl Fn(&mut QpInit)) -> Pair {
        Pair::with_reads(mtu, 4, init)
    }

    fn with_reads(mtu: Mtu, reads: u8, init: impl Fn(&mut QpInit)) -> Pair {
        let ends = [End::new(0, &init), End::new(1, &init)];
        let mut pair = Pair { ends, now: Time::from_micros(1), mtu, reads };
        pair.connect(0, 1);
        pair.connect(1, 0);
        pair
    }

    fn connect(&mut self, i: usize, peer: usize) {
        let (dest, qp_type) = (self.ends[peer].qpn, self.qp_type());
        let (end, now) = (&mut self.ends[i], self.now);
        // Close to the end of the PSN space, so that every longer test wraps around.
        let (rq, sq) = if i == 0 { (0xfffff0, 0xfffffd) } else { (0xfffffd, 0xfffff0) };
        let to = Connect {
            path_mtu: self.mtu,
            max_rd_atomic: self.reads,
            max_dest_rd_atomic: self.reads,
            rq_psn: Psn::new(rq),
            sq_psn: Psn::new(sq),
            ..connect_to(addr(peer), dest)
        };
        let steps = match qp_type {
            QpType::Ud => Connect::datagram_steps(0x11, to.sq_psn),
            connected => to.steps(connected),
        };
        for step in steps {
            end.nic.modify_qp(now, end.qpn, &step).unwrap();
        }
    }

    fn qp_type(&self) -> QpType {
        self.ends[0].nic.query_qp(self.ends[0].qpn).unwrap().init.qp_type
    }

    fn post(&mut self, i: usize, wr_id: u64, op: SendOp, sges: &[Sge]) {
        let end = &mut self.ends[i];
        end.nic.post_send(self.now, end.qpn, &SendWr::new(wr_id, op, sges)).unwrap();
    }

    fn recv(&mut self, i: usize, wr_id: u64, sges: &[Sge]) {
        let end = &mut self.ends[i];
        end.nic.post_recv(end.qpn, &RecvWr::new(wr_id, sges)).unwrap();
    }

    /// Everything that one end wants to send now.
    fn take(&mut self, i: usize) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            let batch = self.take_batch(i);
            if batch.is_empty() {
                return frames;
            }
            frames.extend(batch);
        }
    }

    /// As many of them as a batch holds.
    fn take_batch(&mut self, i: usize) -> Vec<Frame> {
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_507 };
        let mut batch = TxBatch::new(caps, 64);
        let mut frames = Vec::new();
        self.ends[i].nic.poll_transmit(self.now, &mut batch);
        for burst in batch.bursts() {
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let bytes = batch.bytes(packet).to_vec();
                assert_eq!(bytes.len(), packet.udp_payload_len());
                frames.push(Frame { to: 1 - i, meta: envelope(i, burst, id), bytes });
            }
        }
        frames
    }

    fn deliver(&mut self, frame: &Frame) {
        let now = self.now;
        self.ends[frame.to].nic.handle_frame(now, &frame.meta, &frame.bytes);
    }

    fn deliver_all(&mut self, frames: &[Frame]) {
        frames.iter().for_each(|f| self.deliver(f));
    }

    /// Delivers some of `frames` as one datagram.
    fn deliver_together(&mut self, frames: &[Frame], which: &[usize]) {
        let bytes = datagram(frames, which);
        self.deliver_datagram(frames, &bytes);
    }

    /// Delivers a datagram of frames like these.
    fn deliver_datagram(&mut self, frames: &[Frame], bytes: &[u8]) {
        let meta = FrameMeta { ip_id: IpId::Guess(0), ..frames[0].meta };
        let frame_len = frames[0].bytes.len();
        self.ends[frames[0].to].nic.handle_frames(self.now, &meta, bytes, frame_len);
    }

    /// Runs until no frames are left, without letting time pass.
    fn exchange(&mut self) {
        for _ in 0..10_000 {
            let frames: Vec<Frame> = (0..2).flat_map(|i| self.take(i)).collect();
            if frames.is_empty() {
                return;
            }
            self.deliver_all(&frames);
        }
        panic!("the two ends never come to rest");
    }

    /// Lets the earliest timer fire; `false` if there is none.
    fn fire_timer(&mut self) -> bool {
        let Some(at) = self.ends.iter().filter_map(|e| e.nic.poll_timeout()).min() else {
            return false;
        };
        self.now = self.now.max(at);
        for end in &mut self.ends {
            end.nic.handle_timeout(self.now);
        }
        true
    }

    /// Runs until neither frames nor timers are left.
    fn run_out(&mut self) {
        for _ in 0..1_000 {
            self.exchange();
            if !self.fire_timer() {
                return;
            }
        }
        panic!("timers never end");
    }

    fn fill(&mut self, i: usize, offset: usize, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|k| (k * 7 + i * 31 + offset) as u8).collect();
        self.ends[i].buffer.write_at(offset, &bytes);
        bytes
    }
}

/// What a port would know about packet `id` of a burst that NIC `from` sent.
fn envelope(from: usize, burst: &Burst, id: usize) -> FrameMeta {
    FrameMeta {
        src: addr(from),
        dst: burst.dst,
        src_port: 4791,
        tos: burst.tos,
        ttl: 64,
        ip_id: IpId::Known(id as u16),
    }
}

/// A connection that gives up soon.
fn connect_to(dst: IpAddr, dest: Qpn) -> Connect {
    Connect {
        access: ALL,
        max_dest_rd_atomic: 4,
        max_rd_atomic: 4,
        timeout: 10,
        retry_count: 3,
        rnr_retry: 2,
        ..Connect::new(dst, dest)
    }
}

/// Changes a packet and recomputes its ICRC, as a forger on the path could.
fn forge(frame: &Frame, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut forged = frame.clone();
    change(&mut forged.bytes);
    let body = forged.bytes.len() - 4;
    let key = FlowKey {
        src: forged.meta.src,
        dst: forged.meta.dst,
        src_port: forged.meta.src_port,
        dst_port: 4791,
    };
    let IpId::Known(id) = forged.meta.ip_id else { unreachable!("tests know the ID") };
    let icrc = icrc_of(&key, id, &forged.bytes[..body]);
    forged.bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    forged
}

fn parse(frame: &Frame) -> PacketView<'_> {
    PacketView::parse(&frame.bytes).unwrap()
}

/// Some of `frames` as one datagram. A port numbers the frames of a datagram from 0.
fn datagram(frames: &[Frame], which: &[usize]) -> Vec<u8> {
    let seal = |(id, k): (usize, &usize)| {
        let mut frame = frames[*k].clone();
        frame.meta.ip_id = IpId::Known(id as u16);
        forge(&frame, |_| {}).bytes
    };
    which.iter().enumerate().flat_map(seal).collect()
}
