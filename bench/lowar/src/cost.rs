//! One connection in memory, for instruction counts: run under callgrind by `bench/fec cost`.
//!
//! `fec-cost none|off|R,C`: WRITEs of 1 MiB at MTU 1024 that lose nothing. What the sender does per packet
//! happens in `send_side`, what the receiver does in `receive_side`. `fec-cost xor`: as many payloads summed
//! up one by one, by nothing but the kernel, in `xor_pass`.

use std::hint::black_box;
use std::process::ExitCode;

use bowline_codes::Kernel;
use bowline_fec::{Fec, FecConfig, FecMode};
use bowline_nic::{
    Access, AddressVector, Buffer, Completion, FrameMeta, IpId, Mtu, Nic, NicConfig, QpAttr,
    QpInit, QpState, QpType, Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
};

const MTU: Mtu = Mtu::B1024;
const MESSAGE: usize = 1 << 20;
const MESSAGES: u64 = 8;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let fec = match mode.as_str() {
        "xor" => {
            xor_alone();
            return ExitCode::SUCCESS;
        }
        "none" => None,
        text => match text.parse::<FecMode>() {
            Ok(mode) => Some(mode),
            Err(error) => {
                eprintln!("fec-cost: {error}");
                return ExitCode::FAILURE;
            }
        },
    };
    run(fec);
    ExitCode::SUCCESS
}

/// One XOR pass over each payload of the counted messages.
fn xor_alone() {
    let payload = vec![7; MTU.bytes() as usize];
    let mut sum = vec![0; payload.len()];
    let kernel = Kernel::best();
    for _ in 0..MESSAGES * (MESSAGE / payload.len()) as u64 {
        xor_pass(kernel, black_box(&mut sum), black_box(&payload));
    }
}

#[inline(never)]
fn xor_pass(kernel: Kernel, sum: &mut [u8], payload: &[u8]) {
    kernel.xor_into(sum, payload);
}

struct End {
    nic: Nic,
    qpn: u32,
    cq: bowline_nic::CqId,
    key: bowline_nic::MrKey,
    meta: FrameMeta,
}

fn end(index: u8, fec: Option<FecMode>) -> End {
    let addr = |i: u8| core::net::IpAddr::from([10, 0, 0, i]);
    let mut config = NicConfig::new(addr(index), [index; 32]);
    config.window_bytes = 64 << 20;
    let mut nic = Nic::new(config).expect("legal limits");
    if let Some(mode) = fec {
        Fec::new(FecConfig::new(mode)).install(&mut nic);
    }
    let pd = nic.alloc_pd().expect("within the limits");
    let cq = nic.create_cq(64).expect("within the limits");
    let region = Region::owned(Buffer::new(MESSAGE));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = nic.register(pd, region, 0, access).expect("within the limits");
    let qpn = nic.create_qp(&QpInit::new(QpType::Rc, pd, cq)).expect("within the limits").get();
    let meta = FrameMeta {
        src: addr(3 - index),
        dst: addr(index),
        src_port: 4791,
        tos: 0,
        ttl: 64,
        ip_id: IpId::Guess(0),
    };
    End { nic, qpn, cq, key, meta }
}

fn connect(end: &mut End, peer: u32) {
    let access = Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let zero = Some(bowline::Psn::new(0));
    let init = QpAttr {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access,
        ..QpAttr::default()
    };
    let rtr = QpAttr {
        state: Some(QpState::Rtr),
        av: Some(AddressVector::new(end.meta.src)),
        path_mtu: Some(MTU),
        dest_qpn: Some(qpn_of(peer)),
        rq_psn: zero,
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..QpAttr::default()
    };
    let rts = QpAttr {
        state: Some(QpState::Rts),
        sq_psn: zero,
        timeout: Some(18),
        retry_count: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::default()
    };
    for attr in [init, rtr, rts] {
        end.nic.modify_qp(Time::ZERO, qpn_of(end.qpn), &attr).expect("a legal transition");
    }
}

fn qpn_of(qpn: u32) -> bowline::Qpn {
    bowline::Qpn::new(qpn)
}

/// Packets as they went out, each with its place in its burst.
#[derive(Default)]
struct Wire {
    frames: Vec<(u16, Vec<u8>)>,
}

impl Wire {
    fn take(&mut self, batch: &TxBatch) {
        for burst in batch.bursts() {
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let mut bytes = Vec::with_capacity(packet.udp_payload_len());
                bytes.extend_from_slice(batch.bytes(packet));
                self.frames.push((id as u16, bytes));
            }
        }
    }
}

#[inline(never)]
fn send_side(nic: &mut Nic, now: Time, batch: &mut TxBatch) {
    black_box(nic).poll_transmit(now, batch);
}

#[inline(never)]
fn receive_side(nic: &mut Nic, now: Time, meta: &FrameMeta, frame: &[u8]) {
    black_box(nic).handle_frame(now, meta, frame);
}

/// Moves everything that an end has to send to the other; `counted` through the counted functions.
fn pump(from: &mut End, to: &mut End, now: Time, batch: &mut TxBatch, counted: bool) -> usize {
    let mut wire = Wire::default();
    loop {
        batch.clear();
        if counted {
            send_side(&mut from.nic, now, batch);
        } else {
            from.nic.poll_transmit(now, batch);
        }
        if batch.is_empty() {
            break;
        }
        wire.take(batch);
    }
    for (id, frame) in &wire.frames {
        let meta = FrameMeta { ip_id: IpId::Guess(*id), ..to.meta };
        if counted {
            receive_side(&mut to.nic, now, &meta, frame);
        } else {
            to.nic.handle_frame(now, &meta, frame);
        }
    }
    wire.frames.len()
}

fn run(fec: Option<FecMode>) {
    let (mut a, mut b) = (end(1, fec), end(2, fec));
    let (qpn_a, qpn_b) = (a.qpn, b.qpn);
    connect(&mut a, qpn_b);
    connect(&mut b, qpn_a);
    let mut batch = TxBatch::new(TxCaps { max_segments: 64, max_burst_bytes: 65_000 }, 256);
    let mut now = Time::from_millis(1);
    for number in 0..MESSAGES + 2 {
        now = now.plus_nanos(100_000_000);
        for end in [&mut a, &mut b] {
            end.nic.handle_timeout(now);
        }
        while pump(&mut a, &mut b, now, &mut batch, false)
            + pump(&mut b, &mut a, now, &mut batch, false)
            > 0
        {}
        let sges = [Sge::new(a.key, 0, MESSAGE as u32)];
        let op = SendOp::Write(Remote { addr: 0, rkey: b.key.0 });
        let wr = SendWr::new(number, op, &sges);
        a.nic.post_send(now, qpn_of(a.qpn), &wr).expect("the queue has room");
        // The first two warm up what is allocated once.
        pump(&mut a, &mut b, now, &mut batch, number >= 2);
        while pump(&mut b, &mut a, now, &mut batch, false)
            + pump(&mut a, &mut b, now, &mut batch, false)
            > 0
        {}
        let mut done = [Completion::default(); 4];
        assert_eq!(a.nic.poll_cq(a.cq, &mut done).expect("the queue exists"), 1);
    }
}
