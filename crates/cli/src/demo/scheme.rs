//! The interface between the demonstration and its reliability schemes.

use std::error::Error;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bowline::Device;
use indicatif::ProgressBar;

use super::link::Link;
use super::load::Load;
use super::rc::ReliableConnection;
use super::sdr::Sdr;

/// All schemes, in table order.
pub(super) const SCHEMES: [&dyn Scheme; 7] = [
    &ReliableConnection { name: "rc (go-back-N)", fec: None, failover: false },
    &ReliableConnection { name: "rc+fec (32,1)", fec: Some("32,1"), failover: false },
    &Sdr { name: "sr", scheme: "sr-rto" },
    &Sdr { name: "sr-nack", scheme: "sr-nack" },
    &Sdr { name: "ec-xor (32,8)", scheme: "ec-xor" },
    &Sdr { name: "ec-mds (32,8)", scheme: "ec-mds" },
    &ReliableConnection { name: "rc+failover", fec: None, failover: true },
];

/// A way of moving messages reliably.
pub(super) trait Scheme {
    /// The name in the table.
    fn name(&self) -> &'static str;

    /// Whether the scheme can finish over this link, and is interesting there.
    fn suits(&self, link: &Link) -> bool {
        !link.killed
    }

    /// Moves the load over the link.
    fn run(&self, stage: &Stage<'_>) -> Result<Outcome, Box<dyn Error>>;
}

/// The environment in which a scheme runs.
pub(super) struct Stage<'a> {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// The backup NICs.
    pub(super) backups: [IpAddr; 2],
    pub(super) link: &'a Link,
    pub(super) load: &'a Load,
    pub(super) pcap: Option<PathBuf>,
    pub(super) bar: &'a ProgressBar,
}

/// The result of a run.
pub(super) struct Outcome {
    /// From the first post to the last completion.
    pub(super) elapsed: Duration,
    /// From post to completion, for every message that was moved.
    pub(super) completion_times: Vec<Duration>,
    /// Packets that were retransmitted.
    pub(super) retransmitted_packets: u64,
    /// Packets that were sent in total.
    pub(super) sent_packets: u64,
    /// Packets that the link lost, in both directions.
    pub(super) lost_packets: u64,
    /// Bytes that differ from what was sent.
    pub(super) wrong_bytes: u64,
    /// Time from a NIC's failure until another one sends.
    pub(super) handover: Option<Duration>,
}

/// Packets that a device's link lost.
pub(super) fn lost(device: &Device) -> Result<u64, bowline::Error> {
    Ok(device.port_counters()?.impair_lost)
}
