//! TCP with deadlines on every operation, and automatic reconnection.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Instant;

use crate::PATIENCE;

/// A server's host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why an exchange with a server failed.
#[derive(Debug)]
pub(crate) enum NetError {
    /// Nothing was received in time. The connection is unusable.
    Io(&'static str, io::Error),
    /// What was received cannot be understood. The connection is unusable.
    Malformed(String),
    /// The server refuses the login, in its own words.
    Refused(String),
}

impl NetError {
    pub(crate) fn malformed(why: impl Into<String>) -> NetError {
        NetError::Malformed(why.into())
    }
}

/// A connection whose reads and writes have a deadline.
pub(crate) struct Connection {
    stream: BufReader<Timed>,
}

struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Connection {
    /// Connects to the first address of a host that answers. Only the name lookup has no deadline
    /// of ours: the C library has its own.
    fn open(endpoint: &Endpoint, deadline: Instant) -> io::Result<Connection> {
        let mut failure = io::Error::other("the host has no address");
        for addr in (endpoint.host.as_str(), endpoint.port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&addr, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Connection { stream: BufReader::new(Timed { stream, deadline }) });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), NetError> {
        self.stream.get_mut().write_all(bytes).map_err(|e| NetError::Io("sending", e))
    }

    /// A line without its end, of at most `max` bytes.
    pub(crate) fn read_line(&mut self, max: usize) -> Result<String, NetError> {
        let mut line = Vec::new();
        self.stream
            .by_ref()
            .take(max as u64)
            .read_until(b'\n', &mut line)
            .map_err(|e| NetError::Io("receiving", e))?;
        match line.pop() {
            Some(b'\n') => {}
            Some(_) if line.len() + 1 == max => {
                return Err(NetError::malformed("a line that does not end"));
            }
            _ => return Err(NetError::Io("receiving", io::ErrorKind::UnexpectedEof.into())),
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        String::from_utf8(line).map_err(|_| NetError::malformed("a line that is no text"))
    }

    pub(crate) fn read_exact(&mut self, len: usize) -> Result<Vec<u8>, NetError> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).map_err(|e| NetError::Io("receiving", e))?;
        Ok(bytes)
    }
}

impl Timed {
    fn left(&self) -> io::Result<Option<std::time::Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// Linux reports a timeout as a call that would block.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buf).map_err(timed_out)
    }
}

impl Write for Timed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buf).map_err(timed_out)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server, and the connection to it if there is one.
pub(crate) struct Client {
    endpoint: Endpoint,
    connection: Option<Connection>,
}

impl Client {
    pub(crate) fn new(endpoint: Endpoint) -> Client {
        Client { endpoint, connection: None }
    }

    /// Talks to the server: `greet` on a new connection, then `exchange`. A reused connection may
    /// have been closed meanwhile, so a failure on one is retried on a new one: exchanges must be
    /// idempotent.
    pub(crate) fn talk<R>(
        &mut self,
        greet: impl Fn(&mut Connection) -> Result<(), NetError>,
        exchange: impl Fn(&mut Connection) -> Result<R, NetError>,
    ) -> Result<R, NetError> {
        let deadline = Instant::now() + PATIENCE;
        if let Some(mut connection) = self.connection.take() {
            connection.stream.get_mut().deadline = deadline;
            match exchange(&mut connection) {
                Ok(result) => {
                    self.connection = Some(connection);
                    return Ok(result);
                }
                Err(NetError::Io(..)) => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection = Connection::open(&self.endpoint, deadline)
            .map_err(|error| NetError::Io("connecting", error))?;
        greet(&mut connection)?;
        let result = exchange(&mut connection)?;
        self.connection = Some(connection);
        Ok(result)
    }

    /// Closes the connection: the server will not continue with it.
    pub(crate) fn hang_up(&mut self) {
        self.connection = None;
    }
}
