//! Memory of one process that other processes of its user on this host can map.
//!
//! Its owner tells them where it is, by any channel ([`Ticket`]). They open it in `/proc`, so that
//! no thread of the owner has to answer. The kernel decides who may do that; the secret shows that
//! it is the memory that was meant, and not another file that has this number by now.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use bowline_nic::Buffer;

use crate::sys::SharedArea;

/// Length of what comes before the memory: the secret, in a page of its own.
const HEAD_BYTES: usize = Buffer::ALIGN;
const SECRET_BYTES: usize = 16;
/// What `/proc` says about a memory file of ours.
const LINK: &[u8] = b"/memfd:bowline-";

/// Where a process has memory to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pid: u32,
    file: u32,
    network: u64,
    secret: [u8; SECRET_BYTES],
}

impl Ticket {
    /// Length in bytes, encoded.
    pub const LEN: usize = 32;

    /// Encodes it.
    pub fn to_bytes(&self) -> [u8; Ticket::LEN] {
        let mut out = [0; Ticket::LEN];
        out[..4].copy_from_slice(&self.pid.to_be_bytes());
        out[4..8].copy_from_slice(&self.file.to_be_bytes());
        out[8..16].copy_from_slice(&self.network.to_be_bytes());
        out[16..].copy_from_slice(&self.secret);
        out
    }

    /// Decodes it; `None` if no process has such a number.
    pub fn from_bytes(bytes: &[u8; Ticket::LEN]) -> Option<Ticket> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let (file, rest) = rest.split_first_chunk()?;
        let (network, rest) = rest.split_first_chunk()?;
        let ticket = Ticket {
            pid: u32::from_be_bytes(*pid),
            file: u32::from_be_bytes(*file),
            network: u64::from_be_bytes(*network),
            secret: *rest.first_chunk()?,
        };
        (ticket.pid != 0).then_some(ticket)
    }
}

/// Memory that processes share: all zero at first. Nobody can resize it, and it is gone with the
/// last process that maps it.
pub struct SharedMemory {
    area: Arc<SharedArea>,
    len: usize,
    ticket: Ticket,
}

impl SharedMemory {
    /// Creates memory to be shared within the network namespace of this thread: where processes
    /// are separated by an emulated network, they are not to find a way around it. The secret is
    /// random.
    pub fn create(len: usize, secret: [u8; SECRET_BYTES]) -> io::Result<SharedMemory> {
        let area = SharedArea::create(file_len(len)?)?;
        area.write(0, &secret);
        let ticket = Ticket {
            pid: std::process::id(),
            file: area.file().as_raw_fd() as u32,
            network: network_namespace()?,
            secret,
        };
        Ok(SharedMemory { area: Arc::new(area), len, ticket })
    }

    /// Maps memory that another process has created with this length.
    ///
    /// # Errors
    /// If that process is not of this user, this host and this network namespace, or the memory is
    /// not there.
    pub fn open(ticket: &Ticket, len: usize) -> io::Result<SharedMemory> {
        let refused = |why: &str| io::Error::new(io::ErrorKind::PermissionDenied, why);
        if network_namespace()? != ticket.network {
            return Err(refused("it belongs to another network namespace or host"));
        }
        let file = open_memory_file(ticket.pid, ticket.file)?;
        let mut area = SharedArea::open(file, file_len(len)?)?;
        area.close_file();
        if area.read::<SECRET_BYTES>(0) != ticket.secret {
            return Err(refused("it is not the memory that was offered"));
        }
        Ok(SharedMemory { area: Arc::new(area), len, ticket: *ticket })
    }

    /// What another process needs to open it, as long as this value exists.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// A part of the memory, which stays mapped as long as the buffer exists; `None` if it is not
    /// all there.
    pub fn part(&self, offset: usize, len: usize) -> Option<Arc<Buffer>> {
        let is_inside = offset <= self.len && len <= self.len - offset;
        is_inside.then(|| self.area.buffer(HEAD_BYTES + offset, len)).flatten()
    }
}

/// The network namespace of this thread.
fn network_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// Opens a memory file of ours in another process. No other file is opened, as far as that can be
/// told beforehand; whatever it is, opening it does not block.
fn open_memory_file(pid: u32, file: u32) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{file}");
    if !fs::read_link(&path)?.as_os_str().as_bytes().starts_with(LINK) {
        let why = "it is not memory to be shared";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    Ok(OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?.into())
}

fn file_len(len: usize) -> io::Result<usize> {
    len.checked_add(HEAD_BYTES).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedMemory({} bytes of process {})", self.len, self.ticket.pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_maps_are_one_memory() {
        let ours = SharedMemory::create(3 * Buffer::ALIGN, [1; 16]).unwrap();
        let ticket = Ticket::from_bytes(&ours.ticket().to_bytes()).unwrap();
        let theirs = SharedMemory::open(&ticket, 3 * Buffer::ALIGN).unwrap();
        let (here, there) = (ours.part(Buffer::ALIGN, 99).unwrap(), theirs.part(0, 5000).unwrap());
        drop((ours, theirs));
        there.write_at(Buffer::ALIGN, b"both");
        assert_eq!(here.to_vec(0, 4), b"both", "a part keeps the memory mapped");
    }

    #[test]
    fn parts_are_inside() {
        let memory = SharedMemory::create(8192, [1; 16]).unwrap();
        assert!(memory.part(8192, 0).is_some());
        for (offset, len) in [(8192, 1), (0, 8193), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(memory.part(offset, len).is_none(), "{len} bytes at {offset}");
        }
    }

    #[test]
    fn only_what_was_offered_is_mapped() {
        let memory = SharedMemory::create(8192, [1; 16]).unwrap();
        let right = memory.ticket();
        let refused = |ticket: Ticket, len| SharedMemory::open(&ticket, len).is_err();
        assert!(refused(right, 4096), "another length");
        assert!(refused(Ticket { secret: [7; 16], ..right }, 8192), "another secret");
        assert!(refused(Ticket { network: right.network + 1, ..right }, 8192));
        assert!(refused(Ticket { pid: u32::MAX, ..right }, 8192), "no such process");
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let plain = Ticket { file: file.as_raw_fd() as u32, ..right };
        assert!(refused(plain, 8192), "not a memory file");
        drop(memory);
        assert!(refused(right, 8192), "closed");
        assert_eq!(Ticket::from_bytes(&[0; Ticket::LEN]), None);
    }
}
