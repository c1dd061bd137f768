//! The client side of the control socket.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{MAX_ANSWER, SWITCH_PREFIX, name_prefix};
use crate::sys::{connect_abstract, effective_uid, peer_uid};

/// A device of a live process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The process.
    pub pid: u32,
    /// The device's name in it.
    pub device: String,
    pub(super) name: String,
}

/// How long a process may take to accept a connection during discovery.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);

/// All devices of live processes of this user on this host (in this network namespace).
pub fn live() -> io::Result<Vec<Peer>> {
    live_where(|name| !name.starts_with(SWITCH_PREFIX))
}

/// The same for switches (`bowline switch`).
pub fn live_switches() -> io::Result<Vec<Peer>> {
    live_where(|name| name.starts_with(SWITCH_PREFIX))
}

fn live_where(is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Peer>> {
    let table = std::fs::read_to_string("/proc/net/unix")?;
    let mut peers: Vec<Peer> =
        table.lines().filter_map(parse).filter(|peer| is_wanted(&peer.device)).collect();
    peers.sort();
    // An accepted connection carries its listener's name too.
    peers.dedup();
    // A busy process stays in the list: a later request to it times out. Skip processes of other
    // users and those that have ended since.
    peers.retain(|peer| match connect(peer, LOOK_PATIENCE) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    });
    Ok(peers)
}

/// A line of `/proc/net/unix`: the name is the last column, with `@` for the leading zero byte.
fn parse(line: &str) -> Option<Peer> {
    let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
    let mut parts = name.strip_prefix(&name_prefix(effective_uid()))?.splitn(3, '/');
    let pid = parts.next()?.parse().ok()?;
    parts.next()?;
    Some(Peer { pid, device: parts.next()?.to_owned(), name: name.to_owned() })
}

/// Connects to a process if it belongs to this user. Anybody can bind any abstract name; the peer
/// credentials tell who did.
fn connect(peer: &Peer, patience: Duration) -> io::Result<UnixStream> {
    let stream = connect_abstract(&peer.name, patience)?;
    let (owner, me) = (peer_uid(&stream)?, effective_uid());
    if owner != me {
        let what = format!("the socket {:?} is user {owner}'s, not user {me}'s", peer.name);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(stream)
}

/// Asks a device's process for something; gives up after `patience`.
pub fn ask(peer: &Peer, request: &str, patience: Duration) -> io::Result<String> {
    let mut stream = connect(peer, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(request.as_bytes())?;
    stream.write_all(b"\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}
