//! Time to seal and open a packet, by suite and length: `cargo bench -p bowline-seal`.

use std::time::{Duration, Instant};

use bowline_nic::{PacketSeal, Time};
use bowline_seal::{OVERHEAD, Role, SealConfig, SessionSecret, Suite, seal};

/// Packets at a time: few enough to stay in the second-level cache.
const BATCH: usize = 64;
const ROUNDS: usize = 400;
/// An acknowledgement, and data at two MTUs: BTH to pad.
const LENGTHS: [usize; 3] = [16, 12 + 1024, 12 + 4096];

fn end(role: Role, suite: Suite) -> PacketSeal {
    let secret = SessionSecret::from_bytes([7; SessionSecret::LEN]);
    seal(&secret, 0, role, &SealConfig::new(suite), Time::ZERO)
}

fn main() {
    println!("{:<20} {:>8} {:>10} {:>10} {:>10}", "suite", "bytes", "seal ns", "open ns", "GB/s");
    for suite in Suite::ALL {
        for len in LENGTHS {
            let (sealing, opening) = measure(suite, len);
            let rate = len as f64 / sealing.max(opening);
            let name = format!("{suite:?}");
            println!("{name:<20} {len:>8} {sealing:>10.1} {opening:>10.1} {rate:>10.2}");
        }
    }
}

/// The least nanoseconds per packet, to seal and to open.
fn measure(suite: Suite, len: usize) -> (f64, f64) {
    let (mut a, mut b) = (end(Role::Initiator, suite), end(Role::Responder, suite));
    let mut packets = vec![vec![1; len + OVERHEAD]; BATCH];
    let mut out = vec![0; len];
    let mut least = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        packets.iter_mut().for_each(|packet| a.sealer.seal(packet));
        let sealed = start.elapsed();
        let start = Instant::now();
        for packet in &packets {
            b.opener.open(Time::ZERO, packet, &mut out).expect("it is whole and new");
        }
        least = [least[0].min(sealed), least[1].min(start.elapsed())];
    }
    let per_packet = |all: Duration| all.as_nanos() as f64 / BATCH as f64;
    (per_packet(least[0]), per_packet(least[1]))
}
