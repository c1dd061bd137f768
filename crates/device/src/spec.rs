//! The specification of a device.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use bowline_failover::Mode;
use bowline_failover::mirror::MAX_LANES;
use bowline_fec::FecMode;
use bowline_ibverbs::VerbsName;
use bowline_io::{LinkProfile, Sharing, UdpConfig, Via};
use bowline_nic::{Mtu, RateControl};

use crate::Log;

/// Maximum number of lanes for [`LaneCount::Auto`]. The 253 QPN prefixes of an address are shared
/// by all its processes, and a lane without its own core gains nothing.
const MAX_AUTO_LANES: usize = 16;

/// Everything that defines a device. [`DeviceSpec::open`] opens it.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// The device's name, for threads, logs and `bowline devinfo`.
    pub name: String,
    /// The verbs device to use, instead of Bowline's own engines.
    pub verbs: Option<VerbsName>,
    /// The device's address and port, and who shares them.
    pub udp: UdpConfig,
    /// The packet transport.
    pub via: Via,
    /// The number of lanes.
    pub lanes: LaneCount,
    /// The impairment of the packets that it sends.
    pub link: Option<LinkProfile>,
    /// The capture file. The backup's packets go to another file next to it.
    pub pcap: Option<PathBuf>,
    /// Forward error correction of connections.
    pub fec: Option<FecMode>,
    /// The congestion control of queue pairs that do not set their own.
    pub congestion: Option<RateControl>,
    /// Where reliable connections continue if the device's NIC fails.
    pub backup: Option<BackupSpec>,
    /// Resource limits.
    pub limits: Limits,
    /// The receiver of log messages.
    pub log: Log,
}

impl DeviceSpec {
    /// A device with one lane at an address that this user's programs share.
    pub fn new(name: impl Into<String>, addr: IpAddr) -> DeviceSpec {
        let sharing = Sharing::SameUser { registry_dir: None };
        DeviceSpec {
            name: name.into(),
            verbs: None,
            udp: UdpConfig { sharing, ..UdpConfig::new(addr) },
            via: Via::Udp,
            lanes: LaneCount::default(),
            link: None,
            pcap: None,
            fec: None,
            congestion: None,
            backup: None,
            limits: Limits::default(),
            log: Log::silent(),
        }
    }

    /// A device on a verbs device of the system, with that device's address.
    pub fn verbs(name: VerbsName) -> DeviceSpec {
        let addr = name.addr.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        DeviceSpec { verbs: Some(name.clone()), ..DeviceSpec::new(name.to_string(), addr) }
    }
}

/// The backup NIC of a device.
#[derive(Clone, Debug)]
pub struct BackupSpec {
    /// The backup's address, another one of this machine.
    pub addr: IpAddr,
    /// How outstanding requests are handled.
    pub mode: Mode,
    /// The store in which peers find each other's backups, in the syntax of
    /// [`bowline_store::open`]; a directory of this user on this host if `None`.
    pub store_url: Option<String>,
    /// The job that peers belong to.
    pub job: String,
}

/// Limits of a device; `None` means the engine's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The largest path MTU; if `None`, as large as the interface supports.
    pub mtu: Option<Mtu>,
    /// Maximum bytes in flight to one peer.
    pub window_bytes: Option<u32>,
    /// Maximum number of queue pairs on each lane.
    pub max_qps: Option<u32>,
    /// Maximum number of memory regions.
    pub max_mrs: Option<u32>,
    /// Maximum number of work requests in one queue.
    pub max_wr: Option<u32>,
    /// Maximum number of completions in one completion queue.
    pub max_cqe: Option<u32>,
}

/// The number of lanes of a device, written as a number or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneCount {
    /// This many, at most [`MAX_LANES`].
    Fixed(NonZeroUsize),
    /// One for each core that the process may use, within reason.
    Auto,
}

impl LaneCount {
    /// The number of lanes on this machine.
    pub fn get(self) -> usize {
        match self {
            LaneCount::Fixed(lanes) => lanes.get().min(MAX_LANES),
            LaneCount::Auto => {
                let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
                cores.min(MAX_AUTO_LANES)
            }
        }
    }
}

impl Default for LaneCount {
    fn default() -> LaneCount {
        LaneCount::Fixed(NonZeroUsize::MIN)
    }
}

/// The text is not a valid [`LaneCount`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid number of lanes {0:?}: write a number from 1 to {MAX_LANES}, e.g. 4, or auto")]
pub struct ParseLaneCountError(String);

impl FromStr for LaneCount {
    type Err = ParseLaneCountError;

    fn from_str(text: &str) -> Result<LaneCount, ParseLaneCountError> {
        if text == "auto" {
            return Ok(LaneCount::Auto);
        }
        let lanes = text.parse::<NonZeroUsize>().ok().filter(|lanes| lanes.get() <= MAX_LANES);
        lanes.map(LaneCount::Fixed).ok_or_else(|| ParseLaneCountError(text.to_owned()))
    }
}

impl fmt::Display for LaneCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LaneCount::Fixed(lanes) => lanes.fmt(f),
            LaneCount::Auto => f.write_str("auto"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_read_as_they_are_written() {
        for text in ["1", "8", "64", "auto"] {
            assert_eq!(text.parse::<LaneCount>().unwrap().to_string(), text);
        }
        for bad in ["", "0", "65", "-1", "two", "AUTO", "1.5"] {
            let error = bad.parse::<LaneCount>().unwrap_err().to_string();
            assert!(error.contains("from 1 to 64"), "{error}");
        }
        assert!(LaneCount::Auto.get() >= 1);
    }
}
