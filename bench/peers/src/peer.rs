//! What the loops that measure ask of a transport.

use std::ops::Range;

use crate::control::Server;
use crate::spec::{Kind, Spec};
use crate::{Result, quic, rc, sdr, srt, tcp, udp};

/// Bytes by which a receiver says that it has a message.
pub(crate) const ANSWER_BYTES: usize = 8;

/// The end that sends.
pub(crate) trait Sender {
    /// Sends what is at a place of the source memory; it may still be under way on return.
    fn send(&mut self, place: Range<usize>) -> Result<()>;

    /// Waits until everything sent has arrived, and this end knows it. Spins if asked to, where the
    /// transport lets it.
    fn confirm(&mut self, spin: bool) -> Result<()>;

    /// Bytes that have arrived as far as this end knows, where it learns that by itself.
    fn arrived(&self) -> Option<u64> {
        None
    }

    /// The same by queue pair.
    fn arrived_each(&self) -> &[u64] {
        &[]
    }
}

/// Connects to the server.
pub(crate) fn connect(spec: &Spec) -> Result<Box<dyn Sender>> {
    Ok(match spec.kind {
        Kind::Udp | Kind::UdpStream | Kind::UdpSummed => Box::new(udp::Sender::connect(spec)?),
        Kind::TcpCubic | Kind::TcpBbr => Box::new(tcp::Sender::connect(spec)?),
        Kind::QuinnCubic | Kind::QuinnBbr => Box::new(quic::Sender::connect(spec)?),
        Kind::Srt => Box::new(srt::Sender::connect(spec)?),
        Kind::Rc | Kind::RcFec | Kind::Uc => Box::new(rc::Sender::connect(spec)?),
        _ => Box::new(sdr::Sender::connect(spec)?),
    })
}

/// Receives until the driver is gone.
pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    match spec.kind {
        Kind::Udp | Kind::UdpStream | Kind::UdpSummed => udp::serve(spec, control),
        Kind::TcpCubic | Kind::TcpBbr => tcp::serve(spec, control),
        Kind::QuinnCubic | Kind::QuinnBbr => quic::serve(spec, control),
        Kind::Srt => srt::serve(spec, control),
        Kind::Rc | Kind::RcFec | Kind::Uc => rc::serve(spec, control),
        _ => sdr::serve(spec, control),
    }
}

/// Counts the bytes of a stream and says where messages end.
pub(crate) struct Cutter {
    message: usize,
    left: usize,
}

impl Cutter {
    pub(crate) fn new(spec: &Spec) -> Cutter {
        Cutter { message: spec.size, left: spec.size }
    }

    /// Bytes that the message under way lacks.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// So many have come, of one message; whether it is complete.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        self.left -= bytes;
        let complete = self.left == 0;
        if complete {
            self.left = self.message;
        }
        complete
    }
}
