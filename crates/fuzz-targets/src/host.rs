//! A host under attack, and the packets that are thrown at it.

use core::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, FrameMeta, IpId, MrKey, Nic, NicConfig, PdId, Region, Time, TxBatch, TxCaps,
};
use bowline_wire::{
    Bth, Deth, FlowKey, ImmDt, Opcode, Psn, Qpn, ROCE_UDP_PORT, Reth, XpEth, icrc_of,
};

/// The host's address, and its peer's.
pub(crate) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Bytes of a host's memory.
pub(crate) const MEMORY: usize = 64 << 10;
/// What is in it at first.
const UNTOUCHED: u8 = 0xa5;

/// A NIC with some memory.
pub(crate) struct Host {
    pub(crate) nic: Nic,
    pub(crate) pd: PdId,
    pub(crate) key: MrKey,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) now: Time,
    batch: TxBatch,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::at(LOCAL)
    }

    pub(crate) fn at(addr: IpAddr) -> Host {
        let mut nic = Nic::new(NicConfig::new(addr, [9; 32])).expect("the configuration is right");
        let pd = nic.alloc_pd().expect("there is none yet");
        let buffer = Buffer::new(MEMORY);
        buffer.fill(0, MEMORY, UNTOUCHED);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = Region::owned(buffer.clone());
        let key = nic.register(pd, region, 0, access).expect("there is room");
        let caps = TxCaps { max_segments: 64, max_burst_bytes: 65_507 };
        let batch = TxBatch::new(caps, 64);
        Host { nic, pd, key, buffer, now: Time::from_micros(1), batch }
    }

    /// Sends what there is to send, to nowhere.
    pub(crate) fn drain(&mut self) {
        // Bounded: a NIC that never runs out of things to send is a mistake of its own.
        for _ in 0..10_000 {
            self.batch.clear();
            self.nic.poll_transmit(self.now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
        }
        panic!("the NIC never stops sending");
    }

    /// Lets a packet arrive from the peer, with the ICRC that it ought to have.
    pub(crate) fn deliver(&mut self, mut packet: Vec<u8>, ecn: u8) {
        let flow =
            FlowKey { src: PEER, dst: LOCAL, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT };
        let icrc = icrc_of(&flow, 0, &packet);
        packet.extend(icrc.to_le_bytes());
        let ip_id = IpId::Known(0);
        let src_port = ROCE_UDP_PORT;
        let meta = FrameMeta { src: PEER, dst: LOCAL, src_port, tos: ecn & 3, ttl: 1, ip_id };
        self.nic.handle_frame(self.now, &meta, &packet);
    }

    /// Checks that memory outside of these ranges is as it was.
    pub(crate) fn check_untouched(&self, offered: &[core::ops::Range<usize>]) {
        let bytes = self.buffer.to_vec(0, MEMORY);
        let spoilt = bytes.iter().position(|byte| *byte != UNTOUCHED);
        for at in spoilt.into_iter().flat_map(|first| first..MEMORY) {
            let is_offered = offered.iter().any(|range| range.contains(&at));
            assert!(is_offered || bytes[at] == UNTOUCHED, "byte {at} was written");
        }
    }
}

/// A packet in the making: headers, then payload, padded.
pub(crate) struct Packet {
    bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn new(opcode: Opcode, to: Qpn, psn: u32, payload_len: usize) -> Packet {
        let mut bth = Bth::new(opcode, to, Psn::new(psn));
        bth.pad = (payload_len.wrapping_neg() & 3) as u8;
        let mut bytes = vec![0; Bth::LEN];
        bth.emit(bytes.first_chunk_mut().expect("it is as long"));
        Packet { bytes }
    }

    pub(crate) fn reth(mut self, va: u64, rkey: u32, len: u32) -> Packet {
        let mut bytes = [0; Reth::LEN];
        Reth { va, rkey, len }.emit(&mut bytes);
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn xpeth(mut self, eth: &XpEth) -> Packet {
        let mut bytes = [0; XpEth::LEN];
        eth.emit(&mut bytes);
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn deth(mut self, qkey: u32, src_qpn: Qpn) -> Packet {
        let mut bytes = [0; Deth::LEN];
        Deth { qkey, src_qpn, reserved8: 0 }.emit(&mut bytes);
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn imm(mut self, imm: u32) -> Packet {
        let mut bytes = [0; ImmDt::LEN];
        ImmDt(imm).emit(&mut bytes);
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn payload(mut self, payload: &[u8]) -> Vec<u8> {
        self.bytes.extend_from_slice(payload);
        let pad = payload.len().wrapping_neg() & 3;
        self.bytes.extend(&[0; 3][..pad]);
        self.bytes
    }
}

/// An input as a script: bytes, numbers, and pieces of a length that it names itself. Behind its
/// end there are zeroes.
pub(crate) struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Script<'a> {
        Script { rest: input }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let len = N.min(self.rest.len());
        let (head, tail) = self.rest.split_at(len);
        out[..len].copy_from_slice(head);
        self.rest = tail;
        out
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// A number that is small or close to the largest, mostly, since that is where mistakes are.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            0 => u64::from_be_bytes(self.array()),
            1 => u64::MAX - u64::from(self.byte()),
            small => u64::from(small - 2),
        }
    }

    pub(crate) fn piece(&mut self, max: usize) -> &'a [u8] {
        let len = usize::from(self.u16()).min(max).min(self.rest.len());
        let (head, tail) = self.rest.split_at(len);
        self.rest = tail;
        head
    }
}
