//! A TCP connection over which two programs set up queue pairs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_peers::{PublicKey, Refusal, Session};
use socket2::{SockRef, TcpKeepalive};

use super::error::SetupError;
use super::message::{self, HEADER_LEN, Header, Kind};
use super::records::Records;
use super::sealing::Sealing;
use super::secure::Admission;
use crate::{ConnectOptions, Endpoint, Error, Qp, RemoteMr};

/// How long a refused peer may take to hang up.
const REFUSAL: Duration = Duration::from_millis(500);
/// Idle time before the kernel's first keepalive probe, and between two probes.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// What the other end announced about one queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// The memory that it offers, in the order listed.
    pub regions: Vec<RemoteMr>,
}

/// A connection to the other program, for setup and small messages beside the data path.
///
/// Both ends must perform the same steps in the same order. Each step takes no longer than the
/// timeout of the [`Listener`](crate::Listener) or [`Connector`](crate::Connector), however the
/// peer behaves; after an error the channel is unusable.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    timeout: Duration,
    /// A header that was read ahead.
    header: Option<Header>,
    /// The encryption, once the ends have authenticated each other.
    records: Option<Arc<Records>>,
    /// Seals queue pairs that are connected from now on.
    sealing: Option<Arc<Sealing>>,
    /// Pending if the peer has not yet told whether it admits this end.
    admission: Option<Admission>,
}

impl Channel {
    pub(super) fn new(stream: TcpStream, timeout: Duration) -> Result<Channel, Error> {
        // Setup messages are small and each waits for the previous one: never delay them.
        stream.set_nodelay(true).map_err(SetupError::Io)?;
        Ok(Channel { stream, timeout, header: None, records: None, sealing: None, admission: None })
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

    /// A second handle to the connection, so that one thread can receive while another sends.
    pub fn try_clone(&self) -> Result<Channel, Error> {
        if self.admission.is_some() {
            return Err(SetupError::NotAdmitted.into());
        }
        let stream = self.stream.try_clone().map_err(SetupError::Io)?;
        let (records, sealing) = (self.records.clone(), self.sealing.clone());
        let Channel { timeout, header, .. } = *self;
        Ok(Channel { stream, timeout, header, records, sealing, admission: None })
    }

    pub(super) fn set_sealing(&mut self, sealing: Sealing) {
        self.sealing = Some(Arc::new(sealing));
    }

    /// Whether queue pairs that are connected over it are sealed.
    pub fn is_sealing(&self) -> bool {
        self.sealing.is_some() || self.admission.is_some()
    }

    pub(super) fn await_admission(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    pub(super) fn take_admission(&mut self) -> Option<Admission> {
        self.admission.take()
    }

    pub(crate) fn sealing(&self) -> Option<&Sealing> {
        self.sealing.as_deref()
    }

    /// Exchanges queue pairs and memory keys and connects `qp`.
    ///
    /// When it returns, both ends are ready to send and to receive. For several queue pairs call
    /// it once for each, in the same order on both ends.
    pub fn connect(&mut self, qp: &Qp, regions: &[RemoteMr]) -> Result<Peer, Error> {
        self.connect_with(qp, regions, &ConnectOptions::default())
    }

    /// The same with other attributes than the defaults, at this end.
    pub fn connect_with(
        &mut self,
        qp: &Qp,
        regions: &[RemoteMr],
        options: &ConnectOptions,
    ) -> Result<Peer, Error> {
        let peer = self.exchange(qp, regions)?;
        qp.connect_with(&peer.endpoint, options)?;
        // Peers of other releases ignore what they do not expect in a barrier.
        self.send_frame(Kind::Barrier, &qp.offer_memory(regions))?;
        qp.accept_memory(&self.recv_frame(Kind::Barrier, "waiting for the peer to be ready")?);
        tracing::debug!(
            target: "bowline::setup",
            "{} queue pair {} is connected to {} of {}",
            qp.qp_type().descriptor().name,
            qp.qpn(),
            peer.endpoint.qpn,
            peer.endpoint.addr
        );
        Ok(peer)
    }

    /// Connects two programs that have a channel to this one but not to each other: each calls
    /// [`connect`](Self::connect), and is connected to the other's queue pair.
    ///
    /// ```
    /// use bowline::{Channel, Connector, Device, Error, Listener, QpType};
    ///
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let program = |addr: &'static str| {
    ///     std::thread::spawn(move || {
    ///         let device = Device::open(addr)?;
    ///         let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    ///         let qp = pd.qp(QpType::Rc, &cq).build()?;
    ///         let peer = Connector::new().connect(address)?.connect(&qp, &[])?;
    ///         Ok::<_, Error>(peer.endpoint.addr.to_string())
    ///     })
    /// };
    /// let [one, other] = [program("127.9.2.1"), program("127.9.2.2")];
    /// Channel::connect_peers(&mut listener.accept()?, &mut listener.accept()?)?;
    /// assert_eq!(one.join().unwrap()?, "127.9.2.2");
    /// assert_eq!(other.join().unwrap()?, "127.9.2.1");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// If either of them fails, or a channel [seals](Self::seal): the two share no secret.
    pub fn connect_peers(one: &mut Channel, other: &mut Channel) -> Result<(), Error> {
        if one.is_sealing() || other.is_sealing() {
            let why = "it seals, and two programs that it connects have no key in common";
            return Err(Error::Invalid { what: "channel", why: why.to_owned() });
        }
        let [first, second] = [one.hear()?, other.hear()?];
        one.tell(&second.endpoint, &second.regions)?;
        other.tell(&first.endpoint, &first.regions)?;
        // Neither is released before both are ready.
        for channel in [&mut *one, &mut *other] {
            channel.recv_frame(Kind::Barrier, "waiting for the peer to be ready")?;
        }
        one.send_frame(Kind::Barrier, &[])?;
        other.send_frame(Kind::Barrier, &[])
    }

    /// Tells the peer about `qp` and learns about the peer's, without connecting anything.
    ///
    /// For a connection in steps: then call [`Qp::connect_with`] and [`barrier`](Self::barrier). A
    /// datagram QP has nothing to connect, and is done here. Over a channel that
    /// [seals](Self::seal) this seals the queue pair.
    pub fn exchange(&mut self, qp: &Qp, regions: &[RemoteMr]) -> Result<Peer, Error> {
        let ours = qp.endpoint();
        self.tell(&ours, regions)?;
        let peer = self.hear_as_member(qp, regions)?;
        check_match(&ours, &peer.endpoint)?;
        if let Some(sealing) = &self.sealing {
            qp.seal_by(|now| sealing.next(now))?;
        }
        Ok(peer)
    }

    /// One half of [`exchange`](Self::exchange): tells the peer about a queue pair.
    pub(crate) fn tell(&mut self, ours: &Endpoint, regions: &[RemoteMr]) -> Result<(), Error> {
        self.send_frame(Kind::Endpoint, &message::encode_endpoint(ours, regions)?)
    }

    /// The other half: receives the peer's, which has not been checked against ours yet.
    pub(crate) fn hear(&mut self) -> Result<Peer, Error> {
        let body = self.recv_frame(Kind::Endpoint, "waiting for the peer's queue pair")?;
        let (endpoint, regions) = message::decode_endpoint(&body)?;
        Ok(Peer { endpoint, regions })
    }

    /// Waits until the peer has reached the same point.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.send_frame(Kind::Barrier, &[])?;
        self.recv_frame(Kind::Barrier, "waiting for the peer to be ready").map(|_| ())
    }

    /// Sends a small application message, at most [`MAX_BODY`](crate::setup::MAX_BODY) bytes.
    pub fn send(&mut self, data: &[u8]) -> Result<(), Error> {
        self.send_frame(Kind::Data, data)
    }

    /// Receives what the peer passed to [`send`](Self::send).
    pub fn recv(&mut self) -> Result<Vec<u8>, Error> {
        self.recv_frame(Kind::Data, "waiting for the peer's message")
    }

    /// Whether [`recv`](Self::recv) would start reading at once: something has arrived, or the peer
    /// has closed the connection.
    ///
    /// ```
    /// use bowline::{Connector, Listener};
    ///
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let mut ours = Connector::new().connect(listener.local_addr()?)?;
    /// let theirs = listener.accept()?;
    /// assert!(!ours.is_readable()?);
    /// drop(theirs);
    /// while !ours.is_readable()? {}
    /// assert!(ours.recv().is_err());
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn is_readable(&self) -> Result<bool, Error> {
        let is_ready = self.header.is_some()
            || self.records.as_ref().is_some_and(|records| records.has_unread());
        if is_ready {
            return Ok(true);
        }
        self.stream.set_nonblocking(true).map_err(SetupError::Io)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).map_err(SetupError::Io)?;
        match peeked {
            Ok(_) => Ok(true),
            Err(e) if is_temporary(&e) => Ok(false),
            // The next call reports the reason.
            Err(_) => Ok(true),
        }
    }

    /// Lets the kernel detect, within some ten seconds, that the peer's host is gone without having
    /// closed the connection. For channels that stay open beside their queue pairs.
    pub fn keep_alive(&self) -> Result<(), Error> {
        let often = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
        Ok(SockRef::from(&self.stream).set_tcp_keepalive(&often).map_err(SetupError::Io)?)
    }

    /// The key that the peer has proven to hold; `None` if it was not authenticated.
    pub fn peer_key(&self) -> Option<PublicKey> {
        self.records.as_ref().map(|records| records.session().peer())
    }

    /// A secret that only the ends of an authenticated channel share; `None` if they are not
    /// authenticated.
    pub fn session_secret(&self) -> Option<&[u8; 32]> {
        self.records.as_ref().map(|records| records.session().secret())
    }

    /// Whether this end connected, and the other accepted; `None` if they are not authenticated.
    pub fn is_initiator(&self) -> Option<bool> {
        self.records.as_ref().map(|records| records.session().is_initiator())
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Encrypts everything from now on.
    pub(super) fn encrypt(&mut self, session: Session) {
        self.records = Some(Arc::new(Records::new(session)));
    }

    pub(super) fn send_frame(&mut self, kind: Kind, body: &[u8]) -> Result<(), Error> {
        let frame = message::frame(kind, body)?;
        let deadline = Instant::now() + self.timeout;
        match self.records.clone() {
            None => write_all(&mut self.stream, &frame, deadline)?,
            Some(records) => {
                let stream = &mut self.stream;
                records.seal(&frame, |sealed| write_all(stream, sealed, deadline))?;
            }
        }
        Ok(())
    }

    pub(super) fn recv_frame(&mut self, kind: Kind, doing: &'static str) -> Result<Vec<u8>, Error> {
        // One deadline for the whole frame: a peer that sends byte by byte gains no time.
        let deadline = Instant::now() + self.timeout;
        let header = self.recv_header(deadline, doing)?;
        if header.kind == Kind::Handshake as u8 && self.records.is_none() {
            self.refuse(Refusal::NoKeys);
        }
        let len = match header.expect(kind) {
            Err(_) if header == (Header { kind: Kind::Refused as u8, len: 1 }) => {
                return Err(self.recv_refusal(deadline)?.into());
            }
            checked => checked?,
        };
        self.recv_body(len, deadline, doing)
    }

    /// The header of the next frame.
    pub(super) fn recv_header(
        &mut self,
        deadline: Instant,
        doing: &'static str,
    ) -> Result<Header, Error> {
        self.hear_admission(deadline)?;
        if let Some(header) = self.header.take() {
            return Ok(header);
        }
        let mut header = [0; HEADER_LEN];
        self.read_exact(&mut header, deadline, doing)?;
        Ok(message::parse_header(&header)?)
    }

    /// Puts back a header that was read ahead.
    pub(super) fn unread_header(&mut self, header: Header) {
        self.header = Some(header);
    }

    pub(super) fn recv_body(
        &mut self,
        len: usize,
        deadline: Instant,
        doing: &'static str,
    ) -> Result<Vec<u8>, Error> {
        let mut body = vec![0; len];
        self.read_exact(&mut body, deadline, doing)?;
        Ok(body)
    }

    /// Why the peer ended the exchange.
    pub(super) fn recv_refusal(&mut self, deadline: Instant) -> Result<SetupError, Error> {
        let body = self.recv_body(1, deadline, "waiting for the peer's reason")?;
        let refusal = body.first().and_then(|byte| Refusal::from_byte(*byte));
        let refusal = refusal.ok_or(SetupError::Invalid("reason to refuse"))?;
        Ok(SetupError::Refused { refusal, ours: None })
    }

    /// Tells the peer why this end does not continue. Errors are ignored: the peer may be gone.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if self.send_frame(Kind::Refused, &[refusal as u8]).is_ok() {
            self.hang_up();
        }
    }

    /// Ends the connection so that the peer receives the last message: closing with unread data
    /// would reset the connection and lose it.
    pub(super) fn hang_up(&mut self) {
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let deadline = Instant::now() + REFUSAL;
        let mut unread = [0; 4096];
        for _ in 0..message::MAX_BODY / unread.len() + 2 {
            let Ok(left) = time_left(deadline, "") else { return };
            if self.stream.set_read_timeout(Some(left)).is_err() {
                return;
            }
            match self.stream.read(&mut unread) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if is_temporary(&e) => {}
                Err(_) => return,
            }
        }
    }

    fn read_exact(
        &mut self,
        out: &mut [u8],
        deadline: Instant,
        doing: &'static str,
    ) -> Result<(), SetupError> {
        let stream = &mut self.stream;
        match &self.records {
            None => read_exact(stream, out, deadline, doing),
            Some(records) => records.open(out, |out| read_exact(stream, out, deadline, doing)),
        }
    }
}

fn write_all(stream: &mut TcpStream, mut rest: &[u8], deadline: Instant) -> Result<(), SetupError> {
    while !rest.is_empty() {
        let left = time_left(deadline, "sending to the peer")?;
        stream.set_write_timeout(Some(left)).map_err(SetupError::Io)?;
        match stream.write(rest) {
            Ok(0) => return Err(SetupError::Closed),
            Ok(n) => rest = &rest[n..],
            Err(e) if is_temporary(&e) => {}
            Err(e) => return Err(io_error(e)),
        }
    }
    Ok(())
}

fn read_exact(
    stream: &mut TcpStream,
    mut out: &mut [u8],
    deadline: Instant,
    doing: &'static str,
) -> Result<(), SetupError> {
    while !out.is_empty() {
        let left = time_left(deadline, doing)?;
        stream.set_read_timeout(Some(left)).map_err(SetupError::Io)?;
        match stream.read(out) {
            Ok(0) => return Err(SetupError::Closed),
            Ok(n) => out = &mut out[n..],
            Err(e) if is_temporary(&e) => {}
            Err(e) => return Err(io_error(e)),
        }
    }
    Ok(())
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
