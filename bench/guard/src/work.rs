//! What `bench/guard/run` counts, run by it under callgrind: `guard-work CASE LENGTH`. Nothing here
//! has threads, a clock or chance.

use std::hint::black_box;
use std::net::IpAddr;
use std::process::ExitCode;

use bowline_bench_guard::pair::Pair;
use bowline_fec::FecMode;
use bowline_nic::{Mtu, QpType};
use bowline_sdr::{ImmLayout, RecvTable};
use bowline_wire::{FlowKey, icrc_of};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("guard-work: no such work: {args:?}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> Option<()> {
    let (length, case) = args.split_last()?;
    let length: u32 = length.parse().ok()?;
    match *case {
        ["stream", mtu, "plain"] => stream(mtu_of(mtu)?, None, length),
        ["stream", mtu, "uc"] => unreliable(QpType::Uc, mtu_of(mtu)?, length),
        ["stream", mtu, "xp"] => unreliable(QpType::Xp, mtu_of(mtu)?, length),
        ["stream", mtu, fec] => stream(mtu_of(mtu)?, Some(fec.parse().ok()?), length),
        ["small", bytes] => small(bytes.parse().ok()?, length),
        ["bitmap", chunk_shift] => bitmap(chunk_shift.parse().ok()?, length),
        ["icrc", bytes] => icrc(bytes.parse().ok()?, length),
        _ => return None,
    }
    Some(())
}

fn mtu_of(text: &str) -> Option<Mtu> {
    Mtu::from_bytes(text.parse().ok()?)
}

/// One WRITE of so many packets.
fn stream(mtu: Mtu, fec: Option<FecMode>, packets: u32) {
    let bytes = (packets * mtu.bytes()) as usize;
    Pair::new(mtu, bytes, fec).write(bytes);
}

/// The same over a transport without acknowledgements.
fn unreliable(qp_type: QpType, mtu: Mtu, packets: u32) {
    let bytes = (packets * mtu.bytes()) as usize;
    Pair::of(qp_type, mtu, bytes, None).write(bytes);
}

/// So many WRITEs of a few bytes, one after the other.
fn small(bytes: usize, writes: u32) {
    let mut pair = Pair::new(Mtu::B1024, 4096, None);
    for _ in 0..writes {
        pair.write(bytes);
    }
}

/// So many packets of one message, in order.
fn bitmap(chunk_shift: u32, packets: u32) {
    let layout = ImmLayout::STANDARD;
    let table = RecvTable::new(layout, packets, chunk_shift);
    table.open(0, 0, packets);
    let imms: Vec<u32> = (0..packets).map(|packet| layout.series(0, packet, 7).imm(0)).collect();
    land_all(black_box(&table), black_box(&imms));
    assert!(table.chunks(0).is_complete(), "all packets have landed");
}

#[inline(never)]
fn land_all(table: &RecvTable, imms: &[u32]) {
    for imm in imms {
        black_box(table.land(0, *imm));
    }
}

/// The ICRC of so many packets of as many bytes, trailer not included.
fn icrc(bytes: usize, packets: u32) {
    let [src, dst] = [1, 2].map(|i| IpAddr::from([10, 0, 0, i]));
    let flow = FlowKey { src, dst, src_port: 4791, dst_port: 4791 };
    let packet = vec![7; bytes];
    for _ in 0..packets {
        black_box(sum_up(black_box(&flow), black_box(&packet)));
    }
}

#[inline(never)]
fn sum_up(flow: &FlowKey, packet: &[u8]) -> u32 {
    icrc_of(flow, 0, packet)
}
