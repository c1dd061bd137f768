//! Connection setup over TCP: how two programs exchange the addresses of their queue pairs.
//!
//! A queue pair needs its peer's address, number and first packet sequence number, and one-sided
//! operations need the peer's memory keys. [`Listener`] and [`Connector`] give a [`Channel`], over
//! which [`Channel::connect`] exchanges all of it. What arrives is checked, every wait is bounded,
//! and a peer can make this side allocate at most [`MAX_BODY`] bytes.
//!
//! A channel is in cleartext until its ends authenticate each other, which they do before anything
//! else: [`Channel::authenticate`] at the end that connected and [`Channel::accept_peer`] at the
//! other. From then on everything is encrypted, and queue pairs that are connected over the channel
//! are sealed (`docs/peers.md`, `docs/sealed.md`).

mod channel;
mod error;
pub(crate) mod joining;
pub(crate) mod message;
mod records;
mod sealing;
mod secure;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

pub use channel::{Channel, Peer};
pub use error::SetupError;
pub use message::{MAX_BODY, MAX_REGIONS};
pub(crate) use sealing::{Sealing, preferred_suite};
pub use secure::AcceptPolicy;

use crate::Error;

/// Reads a whole frame that carries a queue pair, for fuzzers: a [`Channel`] reads it from its
/// peer.
#[doc(hidden)]
pub fn parse_endpoint(frame: &[u8]) -> Result<Peer, SetupError> {
    let (header, body) = frame.split_first_chunk().ok_or(SetupError::Truncated)?;
    let len = message::parse_header(header)?.expect(message::Kind::Endpoint)?;
    let body = body.get(..len).ok_or(SetupError::Truncated)?;
    let (endpoint, regions) = message::decode_endpoint(body)?;
    Ok(Peer { endpoint, regions })
}

/// Default time limit for a whole exchange.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for programs that want to connect.
///
/// ```
/// use bowline::{Connector, Listener};
/// use std::time::Duration;
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || {
///     let mut channel = Connector::new().connect(address)?;
///     channel.send(b"hello")
/// });
/// let mut channel = listener.accept_timeout(Duration::from_secs(5))?;
/// assert_eq!(channel.recv()?, b"hello");
/// client.join().unwrap()?;
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    timeout: Duration,
}

impl Listener {
    /// Listens on a TCP address; with port 0 the system picks one, see
    /// [`local_addr`](Self::local_addr).
    pub fn bind(addr: impl ToSocketAddrs) -> Result<Listener, Error> {
        let addrs = addr.to_socket_addrs().map_err(|e| Error::system("resolve the address", e))?;
        let addrs: Vec<SocketAddr> = addrs.collect();
        let tcp = TcpListener::bind(&addrs[..]).map_err(|e| {
            let names: Vec<String> = addrs.iter().map(SocketAddr::to_string).collect();
            Error::system(format!("listen on {}", names.join(", ")), e)
        })?;
        Ok(Listener { tcp, timeout: DEFAULT_TIMEOUT })
    }

    /// How long each step of an accepted exchange may take; 10 seconds by default.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Listener {
        self.timeout = timeout;
        self
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.tcp.local_addr().map_err(|e| Error::system("read the listener's address", e))
    }

    /// Waits for a program to connect, without a timeout.
    pub fn accept(&self) -> Result<Channel, Error> {
        let (stream, _) = self.tcp.accept().map_err(|e| Error::system("accept a connection", e))?;
        Channel::new(stream, self.timeout)
    }

    /// Waits for a program to connect, at most for `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Channel, Error> {
        let fail = |e| Error::system("accept a connection", e);
        let deadline = Instant::now() + timeout;
        self.tcp.set_nonblocking(true).map_err(fail)?;
        let accepted = loop {
            match self.tcp.accept() {
                Ok((stream, _)) => break Ok(stream),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        break Err(SetupError::TimedOut { doing: "waiting for a client" }.into());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => break Err(fail(e)),
            }
        };
        self.tcp.set_nonblocking(false).map_err(fail)?;
        let stream = accepted?;
        stream.set_nonblocking(false).map_err(fail)?;
        Channel::new(stream, self.timeout)
    }
}

/// Connects to a [`Listener`].
#[derive(Clone, Debug)]
pub struct Connector {
    timeout: Duration,
}

impl Connector {
    /// A connector with the default timeout of 10 seconds.
    pub fn new() -> Connector {
        Connector { timeout: DEFAULT_TIMEOUT }
    }

    /// How long connecting, and then each step of the exchange, may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Connector {
        self.timeout = timeout;
        self
    }

    /// Connects, trying every address that the name resolves to.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> Result<Channel, Error> {
        let addrs = addr.to_socket_addrs().map_err(|e| Error::system("resolve the host", e))?;
        let mut last = None;
        for addr in addrs {
            match TcpStream::connect_timeout(&addr, self.timeout) {
                Ok(stream) => return Channel::new(stream, self.timeout),
                Err(e) => last = Some((addr, e)),
            }
        }
        Err(match last {
            Some((addr, e)) => Error::system(format!("connect to {addr}"), e),
            None => {
                Error::Invalid { what: "host", why: "the name stands for no address".to_owned() }
            }
        })
    }
}

impl Default for Connector {
    fn default() -> Self {
        Connector::new()
    }
}
