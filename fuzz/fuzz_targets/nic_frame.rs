//! `Nic::handle_frame` and `handle_frames` at connected QPs with requests outstanding in both
//! directions.
//!
//! The input is a script: frames (sealed with a right ICRC and aimed at one of three QPs, or left
//! as they are), messages that come as datagrams of many, timeouts, posts. Remote peers may write
//! one window of the region and nothing else.
#![no_main]

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, FrameMeta, IpId, MrKey, Mtu, Nic, NicConfig, PdId,
    QpInit, QpType, RecvWr, Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
};
use bowline_wire::{FlowKey, Qpn, icrc_of};
use libfuzzer_sys::fuzz_target;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Bytes that peers may write.
const WINDOW: std::ops::Range<usize> = 16_384..32_768;
/// Bytes that local receives and READs may write.
const LOCAL_WINDOW: std::ops::Range<usize> = 40_000..60_000;
const LEN: usize = 61_440;
static UNTOUCHED: [u8; LEN] = [0xa5; LEN];

struct World {
    nic: Nic,
    cq: CqId,
    qps: [(Qpn, QpType); 3],
    key: MrKey,
    remote_key: MrKey,
    buffer: Arc<Buffer>,
    now: Time,
}

impl World {
    fn new() -> World {
        let mut nic = Nic::new(NicConfig::new(LOCAL, [9; 32])).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(1024).unwrap();
        let buffer = Buffer::new(LEN);
        buffer.fill(0, LEN, 0xa5);
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, Access::LOCAL_WRITE).unwrap();
        let part = Region::part(buffer.clone(), WINDOW.start, WINDOW.len()).unwrap();
        let remote_key = nic.register(pd, part, 0x1000, Access::all()).unwrap();
        let qps = [QpType::Rc, QpType::Uc, QpType::Ud].map(|t| (qp(&mut nic, pd, cq, t), t));
        let mut world = World { nic, cq, qps, key, remote_key, buffer, now: Time::from_micros(1) };
        world.post();
        world
    }

    fn sge(&self, offset: u64, len: u32) -> [Sge; 1] {
        [Sge::new(self.key, LOCAL_WINDOW.start as u64 + offset, len)]
    }

    fn post(&mut self) {
        let (now, remote) = (self.now, Remote { addr: 0x1000, rkey: 0x42 });
        for (qpn, qp_type) in self.qps {
            let recv = self.sge(0, 3_000);
            self.nic.post_recv(qpn, &RecvWr::new(1, &recv)).ok();
            if qp_type == QpType::Rc {
                let (read, word, write) =
                    (self.sge(4_000, 5_000), self.sge(10_000, 8), self.sge(0, 3_000));
                let add = SendOp::FetchAdd { remote, add: 1 };
                self.nic.post_send(now, qpn, &SendWr::new(2, SendOp::Write(remote), &write)).ok();
                self.nic.post_send(now, qpn, &SendWr::new(3, SendOp::Read(remote), &read)).ok();
                self.nic.post_send(now, qpn, &SendWr::new(4, add, &word)).ok();
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        let mut batch = TxBatch::new(TxCaps { max_segments: 64, max_burst_bytes: 65_507 }, 64);
        // Bounded: a NIC that never runs out of things to send is a bug of its own.
        for _ in 0..10_000 {
            batch.clear();
            self.nic.poll_transmit(self.now, &mut batch);
            if batch.is_empty() {
                return;
            }
        }
        panic!("the NIC never stops sending");
    }

    fn frame(&mut self, target: u8, mut bytes: Vec<u8>, seal: bool) {
        let meta = FrameMeta {
            src: PEER,
            dst: LOCAL,
            src_port: 4791,
            tos: target & 3,
            ttl: 1,
            ip_id: IpId::Known(0),
        };
        if seal && bytes.len() >= 16 {
            self.seal(target, 0, &mut bytes);
        }
        self.nic.handle_frame(self.now, &meta, &bytes);
        self.drain();
    }

    /// Aims a packet at a QP, and makes its ICRC right.
    fn seal(&self, target: u8, ip_id: u16, bytes: &mut [u8]) {
        let qpn = self.qps[usize::from(target) % 3].0.get().to_be_bytes();
        bytes[5..8].copy_from_slice(&qpn[1..]);
        bytes[2..4].copy_from_slice(&[0xff, 0xff]);
        bytes[1] &= 0xf0;
        // The peer knows its key, sometimes.
        if bytes.len() >= 32 && target & 0x80 != 0 {
            bytes[20..24].copy_from_slice(&self.remote_key.0.to_be_bytes());
        }
        let body = bytes.len() - 4;
        let key = FlowKey { src: PEER, dst: LOCAL, src_port: 4791, dst_port: 4791 };
        let icrc = icrc_of(&key, ip_id, &bytes[..body]);
        bytes[body..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// The first packet of a message, and a datagram of those behind it, one of which may be wrong.
    fn message(&mut self, target: u8, script: &[u8]) {
        let at = |i: usize| script.get(i).copied().unwrap_or(0);
        let (is_write, psn, count) = (at(0) & 1 != 0, at(1), at(2) % 40);
        let service = if target % 3 == 1 { 0x20 } else { 0 };
        let first = service | if is_write { 0x06 } else { 0x00 };
        let packet = |opcode: u8, psn: u32, reth: &[u8]| {
            let mut bytes = vec![opcode, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend_from_slice(&psn.to_be_bytes());
            bytes.extend_from_slice(reth);
            bytes.extend_from_slice(&[opcode ^ psn as u8; 256 + 4]);
            bytes
        };
        let mut reth = [0; 16];
        reth[4..8].copy_from_slice(&[0, 0, 0x10, at(3)]);
        reth[14..].copy_from_slice(&[at(4), at(5)]);
        let reth = if is_write { &reth[..] } else { &[] };
        self.frame(target, packet(first, psn.into(), reth), true);
        let mut datagram = Vec::new();
        for i in 0..u16::from(count) {
            let mut bytes = packet(first + 1, u32::from(psn) + 1 + u32::from(i), &[]);
            self.seal(target, i, &mut bytes);
            datagram.extend_from_slice(&bytes);
        }
        if let Some(byte) = datagram.get_mut(usize::from(at(6)) << 6 | usize::from(at(7))) {
            *byte ^= at(8);
        }
        let meta = FrameMeta {
            src: PEER,
            dst: LOCAL,
            src_port: 4791,
            tos: at(9) & 3,
            ttl: 1,
            ip_id: IpId::Guess(0),
        };
        self.nic.handle_frames(
            self.now,
            &meta,
            &datagram,
            if at(10) == 0 { 272 } else { at(10).into() },
        );
        self.drain();
    }

    fn check(&self) {
        let bytes = self.buffer.to_vec(0, LEN);
        for untouchable in [0..WINDOW.start, WINDOW.end..LOCAL_WINDOW.start, LOCAL_WINDOW.end..LEN]
        {
            assert!(
                bytes[untouchable.clone()] == UNTOUCHED[untouchable.clone()],
                "{untouchable:?}"
            );
        }
    }
}

fn qp(nic: &mut Nic, pd: PdId, cq: CqId, qp_type: QpType) -> Qpn {
    let qpn = nic.create_qp(&QpInit::new(qp_type, pd, cq)).unwrap();
    let connect = Connect {
        path_mtu: Mtu::B256,
        max_dest_rd_atomic: 2,
        max_rd_atomic: 2,
        min_rnr_timer: 1,
        timeout: 8,
        ..Connect::new(PEER, Qpn::new(7))
    };
    let connected = match qp_type {
        QpType::Ud => nic.activate(Time::ZERO, qpn, 0),
        _ => nic.connect(Time::ZERO, qpn, &connect),
    };
    connected.unwrap();
    qpn
}

fuzz_target!(|data: &[u8]| {
    let mut world = World::new();
    let mut rest = data;
    while let [op, target, len, tail @ ..] = rest {
        let n = usize::from(*len).min(tail.len());
        let (bytes, next) = tail.split_at(n);
        rest = next;
        match op % 8 {
            0 => {
                world.now = world.nic.poll_timeout().unwrap_or(world.now).max(world.now);
                world.nic.handle_timeout(world.now);
                world.drain();
            }
            1 => world.post(),
            2 => {
                let mut out = [Completion::default(); 32];
                world.nic.poll_cq(world.cq, &mut out).unwrap();
                while world.nic.poll_event().is_some() {}
            }
            3 => world.frame(*target, bytes.to_vec(), false),
            4 => world.message(*target, bytes),
            _ => {
                // Room for the trailer that sealing fills in.
                let mut frame = bytes.to_vec();
                frame.extend_from_slice(&[0; 4]);
                world.frame(*target, frame, true);
            }
        }
    }
    world.check();
});
