//! What a device is to be.

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

/// Most lanes that [`LaneCount::Auto`] makes. A process has few of the 253 QPN prefixes of an
/// address to itself, and a lane without a core gains nothing.
const MAX_AUTO_LANES: usize = 16;

/// Everything that makes a device what it is. [`DeviceSpec::open`] opens it.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Its name, for threads, logs and `bowline devinfo`.
    pub name: String,
    /// The verbs device to stand on, instead of engines of its own.
    pub verbs: Option<VerbsName>,
    /// Its address and port, and who shares them.
    pub udp: UdpConfig,
    /// What carries its packets.
    pub via: Via,
    /// How many lanes it has.
    pub lanes: LaneCount,
    /// What impairs the packets that it sends.
    pub link: Option<LinkProfile>,
    /// Where its packets are captured. The backup's go to a file beside it.
    pub pcap: Option<PathBuf>,
    /// How connections are protected by forward error correction.
    pub fec: Option<FecMode>,
    /// What limits how fast queue pairs send that are not told otherwise.
    pub congestion: Option<RateControl>,
    /// Where reliable connections go on when its NIC fails.
    pub backup: Option<BackupSpec>,
    /// What it may take up.
    pub limits: Limits,
    /// Where its messages go.
    pub log: Log,
}

impl DeviceSpec {
    /// A device with one lane at an address, which programs of this user share.
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

    /// A device that stands on a verbs device of the system. Its address is that device's.
    pub fn verbs(name: VerbsName) -> DeviceSpec {
        let addr = name.addr.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        DeviceSpec { verbs: Some(name.clone()), ..DeviceSpec::new(name.to_string(), addr) }
    }
}

/// The NIC that stands in for a device's own.
#[derive(Clone, Debug)]
pub struct BackupSpec {
    /// Its address, another one of this machine.
    pub addr: IpAddr,
    /// What becomes of requests under way.
    pub mode: Mode,
    /// Where peers find each other's backups, as [`bowline_store::open`] takes it; a directory of
    /// this user on this host if `None`.
    pub store_url: Option<String>,
    /// The job that peers belong to.
    pub job: String,
}

/// Limits of a device; what is `None` is the engine's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// The largest path MTU; what the interface carries if `None`.
    pub mtu: Option<Mtu>,
    /// Bytes in flight towards one peer.
    pub window_bytes: Option<u32>,
    /// Queue pairs of each lane.
    pub max_qps: Option<u32>,
    /// Memory regions.
    pub max_mrs: Option<u32>,
    /// Work requests in one queue.
    pub max_wr: Option<u32>,
    /// Completions in one completion queue.
    pub max_cqe: Option<u32>,
}

/// How many lanes a device has; written as a number or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneCount {
    /// So many, at most [`MAX_LANES`].
    Fixed(NonZeroUsize),
    /// One for each core that the process may run on, within reason.
    Auto,
}

impl LaneCount {
    /// The number, on this machine.
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

/// Text that is no [`LaneCount`].
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
