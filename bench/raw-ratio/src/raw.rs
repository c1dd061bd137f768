//! The bare peer: as fast as a UDP socket goes, with nothing on top.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use bowline_bench_common::udp::{self, Batch};

/// UDP payload of a full RoCEv2 packet at MTU 4096: BTH, 4096 bytes, ICRC.
pub(crate) const SEGMENT_BYTES: usize = 12 + 4096 + 4;
/// As many as one segmentation-offload call of 64 KiB takes.
pub(crate) const SEGMENTS: usize = 15;
/// What a receiver gets at most in one buffer.
const GRO_BYTES: usize = 65_535;
/// How long a peer may be silent, on a machine that others keep busy, before a run has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// A ping that is not answered for so long is taken for lost, and repeated.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// How the bare peer calls the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Calls {
    /// `sendmsg` and `recvmsg`: one burst of segments a call.
    Single,
    /// `sendmmsg` and `recvmmsg`: several bursts a call.
    Multi,
    /// Several bursts a call, and the receiver spins.
    MultiSpin,
}

impl Calls {
    pub(crate) const ALL: [Calls; 3] = [Calls::Single, Calls::Multi, Calls::MultiSpin];

    /// The name of the variant in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Calls::Single => "sendmsg/recvmsg",
            Calls::Multi => "sendmmsg/recvmmsg",
            Calls::MultiSpin => "sendmmsg/recvmmsg, spinning",
        }
    }

    fn batch(self) -> usize {
        match self {
            Calls::Single => 1,
            Calls::Multi | Calls::MultiSpin => 4,
        }
    }
}

/// How the ends of a ping-pong wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wait {
    /// Nonblocking receives in a loop.
    Spin,
    /// The kernel wakes the receiver.
    Block,
}

impl Wait {
    pub(crate) const ALL: [Wait; 2] = [Wait::Spin, Wait::Block];

    /// The name of the variant in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spinning",
            Wait::Block => "blocking",
        }
    }
}

/// Receives for `seconds` from the first datagram on; returns Gbit/s of UDP payload.
pub(crate) fn bulk_recv(socket: &UdpSocket, calls: Calls, seconds: f64) -> io::Result<f64> {
    udp::enable_gro(socket)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut batch = Batch::new(calls.batch(), GRO_BYTES, None);
    // The first datagrams only start the clock.
    batch.recv(socket, true)?;
    let wait = calls != Calls::MultiSpin;
    let start = Instant::now();
    let mut bytes = 0u64;
    loop {
        match batch.recv(socket, wait) {
            Ok(n) => bytes += (0..n).map(|i| batch.received(i).len() as u64).sum::<u64>(),
            Err(e) if e.kind() == ErrorKind::WouldBlock && !wait => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        let elapsed = start.elapsed().as_secs_f64();
        if elapsed >= seconds {
            return Ok(bytes as f64 * 8.0 / elapsed / 1e9);
        }
    }
}

/// Sends bursts to `peer` as fast as the kernel takes them.
pub(crate) fn bulk_send(peer: SocketAddrV4, calls: Calls, seconds: f64) -> io::Result<()> {
    let socket = udp::loopback_socket()?;
    udp::set_segment_size(&socket, SEGMENT_BYTES as u16)?;
    socket.connect(peer)?;
    let mut batch = Batch::new(calls.batch(), SEGMENT_BYTES * SEGMENTS, None);
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        match batch.send(&socket) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // The receiver is done before the sender is.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Answers 8-byte datagrams until the peer is gone.
pub(crate) fn pong(socket: &UdpSocket, wait: Wait) -> io::Result<()> {
    let mut word = [0u8; 8];
    socket.set_read_timeout(Some(PATIENCE))?;
    let (n, peer) = socket.recv_from(&mut word)?;
    socket.connect(peer)?;
    socket.send(&word[..n])?;
    prepare(socket, wait)?;
    loop {
        match recv_word(socket, wait, &mut word) {
            Ok(()) => socket.send(&word)?,
            Err(e) if is_timeout(&e) => continue,
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(e) => return Err(e),
        };
    }
}

/// Plays ping-pong with `peer` for `seconds`; returns the median of half round trips in µs.
pub(crate) fn ping(peer: SocketAddr, wait: Wait, seconds: f64) -> io::Result<f64> {
    let socket = udp::loopback_socket()?;
    socket.connect(peer)?;
    prepare(&socket, wait)?;
    let mut halves_ns = Vec::with_capacity(1 << 20);
    let mut word = [0u8; 8];
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let sent = Instant::now();
        socket.send(&word)?;
        match recv_word(&socket, wait, &mut word) {
            Ok(()) => halves_ns.push(sent.elapsed().as_nanos() as u64 / 2),
            Err(e) if is_timeout(&e) && start.elapsed() < PATIENCE => {}
            Err(e) => return Err(e),
        }
    }
    if halves_ns.is_empty() {
        return Err(io::Error::new(ErrorKind::TimedOut, "no ping was ever answered"));
    }
    halves_ns.sort_unstable();
    Ok(halves_ns[halves_ns.len() / 2] as f64 / 1e3)
}

fn prepare(socket: &UdpSocket, wait: Wait) -> io::Result<()> {
    socket.set_nonblocking(wait == Wait::Spin)?;
    socket.set_read_timeout(Some(LOST_AFTER))
}

#[inline]
fn recv_word(socket: &UdpSocket, wait: Wait, word: &mut [u8; 8]) -> io::Result<()> {
    let mut since = None;
    loop {
        match socket.recv(word) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if wait == Wait::Spin && e.kind() == ErrorKind::WouldBlock => {
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > LOST_AFTER {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
}

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
