//! The file that lists the processes on one address and port.
//!
//! It has a fixed size and is only written under the lock on its first byte. The lock on byte `p`
//! belongs to the process with prefix `p` for as long as that process lives: an entry without its
//! lock is dead.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::RegistryError;
use crate::sys::{is_byte_locked, try_lock_byte, unlock_byte};

const MAGIC: [u8; 8] = *b"BOWLREG1";
const HEADER_LEN: usize = 32;
const SLOT_LEN: usize = 8;
const FILE_LEN: usize = HEADER_LEN + SLOT_LEN * SLOTS;
const SLOTS: usize = 256;

/// The byte whose lock guards the table itself. No process has prefix 0.
const TABLE_LOCK: u64 = 0;
/// Prefixes that are assigned: 0 is reserved for management QPs, 0xfe for groups behind switches
/// and 0xff for multicast and probes.
pub(super) const PREFIXES: std::ops::RangeInclusive<u8> = 1..=0xfd;

/// How long to wait for the table's lock. Its holder needs microseconds, unless it is stopped.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// A process on the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its process ID, for humans.
    pub(super) pid: u32,
    /// Its socket's index in the group.
    pub(super) index: u8,
}

/// The contents of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// The current round of probes.
    pub(super) nonce: u64,
    /// The last assigned prefix: the search for the next starts there, so that packets for a dead
    /// process do not soon reach another under its prefix.
    pub(super) last_prefix: u8,
    members: [Option<Member>; SLOTS],
}

impl Table {
    pub(super) fn empty() -> Table {
        Table { nonce: 0, last_prefix: 0, members: [None; SLOTS] }
    }

    pub(super) fn get(&self, prefix: u8) -> Option<Member> {
        self.members[usize::from(prefix)]
    }

    pub(super) fn set(&mut self, prefix: u8, member: Option<Member>) {
        self.members[usize::from(prefix)] = member;
    }

    /// All members with their prefixes.
    pub(super) fn members(&self) -> impl Iterator<Item = (u8, Member)> {
        PREFIXES.filter_map(|p| self.get(p).map(|m| (p, m)))
    }

    /// An unused prefix.
    pub(super) fn free_prefix(&self) -> Option<u8> {
        let (before, after): (Vec<u8>, Vec<u8>) = PREFIXES.partition(|p| *p <= self.last_prefix);
        after.into_iter().chain(before).find(|p| self.get(*p).is_none())
    }

    fn parse(bytes: &[u8; FILE_LEN]) -> Option<Table> {
        let (header, slots) = bytes.split_at(HEADER_LEN);
        if header[..8] != MAGIC {
            return None;
        }
        let mut table = Table::empty();
        table.nonce = u64::from_le_bytes(*header[8..].first_chunk()?);
        table.last_prefix = header[16];
        for (member, slot) in table.members.iter_mut().zip(slots.chunks_exact(SLOT_LEN)) {
            let pid = u32::from_le_bytes(*slot.first_chunk()?);
            *member = (slot[4] != 0).then_some(Member { pid, index: slot[5] });
        }
        Some(table)
    }

    fn emit(&self) -> [u8; FILE_LEN] {
        let mut out = [0; FILE_LEN];
        let (header, slots) = out.split_at_mut(HEADER_LEN);
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        header[16] = self.last_prefix;
        for (member, slot) in self.members.iter().zip(slots.chunks_exact_mut(SLOT_LEN)) {
            if let Some(member) = member {
                slot[..4].copy_from_slice(&member.pid.to_le_bytes());
                slot[4] = 1;
                slot[5] = member.index;
            }
        }
        out
    }
}

/// The open file.
pub(super) struct TableFile {
    file: File,
    path: PathBuf,
}

impl TableFile {
    /// Opens or creates the file and takes the table's lock.
    pub(super) fn open_locked(path: &Path) -> Result<TableFile, RegistryError> {
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .map_err(RegistryError::file(path))?;
            let table = TableFile { file, path: path.to_owned() };
            table.lock_until(deadline)?;
            if table.is_current() {
                return Ok(table);
            }
            // The last process left and removed the file while we waited for the lock.
        }
    }

    /// Whether the path still leads to this file.
    fn is_current(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(open), Ok(named)) => open.ino() == named.ino() && open.dev() == named.dev(),
            _ => false,
        }
    }

    fn lock_until(&self, deadline: Instant) -> Result<(), RegistryError> {
        while !self.try_lock()? {
            if Instant::now() > deadline {
                return Err(RegistryError::Locked { path: self.path.clone() });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes the table's lock, waiting up to `patience`.
    pub(super) fn lock_within(&self, patience: Duration) -> Result<(), RegistryError> {
        self.lock_until(Instant::now() + patience)
    }

    /// Takes the table's lock if it is free.
    pub(super) fn try_lock(&self) -> Result<bool, RegistryError> {
        try_lock_byte(&self.file, TABLE_LOCK).map_err(RegistryError::file(&self.path))
    }

    /// Releases the table's lock.
    pub(super) fn unlock(&self) {
        // It cannot fail for a lock that is held, and closing the file releases it in any case.
        let _ = unlock_byte(&self.file, TABLE_LOCK);
    }

    /// Takes the lock that proves that the process with this prefix lives.
    pub(super) fn claim(&self, prefix: u8) -> Result<bool, RegistryError> {
        try_lock_byte(&self.file, prefix.into()).map_err(RegistryError::file(&self.path))
    }

    /// Whether another process with this prefix lives.
    pub(super) fn is_alive(&self, prefix: u8) -> bool {
        // In doubt it lives: forgetting a live process is worse than keeping a dead one.
        is_byte_locked(&self.file, prefix.into()).unwrap_or(true)
    }

    /// Reads the table. A file that is not a table is reset, unless a process uses it.
    pub(super) fn load(&self) -> Result<Table, RegistryError> {
        let mut bytes = [0; FILE_LEN];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(RegistryError::file(&self.path)(error)),
        }
        match Table::parse(&bytes) {
            Some(table) => Ok(table),
            None if PREFIXES.into_iter().any(|p| self.is_alive(p)) => {
                Err(RegistryError::Damaged { path: self.path.clone() })
            }
            None => Ok(Table::empty()),
        }
    }

    /// Writes the table. Call under its lock.
    pub(super) fn store(&self, table: &Table) -> Result<(), RegistryError> {
        self.file.write_all_at(&table.emit(), 0).map_err(RegistryError::file(&self.path))
    }

    /// Removes the file. Call under the table's lock.
    pub(super) fn remove(&self) {
        if self.is_current() {
            // If removal fails, the next process reuses the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
