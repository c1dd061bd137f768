//! One connection in memory, for instruction counts: run under callgrind by `bench/fec/run cost`.
//!
//! `fec-cost none|off|R,C MESSAGES`: WRITEs of 1 MiB at MTU 1024 that lose nothing. What the sender
//! does per packet happens in `send_side`, what the receiver does in `receive_side`. `fec-cost xor
//! MESSAGES`: as many payloads summed up one by one, by nothing but the kernel, in `xor_pass`.

use std::hint::black_box;
use std::process::ExitCode;

use bowline_bench_guard::pair::Pair;
use bowline_codes::Kernel;
use bowline_fec::FecMode;
use bowline_nic::Mtu;

const MTU: Mtu = Mtu::B1024;
const MESSAGE: usize = 1 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [mode, messages] = *args else { return misused("a mode and a number of messages") };
    let Ok(messages) = messages.parse() else { return misused("a number of messages") };
    match mode {
        "xor" => xor_alone(messages),
        "none" => write(None, messages),
        text => match text.parse() {
            Ok(mode) => write(Some(mode), messages),
            Err(error) => return misused(&format!("a mode: {error}")),
        },
    }
    ExitCode::SUCCESS
}

fn misused(wanted: &str) -> ExitCode {
    eprintln!("fec-cost: wants {wanted}");
    ExitCode::FAILURE
}

fn write(fec: Option<FecMode>, messages: usize) {
    let mut pair = Pair::new(MTU, MESSAGE, fec);
    for _ in 0..messages {
        pair.write(MESSAGE);
    }
}

/// One XOR pass over each payload of the messages.
fn xor_alone(messages: usize) {
    let payload = vec![7; MTU.bytes() as usize];
    let mut sum = vec![0; payload.len()];
    let kernel = Kernel::best();
    for _ in 0..messages * (MESSAGE / payload.len()) {
        xor_pass(kernel, black_box(&mut sum), black_box(&payload));
    }
}

#[inline(never)]
fn xor_pass(kernel: Kernel, sum: &mut [u8], payload: &[u8]) {
    kernel.xor_into(sum, payload);
}
