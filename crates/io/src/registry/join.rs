//! Joining the processes on an address.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bowline_nic::Time;

use super::handover::Handover;
use super::room::Rooms;
use super::table::{Member, Table, TableFile};
use super::{
    Membership, ROUND_MIN_NS, RegistryError, UPKEEP_NS, attach, dir, fresh_nonce, handover, probe,
    send_probes,
};
use crate::port::PortError;
use crate::sys::{PollFd, get_int, poll};

/// How long the kernel may take to close a dead process's socket after releasing its locks.
const STRANGERS_PATIENCE: Duration = Duration::from_millis(300);
/// How long probes may take within this host.
const PROBE_PATIENCE: Duration = Duration::from_millis(50);
/// How many sockets beyond those in the table are probed.
const SPARE_PROBES: usize = 8;

/// Where to join.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) addr: IpAddr,
    pub(crate) udp_port: u16,
    pub(crate) base_dir: Option<PathBuf>,
    /// Called with a message when something does not work as it should.
    pub(crate) notice: fn(&str),
}

/// Joins the processes at `place` with the socket that `bind` opens.
pub(crate) fn join(
    place: &Place,
    bind: impl FnOnce() -> Result<UdpSocket, PortError>,
) -> Result<(UdpSocket, Membership), PortError> {
    let dir = dir::open(place.base_dir.as_deref())?;
    let stem = dir::stem(place.addr, place.udp_port);
    let path = dir.join(&stem);
    let file = TableFile::open_locked(&path)?;
    let mut table = file.load()?;
    let dead: Vec<u8> =
        table.members().map(|(prefix, _)| prefix).filter(|p| !file.is_alive(*p)).collect();
    for prefix in dead {
        table.set(prefix, None);
        handover::remove_socket(&dir, &stem, prefix);
    }
    let prefix = table.free_prefix().ok_or(RegistryError::Full)?;
    if !file.claim(prefix)? {
        // No process in the table has it, so the lock's holder follows other rules.
        return Err(RegistryError::Damaged { path }.into());
    }
    let handover = Handover::open(&dir, &stem, prefix)?;
    let socket = bind()?;
    let buffer = recv_buffer(&socket);
    let rooms = open_rooms(place, &dir, prefix, buffer).map_err(RegistryError::file(&dir))?;
    let group = SocketAddr::new(place.addr, place.udp_port);
    let index =
        find_place(&file, &mut table, &socket, group)?.ok_or(RegistryError::Strangers { path })?;
    table.last_prefix = prefix;
    table.set(prefix, Some(Member { pid: std::process::id(), index }));
    file.store(&table)?;
    attach(&socket, &table)?;
    file.unlock();

    let mut membership = Membership {
        file,
        handover,
        rooms,
        group,
        prefix,
        index,
        round: table.nonce,
        smallest: Some(index),
        moved: false,
        astray: false,
        next_round: Time::ZERO,
        round_interval_ns: ROUND_MIN_NS,
        listed: Some(Time::ZERO),
        live: [false; 256],
        next_upkeep: Time::from_nanos(UPKEEP_NS),
        next_handover: Time::ZERO,
        next_try: Time::ZERO,
        waiting: VecDeque::new(),
    };
    membership.list(&table);
    Ok((socket, membership))
}

/// Opens the shared counts of this process, or continues without where there is no storage for
/// them.
fn open_rooms(place: &Place, dir: &Path, prefix: u8, buffer: u64) -> io::Result<Rooms> {
    let at = (place.addr, place.udp_port);
    Rooms::open(dir, at, prefix, buffer).or_else(|error| {
        (place.notice)(&format!(
            "{}: {error}; local senders will not wait for room, and what does not fit a socket is lost",
            dir.display()
        ));
        Rooms::without_own(dir, place.udp_port, prefix)
    })
}

/// The size of a socket's receive buffer, as the kernel counts it.
fn recv_buffer(socket: &UdpSocket) -> u64 {
    let bytes = get_int(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF);
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0)
}

/// Finds the socket's index; `None` if there are sockets in the group that the table does not know.
fn find_place(
    file: &TableFile,
    table: &mut Table,
    socket: &UdpSocket,
    group: SocketAddr,
) -> Result<Option<u8>, RegistryError> {
    let others = table.members().count();
    let start = Instant::now();
    let mut spare = 0;
    loop {
        table.nonce = fresh_nonce();
        file.store(table)?;
        attach(socket, table)?;
        send_probes(socket, group, table.nonce, others + 1 + spare);
        let found = smallest_probe(socket, table.nonce, others as u8);
        match found {
            Some(index) if usize::from(index) <= others => return Ok(Some(index)),
            _ if start.elapsed() < STRANGERS_PATIENCE => {
                spare = SPARE_PROBES;
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => return Ok(None),
        }
    }
}

/// Receives probes until the expected one comes or no more do; the smallest index among them.
fn smallest_probe(socket: &UdpSocket, nonce: u64, expected: u8) -> Option<u8> {
    let deadline = Instant::now() + PROBE_PATIENCE;
    let mut smallest = None;
    let mut buffer = [0; 64 << 10];
    while smallest != Some(expected) && Instant::now() < deadline {
        match socket.recv(&mut buffer) {
            Ok(len) => {
                // Offload may have merged probes. Nothing else can be for this socket yet.
                for frame in buffer[..len].chunks(probe::PROBE_LEN) {
                    if let Some((index, of)) = probe::parse(frame)
                        && of == nonce
                    {
                        smallest = Some(smallest.map_or(index, |s: u8| s.min(index)));
                    }
                }
            }
            Err(_) => {
                let fd = PollFd::readable(socket.as_raw_fd());
                let more = poll(&mut [fd], Some(Duration::from_millis(5)));
                if smallest.is_some() && !matches!(more, Ok(true)) {
                    break;
                }
            }
        }
    }
    smallest
}
