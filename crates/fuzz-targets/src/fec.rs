//! Packets at connections with forward error correction: data, repairs, announcements, reports.

use bowline_fec::{Fec, FecConfig, FecMode, Params};
use bowline_nic::{Connect, Mtu, QpInit, QpType, RecvWr, Remote, SendOp, SendWr, Sge, Time};
use bowline_wire::{Opcode, Psn, Qpn, RepairHeader};

use crate::host::{Host, PEER, Packet, Script};

/// Bytes that receives and READs may write.
const OFFERED: std::ops::Range<usize> = 0..8 << 10;
const MTU: usize = 256;

/// Plays packets against an RC and a UC connection whose peer may be anybody.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut host = Host::new();
    let mode = match script.byte() % 3 {
        0 => FecMode::Auto(Default::default()),
        1 => FecMode::Off,
        _ => FecMode::Fixed(Params::new(8, 2).expect("it is a code")),
    };
    let fec = Fec::new(FecConfig::new(mode));
    fec.install(&mut host.nic);
    let qpns = [QpType::Rc, QpType::Uc].map(|qp_type| connect(&mut host, qp_type));
    let sge = [Sge::new(host.key, OFFERED.start as u64, OFFERED.len() as u32)];
    while !script.is_over() {
        let op = script.byte();
        let qp = usize::from(op >> 7);
        let qpn = qpns[qp];
        match op % 8 {
            0 => {
                let _ = host.nic.post_recv(qpn, &RecvWr::new(1, &sge));
            }
            1 => {
                let remote = Remote { addr: 0, rkey: 1 };
                let op = if qp == 0 { SendOp::Read(remote) } else { SendOp::Write(remote) };
                let _ = host.nic.post_send(host.now, qpn, &SendWr::new(2, op, &sge));
            }
            2 => {
                host.now = host.now.max(host.nic.poll_timeout().unwrap_or(Time::ZERO));
                host.nic.handle_timeout(host.now);
            }
            3 | 4 => host.deliver(data(&mut script, qp, qpn), 0),
            5 => host.deliver(repair(&mut script, qpn), 0),
            6 => {
                // Any message of a shim: its first bytes are from the script.
                let payload = script.piece(64);
                let psn = script.u32();
                let packet = Packet::new(Opcode::RC_REPAIR, qpn, psn, payload.len());
                host.deliver(packet.payload(payload), 0);
            }
            _ => {
                let header = script.array::<24>();
                let mut packet = Packet::new(Opcode(header[0]), qpn, 0, 0).payload(&[]);
                packet.extend(&header[1..]);
                packet.extend(script.piece(MTU));
                host.deliver(packet, 1);
            }
        }
        host.drain();
    }
    let _ = fec.counters();
    host.check_untouched(&[OFFERED]);
}

fn connect(host: &mut Host, qp_type: QpType) -> Qpn {
    let cq = host.nic.create_cq(1024).expect("there is room");
    let qpn = host.nic.create_qp(&QpInit::new(qp_type, host.pd, cq)).expect("there is room");
    let connect = Connect {
        path_mtu: Mtu::B256,
        max_dest_rd_atomic: 2,
        max_rd_atomic: 2,
        timeout: 8,
        ..Connect::new(PEER, Qpn::new(7))
    };
    host.nic.connect(host.now, qpn, &connect).expect("the attributes are right");
    qpn
}

fn data(script: &mut Script<'_>, qp: usize, qpn: Qpn) -> Vec<u8> {
    let opcodes = [
        [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST, Opcode::RC_SEND_ONLY],
        [Opcode::UC_SEND_FIRST, Opcode::UC_SEND_MIDDLE, Opcode::UC_SEND_LAST, Opcode::UC_SEND_ONLY],
    ];
    let [position, psn] = script.array();
    let payload = [position; MTU];
    let len = if position & 0x80 != 0 { usize::from(position) } else { MTU };
    let opcode = opcodes[qp][usize::from(position % 4)];
    Packet::new(opcode, qpn, psn.into(), len).payload(&payload[..len])
}

fn repair(script: &mut Script<'_>, qpn: Qpn) -> Vec<u8> {
    let [flags, r, c, isn, count, opcode, bth_flags, ack, generation] = script.array();
    let base = script.u32();
    let header = RepairHeader {
        response: flags & 1 != 0,
        has_first: flags & 2 != 0,
        has_last: flags & 4 != 0,
        has_ext: flags & 8 != 0,
        r,
        c,
        isn,
        // Near the connection's beginning, mostly.
        base: Psn::new(if flags & 0x10 == 0 { base & 0x3f } else { base }),
        count,
        opcode,
        bth_flags,
        ack,
        len: script.u16(),
        last_len: script.u16(),
        generation,
    };
    let mut payload = vec![0; RepairHeader::LEN];
    header.emit(payload.first_chunk_mut().expect("it is as long"));
    payload.extend(script.piece(MTU + 64));
    Packet::new(Opcode::RC_REPAIR, qpn, 0, payload.len()).payload(&payload)
}
