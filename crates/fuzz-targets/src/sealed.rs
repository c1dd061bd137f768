//! Packets at a sealed connection: what strangers make up, what somebody on the path makes of true
//! packets, and true packets with anything inside.

use bowline_nic::{Connect, Mtu, QpInit, QpType, RecvWr, Sge};
use bowline_seal::{Role, Rollover, SealConfig, SessionSecret, Suite, seal};
use bowline_wire::{Bth, Opcode, Qpn, SEALED_TAG_LEN, SealedHeader};

use crate::host::{Host, PEER, Packet, Script};

/// Bytes that receives may write.
const RECEIVES: std::ops::Range<usize> = 0..4 << 10;
/// Bytes that the peer may write.
const EXPOSED: std::ops::Range<usize> = 8 << 10..16 << 10;
/// Packets kept to be repeated.
const MAX_KEPT: usize = 64;

/// Plays packets against a connection. The peer's key is known; what is not sealed with it, whole
/// and new, must change nothing.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let [suite, packets, keep] = script.array();
    let mut host = Host::new();
    let rollover = Rollover {
        packets: u64::from(packets % 8) + 1,
        keep_ns: u64::from(keep) * 100,
        ..Rollover::default()
    };
    let config = SealConfig {
        rollover,
        ..SealConfig::new(Suite::ALL[usize::from(suite) % Suite::ALL.len()])
    };
    let secret = SessionSecret::from_bytes([3; SessionSecret::LEN]);
    let qpn = connect(&mut host, &secret, &config);
    let mut peer = seal(&secret, 0, Role::Initiator, &config, host.now).sealer;
    let mut kept: Vec<Vec<u8>> = Vec::new();
    while !script.is_over() {
        let op = script.byte();
        host.now = host.now.plus_nanos(u64::from(op) * 10);
        let opened = host.nic.qp_counters(qpn).map_or(0, |counters| counters.rx_packets);
        match op % 4 {
            0 => host.deliver(made_up(&mut script, qpn), 0),
            1 if !kept.is_empty() => {
                let at = usize::from(script.byte()) % kept.len();
                host.deliver(changed(&mut script, &kept[at]), 0);
            }
            _ => {
                let mut packet = true_packet(&mut script, &host, qpn);
                peer.seal(&mut packet);
                if kept.len() < MAX_KEPT {
                    kept.push(packet.clone());
                }
                if op & 8 == 0 {
                    host.deliver(packet, op >> 7);
                    continue;
                }
            }
        }
        let now_opened = host.nic.qp_counters(qpn).map_or(0, |counters| counters.rx_packets);
        // A packet that was kept may be the first of its kind to arrive.
        assert!(now_opened == opened || op % 4 == 1, "a forged packet was taken");
        host.drain();
    }
    host.check_untouched(&[RECEIVES, EXPOSED]);
}

fn connect(host: &mut Host, secret: &SessionSecret, config: &SealConfig) -> Qpn {
    let cq = host.nic.create_cq(1024).expect("there is room");
    let qpn = host.nic.create_qp(&QpInit::new(QpType::Rc, host.pd, cq)).expect("there is room");
    let protection = seal(secret, 0, Role::Responder, config, host.now);
    host.nic.seal_qp(qpn, protection).expect("it is not connected");
    let connect = Connect { path_mtu: Mtu::B256, ..Connect::new(PEER, Qpn::new(7)) };
    host.nic.connect(host.now, qpn, &connect).expect("the attributes are right");
    let sges = [Sge::new(host.key, RECEIVES.start as u64, RECEIVES.len() as u32)];
    for _ in 0..8 {
        host.nic.post_recv(qpn, &RecvWr::new(1, &sges)).expect("there is room");
    }
    qpn
}

/// Any bytes behind a header that makes sense, mostly.
fn made_up(script: &mut Script<'_>, qpn: Qpn) -> Vec<u8> {
    let (epoch, counter, flags) = (script.byte(), script.number(), script.byte());
    let mut bytes = vec![0; SealedHeader::LEN];
    let header = SealedHeader { dest_qpn: qpn, epoch, counter };
    header.emit(bytes.first_chunk_mut().expect("it is as long"));
    if flags & 1 != 0 {
        // Not sealed at all.
        bytes[0] = Opcode::RC_SEND_ONLY.0;
    }
    bytes.extend_from_slice(script.piece(600));
    bytes
}

/// A true packet with a byte changed, without its end, or as it was.
fn changed(script: &mut Script<'_>, packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    match script.byte() % 3 {
        0 => {
            let at = usize::from(script.u16()) % bytes.len();
            bytes[at] ^= script.byte();
        }
        1 => bytes.truncate(usize::from(script.u16()) % bytes.len()),
        _ => {}
    }
    bytes
}

/// A packet with room for what seals it: a WRITE, a SEND, or anything.
fn true_packet(script: &mut Script<'_>, host: &Host, qpn: Qpn) -> Vec<u8> {
    let [kind, psn, offset] = script.array();
    let payload = script.piece(300);
    let inner = match kind % 3 {
        0 => {
            let va = EXPOSED.start as u64 + u64::from(offset) * 16;
            let (len, psn) = (payload.len() as u32, psn.into());
            let packet = Packet::new(Opcode::RC_WRITE_ONLY, qpn, psn, payload.len());
            packet.reth(va, host.key.0, len).payload(payload)
        }
        1 => Packet::new(Opcode::RC_SEND_ONLY, qpn, psn.into(), payload.len()).payload(payload),
        _ => {
            let mut bytes = payload.to_vec();
            bytes.resize(bytes.len().max(Bth::LEN), kind);
            bytes
        }
    };
    let mut packet = vec![0; SealedHeader::LEN];
    packet.extend_from_slice(&inner);
    packet.extend_from_slice(&[0; SEALED_TAG_LEN]);
    packet
}
