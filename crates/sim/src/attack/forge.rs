//! Forges every kind of packet that an engine may accept as its peer's, with a correct ICRC.

use core::net::IpAddr;

use bowline_wire::{
    Aeth, AnnounceHeader, AtomicAckEth, AtomicEth, Bth, CNP_RESERVED_LEN, Deth, ExtHeaders,
    FlowKey, Hello, ICRC_LEN, Ieth, ImmDt, NakCode, Opcode, Psn, Qpn, ROCE_UDP_PORT, RepairHeader,
    ReportHeader, Reth, Syndrome,
};

use super::forgery::Forgery;
use crate::check::pattern;
use crate::packet::Packet;
use crate::rng::SimRng;

/// Packets of the longest forged message.
const MAX_PACKETS: u64 = 3;
/// Number of IPv4 identifications that Bowline's own bursts use.
const OWN_IDS: u64 = 64;

/// A QP as an outsider knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// The spoofed source.
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) qpn: Qpn,
    /// Its path MTU.
    pub(crate) mtu: u32,
    /// RC, rather than UC.
    pub(crate) reliable: bool,
}

/// A forged message that an unreliable QP may accept as its peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForgedMessage {
    pub(crate) len: u32,
    /// Seed of its bytes.
    pub(crate) pattern: u64,
    pub(crate) imm: Option<u32>,
    /// It is an empty WRITE, not a SEND.
    pub(crate) is_write: bool,
}

/// Makes packets.
#[derive(Debug)]
pub(crate) struct Forger {
    pub(crate) rng: SimRng,
    own_ids: bool,
}

impl Forger {
    pub(crate) fn new(rng: SimRng, own_ids: bool) -> Forger {
        Forger { rng, own_ids }
    }

    /// Packets of a kind, starting at a PSN, and the message that they make up, if the target may
    /// accept it.
    pub(crate) fn forge(
        &mut self,
        kind: Forgery,
        to: &Target,
        psn: Psn,
    ) -> (Vec<Packet>, Option<ForgedMessage>) {
        match kind {
            Forgery::Send => return self.send(to, psn),
            Forgery::Write => return self.write(to, psn),
            _ => {}
        }
        let rng = &mut self.rng;
        let mut ext = ExtHeaders::default();
        let mut payload = Vec::new();
        let opcode = match kind {
            Forgery::Piece => {
                let (opcode, len) = piece(rng, to);
                payload = noise(rng, len);
                opcode
            }
            Forgery::Read => {
                ext.reth = Some(reth(rng, 1 << 20));
                Opcode::RC_READ_REQ
            }
            Forgery::Atomic => {
                let (va, rkey) = (rng.bits() & !7, key(rng));
                let (swap_or_add, compare) = (rng.bits(), rng.bits());
                ext.atomic = Some(AtomicEth { va, rkey, swap_or_add, compare });
                rng.pick(&[Opcode::RC_CMP_SWAP, Opcode::RC_FETCH_ADD])
            }
            Forgery::Ack | Forgery::Nak | Forgery::Rnr => {
                ext.aeth = Some(aeth(rng, kind));
                Opcode::RC_ACK
            }
            Forgery::ReadResponse => {
                ext.aeth = Some(aeth(rng, Forgery::Ack));
                let len = rng.pick(&[to.mtu, to.mtu, 0, 1]);
                payload = noise(rng, len);
                rng.pick(&[
                    Opcode::RC_READ_RESP_FIRST,
                    Opcode::RC_READ_RESP_MID,
                    Opcode::RC_READ_RESP_LAST,
                    Opcode::RC_READ_RESP_ONLY,
                ])
            }
            Forgery::AtomicAck => {
                ext.aeth = Some(aeth(rng, Forgery::Ack));
                ext.atomic_ack = Some(AtomicAckEth { original: rng.bits() });
                Opcode::RC_ATOMIC_ACK
            }
            Forgery::Repair => {
                payload = repair(rng, to, psn);
                Opcode::RC_REPAIR
            }
            Forgery::FecControl => return (vec![self.fec_control(to, psn)], None),
            Forgery::Cnp => {
                payload = vec![0; CNP_RESERVED_LEN];
                Opcode::CNP
            }
            _ => return (vec![self.noise_packet(to, psn)], None),
        };
        let mut bth = Bth::new(opcode, to.qpn, psn);
        bth.ack_req = self.rng.percent(50);
        bth.becn = opcode == Opcode::CNP;
        (vec![self.seal(to, bth, ext, &payload)], None)
    }

    /// A whole SEND.
    fn send(&mut self, to: &Target, psn: Psn) -> (Vec<Packet>, Option<ForgedMessage>) {
        let rng = &mut self.rng;
        let packets = rng.range(1, MAX_PACKETS) as u32;
        let len = (packets - 1) * to.mtu + rng.range(1, u64::from(to.mtu)) as u32;
        let imm = rng.percent(40).then(|| rng.bits() as u32);
        let message = ForgedMessage { len, pattern: rng.bits(), imm, is_write: false };
        // To invalidate a key, one has to know it.
        let revoked = (to.reliable && imm.is_none() && rng.percent(20)).then(|| key(rng));
        let bytes = pattern::message(message.pattern, len as usize);
        let ext = ExtHeaders {
            imm: imm.map(ImmDt),
            ieth: revoked.map(|rkey| Ieth { rkey }),
            ..ExtHeaders::default()
        };
        (self.send_bytes(to, psn, &bytes, ext), Some(message))
    }

    /// The packets of a SEND of these bytes.
    pub(crate) fn send_bytes(
        &mut self,
        to: &Target,
        psn: Psn,
        bytes: &[u8],
        ext: ExtHeaders,
    ) -> Vec<Packet> {
        let count = bytes.len().div_ceil(to.mtu as usize).max(1);
        let mut chunks = bytes.chunks(to.mtu as usize);
        (0..count)
            .map(|i| {
                let opcode = match (i == 0, i + 1 == count) {
                    (true, true) if ext.imm.is_some() => Opcode::RC_SEND_ONLY_IMM,
                    (true, true) if ext.ieth.is_some() => Opcode::RC_SEND_ONLY_INV,
                    (true, true) => Opcode::RC_SEND_ONLY,
                    (true, false) => Opcode::RC_SEND_FIRST,
                    (false, false) => Opcode::RC_SEND_MIDDLE,
                    (false, true) if ext.imm.is_some() => Opcode::RC_SEND_LAST_IMM,
                    (false, true) if ext.ieth.is_some() => Opcode::RC_SEND_LAST_INV,
                    (false, true) => Opcode::RC_SEND_LAST,
                };
                let bth = Bth::new(to.opcode(opcode), to.qpn, psn.add(i as u32));
                self.seal(to, bth, ext, chunks.next().unwrap_or_default())
            })
            .collect()
    }

    /// A WRITE of one packet, or the first of one.
    fn write(&mut self, to: &Target, psn: Psn) -> (Vec<Packet>, Option<ForgedMessage>) {
        let rng = &mut self.rng;
        let imm = rng.percent(50).then(|| rng.bits() as u32);
        let only = rng.percent(80);
        let len = match only {
            true => rng.pick(&[0, 0, 1, to.mtu]),
            false => to.mtu,
        };
        let total = if only { len } else { len + rng.range(1, 1 << 16) as u32 };
        let opcode = match (only, imm.is_some()) {
            (true, true) => Opcode::RC_WRITE_ONLY_IMM,
            (true, false) => Opcode::RC_WRITE_ONLY,
            (false, _) => Opcode::RC_WRITE_FIRST,
        };
        let reth = Reth { len: total, ..reth(rng, 1) };
        let payload = noise(rng, len);
        // An empty WRITE touches no memory, so its key is not checked.
        let message = imm.filter(|_| only && len == 0).map(|imm| ForgedMessage {
            len: 0,
            pattern: 0,
            imm: Some(imm),
            is_write: true,
        });
        let ext = ExtHeaders { reth: Some(reth), imm: imm.map(ImmDt), ..ExtHeaders::default() };
        let bth = Bth::new(to.opcode(opcode), to.qpn, psn);
        (vec![self.seal(to, bth, ext, &payload)], message)
    }

    /// A landing of SDR: an immediate, possibly without payload.
    pub(crate) fn landing(&mut self, to: &Target, psn: Psn, imm: u32) -> Packet {
        let len = self.rng.pick(&[0, 0, 1, to.mtu]);
        let rkey = key(&mut self.rng);
        let reth = Reth { va: self.rng.pick(&[0, u64::from(to.mtu)]), rkey, len };
        let payload = noise(&mut self.rng, len);
        let ext = ExtHeaders { reth: Some(reth), imm: Some(ImmDt(imm)), ..ExtHeaders::default() };
        let bth = Bth::new(Opcode::UC_WRITE_ONLY_IMM, to.qpn, psn);
        self.seal(to, bth, ext, &payload)
    }

    /// A datagram with these bytes.
    pub(crate) fn datagram(
        &mut self,
        to: &Target,
        from: Qpn,
        qkey: u32,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Packet {
        let opcode = if imm.is_some() { Opcode::UD_SEND_ONLY_IMM } else { Opcode::UD_SEND_ONLY };
        let deth = Deth { qkey, src_qpn: from, reserved8: 0 };
        let ext = ExtHeaders { deth: Some(deth), imm: imm.map(ImmDt), ..ExtHeaders::default() };
        let psn = Psn::new(self.rng.below(1 << 24) as u32);
        self.seal(to, Bth::new(opcode, to.qpn, psn), ext, bytes)
    }

    fn fec_control(&mut self, to: &Target, psn: Psn) -> Packet {
        let rng = &mut self.rng;
        let mut bth = Bth::new(Opcode::RC_REPAIR, to.qpn, psn);
        let mut ext = ExtHeaders::default();
        let mut payload = Vec::new();
        match rng.below(3) {
            0 => {
                bth = Hello::bth(to.qpn, psn);
                ext.aeth = Some(Hello::aeth());
            }
            1 => {
                let (r, c) = (rng.bits() as u8, rng.bits() as u8);
                let header = AnnounceHeader { wants_reports: rng.percent(50), r, c };
                let mut bytes = [0; AnnounceHeader::LEN];
                header.emit(&mut bytes);
                payload.extend(bytes);
            }
            _ => {
                let mut word = || rng.bits() as u32;
                let header = ReportHeader {
                    expected: word(),
                    lost: word(),
                    bursts: word(),
                    unrepaired: word(),
                    longest_burst: word() as u16,
                };
                let mut bytes = [0; ReportHeader::LEN];
                header.emit(&mut bytes);
                payload.extend(bytes);
            }
        }
        self.seal(to, bth, ext, &payload)
    }

    /// Arbitrary bytes under any opcode of the transport, complete or not.
    fn noise_packet(&mut self, to: &Target, psn: Psn) -> Packet {
        let base = if to.reliable { 0 } else { 0x20 };
        let opcode = Opcode(base + self.rng.below(0x20) as u8);
        // Must not form a message: an opcode that the transport does not know, or a truncated
        // packet.
        let known = opcode.info().is_some();
        let mut bytes = vec![0; Bth::LEN];
        if let Some(bth) = bytes.first_chunk_mut() {
            Bth::new(opcode, to.qpn, psn).emit(bth);
        }
        let len = if known { 0 } else { self.rng.below(64) as u32 };
        bytes.extend(noise(&mut self.rng, len));
        if known {
            bytes[1] |= 0x30;
        }
        bytes.extend([0; ICRC_LEN]);
        self.envelope(to, bytes)
    }

    pub(super) fn seal(
        &mut self,
        to: &Target,
        mut bth: Bth,
        ext: ExtHeaders,
        payload: &[u8],
    ) -> Packet {
        bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        let packet = bowline_wire::Packet { bth, ext, payload, pad_bytes: [0; 3], icrc: 0 };
        let len = packet.wire_len().expect("the opcode is known");
        let mut bytes = vec![0; len];
        packet.emit(&mut bytes).expect("all headers are there");
        self.envelope(to, bytes)
    }

    fn envelope(&mut self, to: &Target, bytes: Vec<u8>) -> Packet {
        let (src_port, dst_port) = (ROCE_UDP_PORT, ROCE_UDP_PORT);
        let key = FlowKey { src: to.src, dst: to.dst, src_port, dst_port };
        let mut packet = Packet::new(&key, bytes);
        if to.dst.is_ipv4() {
            let ids = if self.own_ids { OWN_IDS } else { 1 << 16 };
            packet.ip_id = self.rng.below(ids) as u16;
        }
        packet.set_icrc();
        packet
    }
}

impl Target {
    /// An RC opcode, translated to the target's transport.
    fn opcode(&self, rc: Opcode) -> Opcode {
        if self.reliable { rc } else { Opcode(rc.0 | 0x20) }
    }
}

/// A key that an attacker would try first, or a random one. It is right with a chance of some
/// hundred in 2^32, and then the address is wrong.
pub(super) fn key(rng: &mut SimRng) -> u32 {
    match rng.below(6) {
        0 => 0,
        1 => 1,
        2 => u32::MAX,
        _ => rng.bits() as u32,
    }
}

fn reth(rng: &mut SimRng, most: u64) -> Reth {
    let va = if rng.percent(30) { 0 } else { rng.bits() };
    let len = if rng.percent(30) { 0 } else { rng.range(1, most) as u32 };
    Reth { va, rkey: key(rng), len }
}

fn aeth(rng: &mut SimRng, kind: Forgery) -> Aeth {
    let syndrome = match kind {
        Forgery::Nak => Syndrome::Nak(NakCode::from_bits(rng.below(6) as u8)),
        Forgery::Rnr => Syndrome::Rnr { timer: rng.below(32) as u8 },
        _ => Syndrome::Ack { credits: rng.below(32) as u8 },
    };
    Aeth { syndrome, msn: rng.below(1 << 24) as u32 }
}

/// Opcode and length of a packet that does not start a message.
fn piece(rng: &mut SimRng, to: &Target) -> (Opcode, u32) {
    let ends = [Opcode::RC_SEND_LAST, Opcode::RC_WRITE_LAST];
    let middles = [Opcode::RC_SEND_MIDDLE, Opcode::RC_WRITE_MIDDLE];
    let (opcode, len) = if rng.percent(50) {
        (rng.pick(&ends), rng.range(1, u64::from(to.mtu)) as u32)
    } else {
        (rng.pick(&middles), to.mtu)
    };
    (to.opcode(opcode), len)
}

/// A repair for a block that starts at a PSN.
fn repair(rng: &mut SimRng, to: &Target, base: Psn) -> Vec<u8> {
    let count = rng.range(1, 8) as u8;
    let c = rng.range(1, 2) as u8;
    let opcodes = [Opcode::RC_SEND_ONLY, Opcode::RC_SEND_MIDDLE, Opcode::RC_WRITE_MIDDLE];
    let opcode = to.opcode(rng.pick(&opcodes));
    let header = RepairHeader {
        response: rng.percent(20),
        has_first: rng.percent(50),
        has_last: rng.percent(50),
        has_ext: rng.percent(20),
        r: count.max(c),
        c,
        isn: rng.below(c.into()) as u8,
        base,
        count,
        opcode: opcode.0,
        len: to.mtu as u16,
        last_len: to.mtu as u16,
        generation: rng.below(3) as u8,
        ..RepairHeader::default()
    };
    let mut bytes = [0; RepairHeader::LEN];
    header.emit(&mut bytes);
    let mut payload = bytes.to_vec();
    payload.extend(noise(rng, to.mtu));
    payload
}

pub(super) fn noise(rng: &mut SimRng, len: u32) -> Vec<u8> {
    pattern::message(rng.bits(), len as usize)
}
