//! Which process on an address answers which requests to queue pair 1.
//!
//! Every process gets every management datagram. What a process has to know of the others is kept
//! as locks on bytes of the registry's file, which vanish with their process, however it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{RegistryError, dir};
use crate::sys::{is_byte_locked, try_lock_byte, unlock_byte};
use crate::udp::{Sharing, UdpConfig};

/// The process that holds this lock answers requests that no process has claimed.
const SPEAKER: u64 = 1 << 32;
/// From here on, a byte for the prefix of each process with a queue pair 1.
const PRESENT: u64 = 1 << 33;
/// From here on, a byte for each service ID, of which the low 32 bits count.
const SERVICE: u64 = 1 << 34;

/// File offset, far behind the table, of services that are released only for a moment. A service's
/// low bits select its slot; a later one replaces an earlier one.
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
        // The port created the file, and keeps it.
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

    /// Releases a service.
    pub fn release(&self, service: u64) {
        // It cannot fail for a lock that is held, and closing the file releases it in any case.
        let _ = unlock_byte(&self.file, byte_of(service));
    }

    /// Releases a service that this process is about to claim again: until then, but at most for
    /// `time`, the others do not answer for it. The first to claim it gets it.
    pub fn reserve(&self, service: u64, time: Duration) {
        let until = since_epoch().saturating_add(time.min(MAX_RESERVED));
        self.write_reserved(service, until.as_nanos() as u64);
        self.release(service);
    }

    pub(super) fn write_reserved(&self, service: u64, until: u64) {
        let mut slot = [0; RESERVED_LEN];
        slot[..8].copy_from_slice(&service.to_le_bytes());
        slot[8..].copy_from_slice(&until.to_le_bytes());
        // Without the entry, others may refuse a request, as they do for unclaimed services.
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

    /// Whether another process has claimed a service, or is about to. In doubt it has: answering
    /// for it would be worse.
    pub fn is_of_another(&self, service: u64) -> bool {
        self.is_claimed_by_another(service) || self.is_reserved(service)
    }

    /// Whether another process has claimed a service, whoever has reserved it.
    pub fn is_claimed_by_another(&self, service: u64) -> bool {
        is_byte_locked(&self.file, byte_of(service)).unwrap_or(true)
    }

    /// Whether another process, with this prefix, has a queue pair 1.
    pub fn is_present(&self, prefix: u8) -> bool {
        is_byte_locked(&self.file, PRESENT + u64::from(prefix)).unwrap_or(true)
    }

    /// Whether this process answers requests that no process has claimed. At any time, one
    /// process on the address does.
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

/// The time by a clock that all processes share.
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
