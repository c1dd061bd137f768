//! A device's settings from the environment.

use std::net::IpAddr;

use bowline_device::{BackupSpec, DeviceSpec, Log, Severity};

use crate::device::{self, Device};
use crate::{env, log};

/// How to open a device, or which variable is invalid.
pub(crate) fn of(device: &'static Device) -> Result<DeviceSpec, String> {
    let mut spec = DeviceSpec::new(&*device.name, device.addr);
    spec.udp.notice = log::warn_once;
    spec.udp.detail = log::info;
    spec.via = env::via()?;
    spec.lanes = env::lanes()?;
    spec.link = env::link()?;
    spec.pcap = env::pcap();
    spec.fec = env::fec()?;
    spec.congestion = env::congestion()?;
    spec.backup = backup(device)?;
    spec.log = Log::new(move |severity, message| {
        let message = format!("{}: {message}", device.name);
        match severity {
            Severity::Warning => log::warn(&message),
            Severity::Info => log::info(&message),
        }
    });
    Ok(spec)
}

/// Whether and how a device is to be backed up.
fn backup(device: &'static Device) -> Result<Option<BackupSpec>, String> {
    let Some(mode) = env::failover()? else { return Ok(None) };
    let addr = match env::backup_of(&device.name)? {
        Some(addr) => addr,
        None => next_of(device).ok_or_else(|| {
            format!("failover needs a backup for {0}: give BOWLINE_BACKUP={0}=ADDRESS", device.name)
        })?,
    };
    Ok(Some(BackupSpec { addr, mode, store_url: env::store(), job: env::job() }))
}

/// The address of the next device in the list.
fn next_of(device: &Device) -> Option<IpAddr> {
    let all = device::all();
    let next = (device.index as usize + 1) % all.len();
    all.get(next).map(|d| d.addr).filter(|addr| *addr != device.addr)
}
