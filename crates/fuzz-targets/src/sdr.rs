//! SDR's control channel and data packets, from a peer that knows all secrets and keeps no rule.

use bowline_nic::{AddressVector, Mtu, Time};
use bowline_sdr::{
    ImmLayout, MAX_CONTROL, ReliableConfig, ReliableInfo, ReliableQp, SdrConfig, SdrInfo, SdrQp,
    Source, Transport, WriteOptions,
};
use bowline_wire::{Opcode, Qpn};

use crate::host::{Host, MEMORY, PEER, Packet, Script};

/// Where messages are received, and how much.
const OFFERED: std::ops::Range<usize> = 8 << 10..24 << 10;

fn config(transport: Transport) -> SdrConfig {
    SdrConfig {
        transport,
        // Few IDs, so that they wrap around.
        layout: ImmLayout::new(3, 25, 4).expect("it has 32 bits"),
        mtu: Mtu::B256,
        chunk_bytes: 512,
        max_message: 8 << 10,
        generations: 2,
        lateness_ns: Some(0),
        ..SdrConfig::default()
    }
}

/// What the host has told its peer.
struct Known {
    control: Qpn,
    token: [u8; 16],
    qpns: Vec<Qpn>,
    roots: Vec<u32>,
    qkey: u32,
}

impl Known {
    /// Reads it where the format has it.
    fn new(info: &[u8], transport: Transport) -> Known {
        let word = |at: usize| {
            let bytes = info.get(at..at + 4).expect("the data is whole");
            bytes.iter().fold(0, |n, byte| n << 8 | u32::from(*byte))
        };
        let [generations, channels] = [info[5], info[6]];
        let count = usize::from(generations) * usize::from(channels);
        let qpns = (0..count).map(|i| Qpn::new(word(43 + 4 * i))).collect();
        let keys = 43 + 4 * count;
        let (roots, qkey) = match transport {
            Transport::Uc => {
                ((0..usize::from(generations)).map(|i| word(keys + 4 * i)).collect(), 0)
            }
            Transport::Ud => (vec![0; generations.into()], word(keys)),
        };
        let mut token = [0; 16];
        token.copy_from_slice(&info[27..43]);
        Known { control: Qpn::new(word(23)), token, qpns, roots, qkey }
    }

    /// A packet of a control message; most have the token.
    fn control(&self, script: &mut Script<'_>, transport: Transport) -> Vec<u8> {
        let flags = script.byte();
        let mut bytes = vec![3, script.byte() % 5, 0, 0, 0, 0, 0, 0];
        bytes.extend(&self.token[..8]);
        for _ in 0..9 {
            bytes.extend(script.number().to_be_bytes());
        }
        if flags & 1 != 0 {
            // A message of the reliable layer: its kind and numbers, then whatever.
            bytes.push(script.byte() % 7);
            for _ in 0..usize::from(script.byte() % 4) {
                bytes.extend(script.number().to_be_bytes());
            }
        }
        bytes.extend(script.piece(MAX_CONTROL - 32));
        bytes.extend(&self.token[8..]);
        if flags & 0x80 != 0 {
            bytes[8 + usize::from(flags & 7)] ^= 1;
        }
        match transport {
            Transport::Ud => Packet::new(Opcode::UD_SEND_ONLY, self.control, 0, bytes.len())
                .deth(self.qkey, PEER_CONTROL)
                .payload(&bytes),
            Transport::Uc => {
                bytes.truncate(256);
                Packet::new(Opcode::UC_SEND_ONLY, self.control, 0, bytes.len()).payload(&bytes)
            }
        }
    }

    /// A packet of a message.
    fn data(&self, script: &mut Script<'_>, transport: Transport) -> Vec<u8> {
        let at = usize::from(script.byte()) % self.qpns.len();
        let (qpn, imm) = (self.qpns[at], script.u32());
        let va = script.number();
        let flags = script.byte();
        let root = self.roots[at % self.roots.len()] ^ u32::from(flags & 1);
        let payload = script.piece(300);
        let len = if flags & 2 != 0 { script.u32() } else { payload.len() as u32 };
        match transport {
            Transport::Ud => Packet::new(Opcode::UD_SEND_ONLY_IMM, qpn, 0, payload.len())
                .deth(self.qkey, Qpn::new(PEER_DATA + at as u32))
                .imm(imm)
                .payload(payload),
            Transport::Uc => Packet::new(Opcode::UC_WRITE_ONLY_IMM, qpn, 0, payload.len())
                .reth(va, root, len)
                .imm(imm)
                .payload(payload),
        }
    }
}

const PEER_CONTROL: Qpn = Qpn::new(100);
const PEER_DATA: u32 = 200;

/// What a peer says about itself: this end's data with other numbers.
fn peer_info(ours: &[u8], transport: Transport) -> Vec<u8> {
    let mut info = ours.to_vec();
    info[23..27].copy_from_slice(&PEER_CONTROL.get().to_be_bytes());
    let count = Known::new(ours, transport).qpns.len();
    for i in 0..count {
        let qpn = PEER_DATA + i as u32;
        info[43 + 4 * i..][..4].copy_from_slice(&qpn.to_be_bytes());
    }
    info
}

/// Packets at a queue pair of partial messages.
pub(crate) fn plain(input: &[u8]) {
    let mut script = Script::new(input);
    let transport = if script.byte() & 1 == 0 { Transport::Uc } else { Transport::Ud };
    let mut host = Host::new();
    let mut qp = SdrQp::new(&mut host.nic, host.pd, &config(transport)).expect("it fits");
    let ours = qp.info().to_bytes();
    let known = Known::new(&ours, transport);
    let peer = SdrInfo::from_bytes(&peer_info(&ours, transport)).expect("it is right");
    qp.connect(&mut host.nic, host.now, AddressVector::new(PEER), &peer).expect("it fits");
    let mut received = Vec::new();
    while !script.is_over() {
        match script.byte() % 8 {
            0 => {
                let addr = OFFERED.start as u64 + u64::from(script.u16()) % 8_192;
                let source = Source { key: host.key, addr };
                let len = u64::from(script.u16()) % 8_192;
                if let Ok(handle) = qp.recv_post(&mut host.nic, host.now, source, len) {
                    received.push(handle);
                }
            }
            1 => {
                let source = Source { key: host.key, addr: 0 };
                let _ = qp.send_post(source, u64::from(script.u16() % 2_048), Some(7));
            }
            2 => {
                if let Some(handle) = received.pop() {
                    let _ = qp.recv_complete(&mut host.nic, handle);
                }
            }
            3 => {
                host.now = host.now.plus_nanos(u64::from(script.u16()) * 1_000);
                host.nic.handle_timeout(host.now);
            }
            4 | 5 => host.deliver(known.data(&mut script, transport), 0),
            _ => host.deliver(known.control(&mut script, transport), 0),
        }
        qp.drive(&mut host.nic, host.now);
        while qp.next_control().is_some() {}
        qp.take_progress(|_| ());
        host.drain();
        for handle in &received {
            let _ = (qp.recv_imm(*handle), qp.recv_bitmap(*handle).map(|bitmap| bitmap.count()));
        }
    }
    let _ = (qp.path(), qp.landing_stats(), qp.peer_retired());
    host.check_untouched(&[OFFERED]);
    qp.destroy(&mut host.nic);
}

/// Packets at a queue pair of reliable messages.
pub(crate) fn reliable(input: &[u8]) {
    let mut script = Script::new(input);
    let sdr = SdrConfig { layout: ImmLayout::STANDARD, ..config(Transport::Uc) };
    let config = ReliableConfig {
        sdr,
        max_write: 16 << 10,
        k: 8,
        m: 4,
        timeout_ns: 1_000_000_000,
        ..ReliableConfig::default()
    };
    let mut host = Host::new();
    let mut qp = ReliableQp::new(&mut host.nic, host.pd, &config).expect("it fits");
    let ours = qp.info().to_bytes();
    // In front of the part below are the lengths of this layer, behind it the schemes' names.
    let at = 16..16 + usize::from(u16::from_be_bytes([ours[14], ours[15]]));
    let known = Known::new(&ours[at.clone()], Transport::Uc);
    let mut peer = ours.clone();
    peer[at.clone()].copy_from_slice(&peer_info(&ours[at], Transport::Uc));
    let peer = ReliableInfo::from_bytes(&peer).expect("it is right");
    qp.connect(&mut host.nic, host.now, AddressVector::new(PEER), &peer).expect("it fits");
    while !script.is_over() {
        match script.byte() % 8 {
            0 => {
                let source = Source { key: host.key, addr: OFFERED.start as u64 };
                let len = u64::from(script.u16()) % OFFERED.len() as u64;
                let _ = qp.recv(&mut host.nic, host.now, source, len);
            }
            1 => {
                let source = Source { key: host.key, addr: OFFERED.end as u64 };
                let len = u64::from(script.u16()) % (MEMORY - OFFERED.end) as u64;
                let scheme = usize::from(script.byte()) % config.schemes.len();
                let options = WriteOptions { scheme, imm: None };
                let len = len.min(config.max_write);
                let _ = qp.write(&mut host.nic, host.now, source, len, options);
            }
            2 => {
                let due = [host.nic.poll_timeout(), qp.poll_timeout()].into_iter().flatten().min();
                host.now = host.now.max(due.unwrap_or(Time::ZERO));
                host.nic.handle_timeout(host.now);
            }
            3 | 4 => host.deliver(known.data(&mut script, Transport::Uc), 0),
            _ => host.deliver(known.control(&mut script, Transport::Uc), 0),
        }
        qp.drive(&mut host.nic, host.now);
        while qp.poll_event().is_some() {}
        host.drain();
    }
    let _ = (qp.path(), qp.stats(), qp.decisions().count());
    host.check_untouched(&[OFFERED]);
    qp.destroy(&mut host.nic);
}
