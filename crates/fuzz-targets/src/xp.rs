//! Packets at an XP connection: fragments of any message, READ requests and answers, deadlines.

use bowline_nic::{
    Connect, Mtu, QpInit, QpType, RecvWr, Remote, SendOp, SendWr, Sge, Time, XpOptions,
};
use bowline_wire::{Opcode, Psn, Qpn, XpEth};

use crate::host::{Host, PEER, Packet, Script};

/// Bytes that receives and READs may write.
const RECEIVES: std::ops::Range<usize> = 0..4 << 10;
/// Bytes that the peer may write.
const EXPOSED: std::ops::Range<usize> = 8 << 10..16 << 10;
const MTU: u32 = 256;
/// Where numbers wrap around.
const TOKEN: u32 = 0xff_ffff;

/// Plays packets against a connection whose peer knows the token.
pub(crate) fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut host = Host::new();
    let [window, grace, log] = script.array();
    let options = XpOptions {
        window: 1 << (window % 5),
        grace_ns: u64::from(grace) * 1_000,
        loss_log: (log % 4).into(),
    };
    let qpn = connect(&mut host, &options);
    let sge = [Sge::new(host.key, RECEIVES.start as u64, RECEIVES.len() as u32)];
    while !script.is_over() {
        let op = script.byte();
        let deadline = host.now.plus_nanos(u64::from(op) * 500);
        match op % 8 {
            0 => {
                let _ = host.nic.post_recv(qpn, &RecvWr { deadline, ..RecvWr::new(1, &sge) });
            }
            1 => {
                let remote = Remote { addr: 0, rkey: 1 };
                let op = if op & 8 == 0 { SendOp::Read(remote) } else { SendOp::Write(remote) };
                let wr = SendWr { deadline, ..SendWr::new(2, op, &sge) };
                let _ = host.nic.post_send(host.now, qpn, &wr);
            }
            2 => {
                host.now = host.now.max(host.nic.poll_timeout().unwrap_or(Time::ZERO));
                host.nic.handle_timeout(host.now);
            }
            3 => while host.nic.take_loss(qpn).is_some() {},
            _ => {
                let packet = packet(&mut script, &host, qpn);
                host.deliver(packet, op >> 7);
            }
        }
        host.drain();
    }
    host.check_untouched(&[RECEIVES, EXPOSED]);
}

fn connect(host: &mut Host, options: &XpOptions) -> Qpn {
    let cq = host.nic.create_cq(1024).expect("there is room");
    let qpn = host.nic.create_qp(&QpInit::new(QpType::Xp, host.pd, cq)).expect("there is room");
    host.nic.set_xp(qpn, options).expect("the options are legal");
    let connect =
        Connect { path_mtu: Mtu::B256, rq_psn: Psn::new(TOKEN), ..Connect::new(PEER, Qpn::new(7)) };
    host.nic.connect(host.now, qpn, &connect).expect("the attributes are right");
    qpn
}

/// A packet of any opcode of XP's, mostly one that makes sense.
fn packet(script: &mut Script<'_>, host: &Host, qpn: Qpn) -> Vec<u8> {
    let [opcode, seq, recv, fragment, stride, short, offset, flags] = script.array();
    let opcode = Opcode(0xc0 + opcode % 20);
    let len = if flags & 1 == 0 { u32::from(script.u16()) % 4_096 } else { script.u32() };
    let first = TOKEN << 8 | TOKEN & 0xff;
    let eth = XpEth {
        wqe_seq: first.wrapping_add(seq.into()),
        recv_seq: first.wrapping_add(recv.into()),
        len,
        stride_log2: if flags & 2 == 0 { 0 } else { stride },
        token: Psn::new(if flags & 4 == 0 { TOKEN } else { 1 }),
    };
    let (va, rkey) = (EXPOSED.start as u64 + u64::from(offset) * 16, host.key.0);
    // Within what the peer may write, or anywhere.
    let within = va + u64::from(len) <= EXPOSED.end as u64;
    let rkey = if within { rkey } else { 0 };
    let Some(info) = opcode.info() else { return vec![opcode.0; 40] };
    let rest = len.saturating_sub(u32::from(fragment) * MTU).min(MTU);
    let payload = vec![fragment; if flags & 16 == 0 { rest as usize } else { short.into() }];
    let mut packet = Packet::new(opcode, qpn, fragment.into(), payload.len());
    if info.ext.xpeth.is_some() {
        packet = packet.xpeth(&eth);
    }
    if info.ext.reth.is_some() {
        packet = packet.reth(va, rkey, len);
    }
    // The time that is left to a READ takes the same place.
    if info.ext.xp_time_left.is_some() || info.has_imm {
        packet = packet.imm(short.into());
    }
    packet.payload(&payload)
}
