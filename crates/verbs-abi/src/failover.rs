//! The backup of a device: what the environment asks for, and how it comes about.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_io::Lane;
use bowline_rails::{Log, Mode, Options, Rails, Severity};

use crate::context::{Ground, Refusal};
use crate::device::{self, Device};
use crate::{env, log, sys};

/// A device's backup, as the environment wants it.
pub(crate) struct Wish {
    device: &'static str,
    mode: Mode,
    backup: IpAddr,
    store_url: String,
    job: String,
}

/// The name of a device's backup, for those who look from outside: the program does not see it.
pub(crate) fn backup_name(device: &Device) -> String {
    format!("{}-backup", device.name)
}

/// Whether and how a device is to be backed up.
pub(crate) fn wish(device: &'static Device) -> Result<Option<Wish>, String> {
    let Some(mode) = env::failover()? else { return Ok(None) };
    let backup = match env::backup_of(&device.name)? {
        Some(addr) => addr,
        None => next_of(device).ok_or_else(|| {
            format!("failover needs a backup for {0}: give BOWLINE_BACKUP={0}=ADDRESS", device.name)
        })?,
    };
    if backup == device.addr {
        return Err(format!("{} cannot be its own backup", device.name));
    }
    let store_url = env::store().unwrap_or_else(bowline_store::default_url);
    Ok(Some(Wish { device: &device.name, mode, backup, store_url, job: env::job() }))
}

/// The address of the next device in the list.
fn next_of(device: &Device) -> Option<IpAddr> {
    let all = device::all();
    let next = (device.index as usize + 1) % all.len();
    all.get(next).map(|d| d.addr).filter(|addr| *addr != device.addr)
}

impl Wish {
    /// Opens the backup's port. Connections must fit both NICs, so both get the smaller MTU.
    pub(crate) fn open(&self, default: &mut Ground) -> Result<Ground, Refusal> {
        let mut backup = Ground::open(self.backup).map_err(|(why, errno)| {
            (format!("its backup at {} cannot be opened: {why}", self.backup), errno)
        })?;
        let mtu = default.limits.max_mtu.min(backup.limits.max_mtu);
        default.limits.max_mtu = mtu;
        backup.limits.max_mtu = mtu;
        Ok(backup)
    }

    /// Makes the two lanes one.
    pub(crate) fn start(&self, lanes: [Arc<Lane>; 2]) -> Result<Rails, Refusal> {
        let seed = sys::random().map_err(|e| ("no randomness".into(), e))?;
        let device = self.device;
        let log = Log::new(move |severity, message| {
            let message = format!("{device}: {message}");
            match severity {
                Severity::Warning => log::warn(&message),
                Severity::Info => log::info(&message),
            }
        });
        let (store_url, job) = (self.store_url.clone(), self.job.clone());
        let rails = Rails::start(lanes, Options { mode: self.mode, store_url, job, seed, log });
        log::info(&format!("{device}: failover ({}) to {}", self.mode, self.backup));
        rails.map_err(|e| (e.to_string(), e.into()))
    }
}
