//! A bare UDP forwarder: what a switch in a process could do at most. One thread sends, one
//! forwards every datagram to all receivers, each receiver is a thread; segmentation offload
//! everywhere, and nobody looks at a byte.
//!
//! Receivers tell the sender how much they have, and it keeps a window, as Bowline's senders do.
//! Without, the forwarder's socket would overflow, and the losses would be measured.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bowline_bench_common::process_cpu_s;
use bowline_bench_common::udp::{self, Batch};
use clap::Parser;

/// UDP payload of a full RoCEv2 packet at MTU 4096, and as many as one call takes.
const SEGMENT_BYTES: usize = 12 + 4096 + 4;
const SEGMENTS: usize = 15;
/// What a receiver gets at most in one buffer.
const GRO_BYTES: usize = 65_535;
const BATCH: usize = 4;
/// Bytes that the slowest receiver may lack.
const WINDOW_BYTES: u64 = 2 << 20;
/// What a receiver has not told for so long is lost.
const LOST_AFTER: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(20);

/// Goodput of a bare UDP forwarder to so many receivers, in Gbit/s to each.
#[derive(Parser)]
struct Args {
    /// Receivers
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    receivers: u8,
    /// How long to send
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let stop = AtomicBool::new(false);
    let forwarder = receiving()?;
    let to = forwarder.local_addr()?;
    let sockets = (0..args.receivers).map(|_| receiving()).collect::<io::Result<Vec<_>>>()?;
    let addrs = sockets.iter().map(UdpSocket::local_addr).collect::<io::Result<Vec<_>>>()?;
    let counts: Vec<AtomicU64> = addrs.iter().map(|_| AtomicU64::new(0)).collect();
    let start = Instant::now();
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| forward(&forwarder, &addrs, &stop));
        for (socket, count) in sockets.iter().zip(&counts) {
            let stop = &stop;
            scope.spawn(move || receive(socket, count, stop));
        }
        let sent = send(to, &counts, Duration::from_secs_f64(args.seconds));
        stop.store(true, Ordering::Relaxed);
        sent
    });
    sent?;
    let elapsed = start.elapsed().as_secs_f64();
    let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap_or(0);
    let gbps = least as f64 * 8.0 / elapsed / 1e9;
    let cpu = process_cpu_s() / (least as f64 / 1e9).max(1e-9);
    println!("{{\"receivers\":{},\"gbps\":{gbps:.3},\"cpu_s_per_gb\":{cpu:.3}}}", args.receivers);
    Ok(())
}

fn receiving() -> io::Result<UdpSocket> {
    let socket = udp::loopback_socket()?;
    udp::enable_gro(&socket)?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn sending(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = udp::loopback_socket()?;
    udp::set_segment_size(&socket, SEGMENT_BYTES as u16)?;
    socket.connect(to)?;
    Ok(socket)
}

/// Keeps the window full.
fn send(to: SocketAddr, counts: &[AtomicU64], time: Duration) -> io::Result<()> {
    let socket = sending(to)?;
    let mut batch = Batch::new(1, SEGMENT_BYTES * SEGMENTS, None);
    let burst = (SEGMENT_BYTES * SEGMENTS) as u64;
    let (start, mut sent, mut lost) = (Instant::now(), 0, 0);
    let (mut last, mut heard_at) = (0, Instant::now());
    while start.elapsed() < time {
        let least = counts.iter().map(|count| count.load(Ordering::Acquire)).min().unwrap_or(0);
        if least != last {
            (last, heard_at) = (least, Instant::now());
        }
        if sent - lost < least + WINDOW_BYTES {
            if batch.send(&socket)? == 1 {
                sent += burst;
            }
        } else if heard_at.elapsed() > LOST_AFTER {
            // The counts of receivers that are ahead are a little too high from now on, which helps
            // the forwarder.
            lost = sent - least;
            heard_at = Instant::now();
        } else {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Sends every datagram to all.
fn forward(from: &UdpSocket, to: &[SocketAddr], stop: &AtomicBool) -> io::Result<()> {
    let out = to.iter().map(|to| sending(*to)).collect::<io::Result<Vec<_>>>()?;
    let mut inbound = Batch::new(BATCH, GRO_BYTES, None);
    let mut outbound = Batch::new(BATCH, 0, None);
    while !stop.load(Ordering::Relaxed) {
        let got = match inbound.recv(from, true) {
            Ok(got) => got,
            Err(error) if is_nothing(&error) => continue,
            Err(error) => return Err(error),
        };
        let pieces: Vec<&[u8]> = (0..got).map(|index| inbound.received(index)).collect();
        for socket in &out {
            outbound.send_pieces(socket, &pieces)?;
        }
    }
    Ok(())
}

fn receive(socket: &UdpSocket, count: &AtomicU64, stop: &AtomicBool) -> io::Result<()> {
    let mut batch = Batch::new(BATCH, GRO_BYTES, None);
    while !stop.load(Ordering::Relaxed) {
        match batch.recv(socket, true) {
            Ok(got) => {
                let bytes: usize = (0..got).map(|index| batch.received(index).len()).sum();
                count.fetch_add(bytes as u64, Ordering::Release);
            }
            Err(error) if is_nothing(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
