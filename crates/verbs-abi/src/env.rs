//! Settings from the environment. The programs are not ours, so this is the only way to pass any.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bowline_device::{LaneCount, Mode};
use bowline_fec::FecMode;
use bowline_io::{LinkProfile, Via};
use bowline_link::units::parse_duration;
use bowline_nic::RateControl;

use crate::log;

/// A device to offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpec {
    pub(crate) name: String,
    pub(crate) addr: IpAddr,
}

/// The devices of `BOWLINE_DEVICES`, or one for every address of this machine.
pub(crate) fn devices() -> Vec<DeviceSpec> {
    match std::env::var("BOWLINE_DEVICES") {
        Ok(list) => parse_devices(&list).unwrap_or_else(|why| {
            log::error(&format!("BOWLINE_DEVICES: {why}; no device is offered"));
            Vec::new()
        }),
        Err(_) => bowline_io::local_addresses()
            .unwrap_or_else(|why| {
                log::error(&format!("cannot list the addresses of this machine: {why}"));
                Vec::new()
            })
            .into_iter()
            .enumerate()
            .map(|(i, local)| DeviceSpec { name: format!("bl{i}"), addr: local.addr })
            .collect(),
    }
}

/// Reads `NAME=ADDRESS,…`.
fn parse_devices(list: &str) -> Result<Vec<DeviceSpec>, String> {
    let mut devices: Vec<DeviceSpec> = Vec::new();
    for item in list.split([',', ' ']).filter(|item| !item.is_empty()) {
        let (name, addr) =
            item.split_once('=').ok_or_else(|| format!("{item:?} is not NAME=ADDRESS"))?;
        let addr = addr.parse().map_err(|_| format!("{addr:?} is no IP address"))?;
        // Within the header's length limit, and usable as a file name.
        let fits = (1..64).contains(&name.len()) && !name.contains(['/', '\0']);
        if !fits || devices.iter().any(|d| d.name == name) {
            return Err(format!("{name:?} is no name for a device, or names two"));
        }
        devices.push(DeviceSpec { name: name.to_owned(), addr });
    }
    Ok(devices)
}

/// The impairment of `BOWLINE_LINK`.
pub(crate) fn link() -> Result<Option<LinkProfile>, String> {
    match std::env::var("BOWLINE_LINK") {
        Ok(text) if !text.is_empty() => {
            text.parse().map(Some).map_err(|error| format!("BOWLINE_LINK: {error}"))
        }
        _ => Ok(None),
    }
}

/// The transport, by `BOWLINE_VIA`: `udp`, `shm`, `auto` or `xdp`, perhaps with options. A program
/// that says nothing reaches the processes of its user on its host through memory.
pub(crate) fn via() -> Result<Via, String> {
    parse_via(&std::env::var("BOWLINE_VIA").unwrap_or_default())
}

fn parse_via(text: &str) -> Result<Via, String> {
    match text {
        "" => Ok(Via::Auto),
        text => text.parse().map_err(|error| format!("BOWLINE_VIA: {error}")),
    }
}

/// How many lanes a device has, by `BOWLINE_LANES`: a number or `auto`.
pub(crate) fn lanes() -> Result<LaneCount, String> {
    match std::env::var("BOWLINE_LANES") {
        Ok(text) if !text.is_empty() => {
            text.parse().map_err(|error| format!("BOWLINE_LANES: {error}"))
        }
        _ => Ok(LaneCount::default()),
    }
}

/// The forward error correction of `BOWLINE_FEC`: `r,c`, `auto` or `off`.
pub(crate) fn fec() -> Result<Option<FecMode>, String> {
    match std::env::var("BOWLINE_FEC") {
        Ok(text) if !text.is_empty() => {
            text.parse().map(Some).map_err(|error| format!("BOWLINE_FEC: {error}"))
        }
        _ => Ok(None),
    }
}

/// The congestion control of `BOWLINE_CC`: `none`, `fixed:RATE`, `dcqcn`, `bbr`, ….
pub(crate) fn congestion() -> Result<Option<RateControl>, String> {
    match std::env::var("BOWLINE_CC") {
        Ok(text) if !text.is_empty() => {
            text.parse().map(Some).map_err(|error| format!("BOWLINE_CC: {error}"))
        }
        _ => Ok(None),
    }
}

/// The default interval at which idle connections check on their peers.
const KEEPALIVE: Duration = Duration::from_secs(4);

/// How often connections of the connection manager check on silent peers, by `BOWLINE_KEEPALIVE`: a
/// time, or `off`.
pub(crate) fn keepalive() -> Result<Option<Duration>, String> {
    match std::env::var("BOWLINE_KEEPALIVE").as_deref() {
        Ok("") | Err(_) => Ok(Some(KEEPALIVE)),
        Ok("off") => Ok(None),
        Ok(text) => match parse_duration(text) {
            Ok(interval) if interval.is_zero() => {
                Err("BOWLINE_KEEPALIVE: the interval cannot be 0: use a time such as 4s, or off"
                    .into())
            }
            interval => interval.map(Some).map_err(|why| format!("BOWLINE_KEEPALIVE: {why}")),
        },
    }
}

/// The failover of `BOWLINE_FAILOVER`: `exact`, `shift` or `off`.
pub(crate) fn failover() -> Result<Option<Mode>, String> {
    match std::env::var("BOWLINE_FAILOVER").as_deref() {
        Ok("" | "off") | Err(_) => Ok(None),
        Ok(text) => text.parse().map(Some).map_err(|error| format!("BOWLINE_FAILOVER: {error}")),
    }
}

/// The address that `BOWLINE_BACKUP` names for a device.
pub(crate) fn backup_of(device: &str) -> Result<Option<IpAddr>, String> {
    let Ok(list) = std::env::var("BOWLINE_BACKUP") else { return Ok(None) };
    let backups = parse_devices(&list).map_err(|why| format!("BOWLINE_BACKUP: {why}"))?;
    Ok(backups.into_iter().find(|backup| backup.name == device).map(|backup| backup.addr))
}

/// The store of `BOWLINE_STORE`.
pub(crate) fn store() -> Option<String> {
    std::env::var("BOWLINE_STORE").ok().filter(|url| !url.is_empty())
}

/// The job's name of `BOWLINE_JOB`.
pub(crate) fn job() -> String {
    let named = std::env::var("BOWLINE_JOB").ok().filter(|job| !job.is_empty());
    named.unwrap_or_else(|| "default".to_owned())
}

/// Whether this is the very process that `bowline run` exec'd.
pub(crate) fn is_started_by_run() -> bool {
    std::env::var("BOWLINE_RUN").is_ok_and(|pid| pid == std::process::id().to_string())
}

/// Whether programs see device files; `BOWLINE_FILES=off` hides them.
pub(crate) fn device_files() -> bool {
    std::env::var("BOWLINE_FILES").as_deref() != Ok("off")
}

/// The next capture file of `BOWLINE_PCAP`: every open device gets its own.
pub(crate) fn pcap() -> Option<PathBuf> {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    let mut path = path_of("BOWLINE_PCAP")?;
    let before = OPENED.fetch_add(1, Ordering::Relaxed);
    if before > 0 {
        path.push_str(&format!(".{}", before + 1));
    }
    Some(path.into())
}

/// The file to which `BOWLINE_REPORT` appends the counters at exit.
pub(crate) fn report() -> Option<PathBuf> {
    path_of("BOWLINE_REPORT").map(PathBuf::from)
}

/// A variable that names a file; `%p` in it stands for the process ID.
fn path_of(variable: &str) -> Option<String> {
    let path = std::env::var(variable).ok().filter(|path| !path.is_empty())?;
    Some(path.replace("%p", &std::process::id().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_devices_is_read_in_order() {
        let devices = parse_devices("bl0=127.0.0.1,bl1=fd00::1").unwrap();
        assert_eq!(devices.len(), 2);
        assert_eq!(devices[1].name, "bl1");
        assert_eq!(devices[1].addr, "fd00::1".parse::<IpAddr>().unwrap());
        assert_eq!(parse_devices("").unwrap(), []);
    }

    #[test]
    fn who_says_nothing_shares_memory_where_that_is_possible() {
        assert_eq!(parse_via(""), Ok(Via::Auto));
        assert_eq!(parse_via("udp"), Ok(Via::Udp));
        assert!(parse_via("tcp").is_err_and(|why| why.starts_with("BOWLINE_VIA: ")));
    }

    #[test]
    fn what_cannot_be_a_list_says_why() {
        for bad in ["bl0", "bl0=localhost", "=127.0.0.1", "a=127.0.0.1,a=127.0.0.2", "a/b=::1"] {
            assert!(parse_devices(bad).is_err(), "{bad}");
        }
    }
}
