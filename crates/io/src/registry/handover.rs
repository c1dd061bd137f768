//! Forwards frames to the process that owns them.
//!
//! A frame can reach the wrong process while indices change, or when a NIC merges frames for two
//! processes into one datagram. It is forwarded to its owner through a Unix socket, once: a frame
//! that arrives there for yet another process is dropped.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use bowline_nic::{FrameMeta, IpId};

use super::RegistryError;

const HEADER_LEN: usize = 32;
const MAX_LEN: usize = HEADER_LEN + (64 << 10);
/// Datagrams received in one call.
const MAX_DATAGRAMS: usize = 16;

/// Consecutive frames of equal length, from one sender and for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The envelope of the first.
    pub(crate) meta: FrameMeta,
    /// Length of each but the last, which may be shorter.
    pub(crate) segment_len: usize,
}

/// The outcome of forwarding frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// Delivered to their owner.
    On,
    /// Their owner is slow.
    NoRoom,
    /// Their owner is gone.
    Nobody,
}

/// A process's socket for forwarded frames.
pub(super) struct Handover {
    socket: UnixDatagram,
    dir: PathBuf,
    stem: String,
    own: PathBuf,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Handover {
    /// Opens the socket of `prefix`, replacing a dead process's.
    pub(super) fn open(dir: &Path, stem: &str, prefix: u8) -> Result<Handover, RegistryError> {
        let own = path_of(dir, stem, prefix);
        let _ = std::fs::remove_file(&own);
        let socket = UnixDatagram::bind(&own)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .map_err(RegistryError::file(&own))?;
        Ok(Handover {
            socket,
            dir: dir.to_owned(),
            stem: stem.to_owned(),
            own,
            out: Vec::with_capacity(MAX_LEN),
            into: vec![0; MAX_LEN],
        })
    }

    /// Forwards frames to the owner of `prefix`.
    pub(super) fn send(&mut self, prefix: u8, run: &Run, bytes: &[u8]) -> Handed {
        self.out.clear();
        self.out.extend_from_slice(&emit(run));
        self.out.extend_from_slice(bytes);
        match self.socket.send_to(&self.out, path_of(&self.dir, &self.stem, prefix)) {
            Ok(_) => Handed::On,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Handed::NoRoom,
            Err(_) => Handed::Nobody,
        }
    }

    /// Receives frames that others forwarded.
    pub(super) fn recv(&mut self, dst: IpAddr, mut each: impl FnMut(&Run, &[u8])) {
        for _ in 0..MAX_DATAGRAMS {
            match self.socket.recv(&mut self.into) {
                Ok(len) => {
                    if let Some((header, bytes)) = self.into[..len].split_first_chunk()
                        && let Some(run) = parse(header, dst)
                    {
                        each(&run, bytes);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Removes the socket of a dead process.
    pub(super) fn remove_socket_of(&self, prefix: u8) {
        remove_socket(&self.dir, &self.stem, prefix);
    }
}

impl AsRawFd for Handover {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.own);
    }
}

/// Removes the socket of a process that is gone.
pub(super) fn remove_socket(dir: &Path, stem: &str, prefix: u8) {
    // If removal fails, the next owner of the prefix replaces it.
    let _ = std::fs::remove_file(path_of(dir, stem, prefix));
}

fn path_of(dir: &Path, stem: &str, prefix: u8) -> PathBuf {
    dir.join(format!("{stem}.{prefix:02x}"))
}

fn emit(run: &Run) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    let src = match run.meta.src {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let (guess, id) = match run.meta.ip_id {
        IpId::Known(id) => (0, id),
        IpId::Guess(id) => (1, id),
        // Sockets never produce such frames.
        IpId::Unsummed => (1, 0),
    };
    out[..16].copy_from_slice(&src.octets());
    out[16..18].copy_from_slice(&run.meta.src_port.to_le_bytes());
    out[18] = run.meta.tos;
    out[19] = run.meta.ttl;
    out[20..22].copy_from_slice(&id.to_le_bytes());
    out[22] = guess;
    out[24..28].copy_from_slice(&(run.segment_len as u32).to_le_bytes());
    out
}

fn parse(bytes: &[u8; HEADER_LEN], dst: IpAddr) -> Option<Run> {
    let src = Ipv6Addr::from(*bytes.first_chunk::<16>()?);
    let id = u16::from_le_bytes([bytes[20], bytes[21]]);
    let meta = FrameMeta {
        src: IpAddr::V6(src).to_canonical(),
        dst,
        src_port: u16::from_le_bytes([bytes[16], bytes[17]]),
        tos: bytes[18],
        ttl: bytes[19],
        ip_id: if bytes[22] == 0 { IpId::Known(id) } else { IpId::Guess(id) },
    };
    let segment_len = u32::from_le_bytes(*bytes[24..].first_chunk()?) as usize;
    (segment_len > 0).then_some(Run { meta, segment_len })
}
