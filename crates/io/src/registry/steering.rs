//! The kernel program that steers a datagram to a process by the top byte of the destination QPN.
//!
//! The kernel runs it on the UDP payload and uses the result as an index into the group of sockets.
//! For an index past the end, it picks a socket by the datagram's flow instead.

use libc::{
    BPF_ABS, BPF_ALU, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_W, sock_filter,
};

use super::probe::{PROBE_OPCODE, PROBE_PREFIX};

/// Offset of the opcode in a packet.
const OPCODE_AT: u32 = 0;
/// Offset of the top byte of the destination QPN.
const PREFIX_AT: u32 = 5;
/// Offset of the index that a probe asks for: the QPN's second byte.
const PROBE_INDEX_AT: u32 = 6;

/// `BPF_A`: return the accumulator. The C library's bindings do not have it.
const BPF_A: u32 = 0x10;

/// Loads from this offset return a random number. The C library's bindings make it signed.
const RANDOM_AT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;

/// A program that steers each prefix to its index, and a probe to the index that it asks for.
///
/// Everything else has no process's prefix: above all, management datagrams for queue pair 1. Each
/// goes to a random process, which copies it to the others. If one process got them all and were
/// stopped, no process on the address would receive any.
pub(super) fn program(routes: impl Iterator<Item = (u8, u8)>) -> Vec<sock_filter> {
    let mut out = vec![
        load_byte(OPCODE_AT),
        jump_unless(PROBE_OPCODE, 4),
        load_byte(PREFIX_AT),
        jump_unless(PROBE_PREFIX, 2),
        load_byte(PROBE_INDEX_AT),
        insn(BPF_RET | BPF_A, 0),
        load_byte(PREFIX_AT),
    ];
    let mut processes = 0;
    for (prefix, index) in routes {
        processes += 1;
        out.push(jump_unless(prefix, 1));
        out.push(insn(BPF_RET | BPF_K, index.into()));
    }
    out.push(insn(BPF_LD | BPF_W | BPF_ABS, RANDOM_AT));
    out.push(insn(BPF_ALU | BPF_MOD | BPF_K, processes.max(1)));
    out.push(insn(BPF_RET | BPF_A, 0));
    out
}

fn load_byte(at: u32) -> sock_filter {
    insn(BPF_LD | BPF_B | BPF_ABS, at)
}

/// Skips `skip` instructions unless the accumulator is `value`.
fn jump_unless(value: u8, skip: u8) -> sock_filter {
    sock_filter { jf: skip, ..insn(BPF_JMP | BPF_JEQ | BPF_K, value.into()) }
}

fn insn(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
