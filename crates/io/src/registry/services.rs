//! Which process of an address answers for what at queue pair 1.
//!
//! Every process gets every management datagram. What it has to know of the others is kept as locks
//! on bytes of the registry's file: they vanish with their process, however that ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{RegistryError, dir};
use crate::sys::{is_byte_locked, try_lock_byte, unlock_byte};
use crate::udp::{Sharing, UdpConfig};

/// Who has this answers for what is nobody's.
const SPEAKER: u64 = 1 << 32;
/// Behind it, a byte for the prefix of each process with a queue pair 1.
const PRESENT: u64 = 1 << 33;
/// Behind it, a byte for each service ID, of which the low 32 bits count.
const SERVICE: u64 = 1 << 34;

/// Where the file has services that are given back for a moment only, far behind its table. Each has
/// one of the slots, by the end of its number; a later one takes the place of an earlier one.
const RESERVED: u64 = 1 << 16;
const RESERVED_SLOTS: u64 = 64;
const RESERVED_LEN: usize = 16;
/// The longest such moment. A time beyond it is none: a clock was set, or the file is damaged.
const MAX_RESERVED: Duration = Duration::from_secs(2);

/// Claims of this process among those on its address.
#[derive(Debug)]
pub struct Services {
    file: File,
}

impl Services {
    /// Joins the others on the address of an open port; `None` if the address is not shared.
    pub fn join(config: &UdpConfig, prefix: u8) -> Result<Option<Services>, RegistryError> {
        let Sharing::SameUser { registry_dir } = &config.sharing else { return Ok(None) };
        let dir = dir::open(registry_dir.as_deref())?;
        let path = dir.join(dir::stem(config.addr, config.udp_port));
        // The port has made it, and keeps it.
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Services::enter(file, prefix, &path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RegistryError::file(&path)(error)),
        }
    }

    fn enter(file: File, prefix: u8, path: &Path) -> Result<Services, RegistryError> {
        match try_lock_byte(&file, PRESENT + u64::from(prefix)) {
            Ok(true) => Ok(Services { file }),
            Ok(false) => Err(RegistryError::Damaged { path: path.to_owned() }),
            Err(error) => Err(RegistryError::file(path)(error)),
        }
    }

    /// Claims a service; `false` if another process has it.
    pub fn claim(&self, service: u64) -> io::Result<bool> {
        try_lock_byte(&self.file, byte_of(service))
    }

    /// Gives a service back.
    pub fn release(&self, service: u64) {
        // It cannot fail for a lock that is held, and closing the file releases it in any case.
        let _ = unlock_byte(&self.file, byte_of(service));
    }

    /// Gives a service back that this process is about to claim again: until then, though at most
    /// for `time`, the others do not answer for it. Whoever claims it first has it.
    pub fn reserve(&self, service: u64, time: Duration) {
        let until = since_epoch().saturating_add(time.min(MAX_RESERVED));
        self.write_reserved(service, until.as_nanos() as u64);
        self.release(service);
    }

    pub(super) fn write_reserved(&self, service: u64, until: u64) {
        let mut slot = [0; RESERVED_LEN];
        slot[..8].copy_from_slice(&service.to_le_bytes());
        slot[8..].copy_from_slice(&until.to_le_bytes());
        // Without it others may refuse a request, as they do for services that nobody has.
        let _ = self.file.write_all_at(&slot, slot_of(service));
    }

    fn is_reserved(&self, service: u64) -> bool {
        let mut slot = [0; RESERVED_LEN];
        if self.file.read_exact_at(&mut slot, slot_of(service)).is_err() {
            return false;
        }
        let (of, until) = slot.split_at(8);
        let until = until.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let left = Duration::from_nanos(until).checked_sub(since_epoch());
        of == service.to_le_bytes() && left.is_some_and(|left| left <= MAX_RESERVED)
    }

    /// Whether another process has claimed a service, or is about to. In doubt it has: to answer for it would be
    /// worse.
    pub fn is_of_another(&self, service: u64) -> bool {
        is_byte_locked(&self.file, byte_of(service)).unwrap_or(true) || self.is_reserved(service)
    }

    /// Whether another process, with this prefix, has a queue pair 1.
    pub fn is_present(&self, prefix: u8) -> bool {
        is_byte_locked(&self.file, PRESENT + u64::from(prefix)).unwrap_or(true)
    }

    /// Whether this process answers for what is nobody's. One of those on the address does, at any
    /// time.
    pub fn speaks(&self) -> bool {
        try_lock_byte(&self.file, SPEAKER).unwrap_or(false)
    }
}

fn byte_of(service: u64) -> u64 {
    SERVICE + (service & 0xffff_ffff)
}

fn slot_of(service: u64) -> u64 {
    RESERVED + service % RESERVED_SLOTS * RESERVED_LEN as u64
}

/// The time that all processes agree on.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
