//! One TCP connection between two programs that set up queue pairs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::error::SetupError;
use super::message::{self, HEADER_LEN, Kind};
use crate::{Endpoint, Error, Qp, RemoteMr};

/// What the other end told about one queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// The memory that it offers, in the order it listed them.
    pub regions: Vec<RemoteMr>,
}

/// A connection to the other program, for setup and small messages beside the data path.
///
/// Both ends must go through the same steps in the same order. Each step takes no longer than the
/// timeout of the [`Listener`](crate::Listener) or [`Connector`](crate::Connector), however the
/// peer behaves; after an error the channel is of no more use.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    timeout: Duration,
}

impl Channel {
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Result<Channel, Error> {
        // Setup messages are small and each waits for the last: never hold one back.
        stream.set_nodelay(true).map_err(SetupError::Io)?;
        Ok(Channel { stream, timeout })
    }

    /// The other program's TCP address.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.stream.peer_addr().map_err(SetupError::Io)?)
    }

    /// This program's TCP address.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        Ok(self.stream.local_addr().map_err(SetupError::Io)?)
    }

    /// Changes how long each step may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The same connection once more, so that one thread can receive while another sends.
    pub fn try_clone(&self) -> Result<Channel, Error> {
        let stream = self.stream.try_clone().map_err(SetupError::Io)?;
        Ok(Channel { stream, timeout: self.timeout })
    }

    /// Exchanges queue pairs and memory keys and connects `qp`.
    ///
    /// When it returns, both ends are ready to send and to receive. For several queue pairs call
    /// it once for each, in the same order on both ends.
    pub fn connect(&mut self, qp: &Qp, regions: &[RemoteMr]) -> Result<Peer, Error> {
        let peer = self.exchange(qp, regions)?;
        qp.connect(&peer.endpoint)?;
        self.barrier()?;
        Ok(peer)
    }

    /// Tells the peer about `qp` and learns about its own, without connecting anything.
    ///
    /// For those who want attributes of their own: then call [`Qp::connect_with`] and
    /// [`barrier`](Self::barrier). A datagram QP has nothing to connect, and stops here.
    pub fn exchange(&mut self, qp: &Qp, regions: &[RemoteMr]) -> Result<Peer, Error> {
        let ours = qp.endpoint();
        self.send_frame(Kind::Endpoint, &message::encode_endpoint(&ours, regions)?)?;
        let body = self.recv_frame(Kind::Endpoint, "waiting for the peer's queue pair")?;
        let (endpoint, regions) = message::decode_endpoint(&body)?;
        check_match(&ours, &endpoint)?;
        Ok(Peer { endpoint, regions })
    }

    /// Waits until the peer has come to the same point.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.send_frame(Kind::Barrier, &[])?;
        self.recv_frame(Kind::Barrier, "waiting for the peer to be ready").map(|_| ())
    }

    /// Sends a small message of the application's own, at most [`MAX_BODY`](crate::setup::MAX_BODY) bytes.
    pub fn send(&mut self, data: &[u8]) -> Result<(), Error> {
        self.send_frame(Kind::Data, data)
    }

    /// Receives what the peer gave to [`send`](Self::send).
    pub fn recv(&mut self) -> Result<Vec<u8>, Error> {
        self.recv_frame(Kind::Data, "waiting for the peer's message")
    }

    fn send_frame(&mut self, kind: Kind, body: &[u8]) -> Result<(), Error> {
        let frame = message::frame(kind, body)?;
        let deadline = Instant::now() + self.timeout;
        let mut rest = &frame[..];
        while !rest.is_empty() {
            let left = time_left(deadline, "sending to the peer")?;
            self.stream.set_write_timeout(Some(left)).map_err(SetupError::Io)?;
            match self.stream.write(rest) {
                Ok(0) => return Err(SetupError::Closed.into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if is_temporary(&e) => {}
                Err(e) => return Err(io_error(e).into()),
            }
        }
        Ok(())
    }

    fn recv_frame(&mut self, kind: Kind, doing: &'static str) -> Result<Vec<u8>, Error> {
        // One deadline for the whole frame: a peer that dribbles bytes gains no time.
        let deadline = Instant::now() + self.timeout;
        let mut header = [0; HEADER_LEN];
        self.read_exact(&mut header, deadline, doing)?;
        let mut body = vec![0; message::parse_header(&header, kind)?];
        self.read_exact(&mut body, deadline, doing)?;
        Ok(body)
    }

    fn read_exact(
        &mut self,
        mut out: &mut [u8],
        deadline: Instant,
        doing: &'static str,
    ) -> Result<(), SetupError> {
        while !out.is_empty() {
            let left = time_left(deadline, doing)?;
            self.stream.set_read_timeout(Some(left)).map_err(SetupError::Io)?;
            match self.stream.read(out) {
                Ok(0) => return Err(SetupError::Closed),
                Ok(n) => out = &mut out[n..],
                Err(e) if is_temporary(&e) => {}
                Err(e) => return Err(io_error(e)),
            }
        }
        Ok(())
    }
}

/// Whether two queue pairs can talk at all.
fn check_match(ours: &Endpoint, theirs: &Endpoint) -> Result<(), SetupError> {
    let mismatch = |what, theirs: String, ours: String| SetupError::Mismatch { what, theirs, ours };
    if ours.qp_type != theirs.qp_type {
        let (t, o) = (format!("{:?}", theirs.qp_type), format!("{:?}", ours.qp_type));
        return Err(mismatch("QP type", t, o));
    }
    if ours.addr.is_ipv4() != theirs.addr.is_ipv4() {
        return Err(mismatch("address", theirs.addr.to_string(), ours.addr.to_string()));
    }
    if ours.udp_port != theirs.udp_port {
        return Err(mismatch("UDP port", theirs.udp_port.to_string(), ours.udp_port.to_string()));
    }
    Ok(())
}

fn time_left(deadline: Instant, doing: &'static str) -> Result<Duration, SetupError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(SetupError::TimedOut { doing }) } else { Ok(left) }
}

/// Timeouts come back as `WouldBlock`; the deadline decides.
fn is_temporary(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn io_error(e: io::Error) -> SetupError {
    match e.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted => {
            SetupError::Closed
        }
        _ => SetupError::Io(e),
    }
}
