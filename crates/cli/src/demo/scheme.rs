//! The seam between the demonstration and the ways of moving data reliably.

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

/// Every scheme, in the order of the table.
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
    /// As the table shows it.
    fn name(&self) -> &'static str;

    /// Whether it can finish over the link, and has something to show there.
    fn suits(&self, link: &Link) -> bool {
        !link.killed
    }

    /// Moves the load over the link.
    fn run(&self, stage: &Stage<'_>) -> Result<Outcome, Box<dyn Error>>;
}

/// Where and with what a scheme runs.
pub(super) struct Stage<'a> {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// The NICs that stand in for them.
    pub(super) backups: [IpAddr; 2],
    pub(super) link: &'a Link,
    pub(super) load: &'a Load,
    pub(super) pcap: Option<PathBuf>,
    pub(super) bar: &'a ProgressBar,
}

/// What became of it.
pub(super) struct Outcome {
    /// From the first post to the last completion.
    pub(super) elapsed: Duration,
    /// From post to completion, of every message that was moved.
    pub(super) completion_times: Vec<Duration>,
    /// Packets sent again.
    pub(super) retransmitted_packets: u64,
    /// Packets sent in all.
    pub(super) sent_packets: u64,
    /// Packets that the link lost, both ways.
    pub(super) lost_packets: u64,
    /// Bytes that arrived other than they were sent.
    pub(super) wrong_bytes: u64,
    /// From a NIC's death to sending again over another.
    pub(super) handover: Option<Duration>,
}

/// Packets that a device's link lost.
pub(super) fn lost(device: &Device) -> Result<u64, bowline::Error> {
    Ok(device.port_counters()?.impair_lost)
}
