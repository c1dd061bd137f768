//! Options of `bowline wan`.

use std::path::PathBuf;
use std::time::Duration;

use bowline_link::{LinkProfile, units};
use clap::Args;

/// Put a long, narrow, lossy link between two network namespaces, and run programs at its ends
///
/// Each end is a separate network with one device. What a program sends there crosses the link
/// packet by packet, even if the kernel hands over 64 KiB at a time. The report says what the link
/// did, and how late: a run that was too late to be trusted ends with status 75.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline wan --link rate=1Gbps,delay=20ms,queue=1bdp,loss=0.1% \\\n      \
        --left 'iperf3 -s -1' --right 'iperf3 -c {left} -C bbr'\n  \
    bowline wan --link rate=5Gbps,delay=40ms,queue=1bdp --mtu 9000 --json \\\n      \
        --left 'bowline perf write-bw -d {left} --insecure' \\\n      \
        --right 'bowline perf write-bw {left} -d {right} --insecure'\n  \
    bowline wan --link 'rate=1Gbps,delay=20ms,loss=ge(0.001,0.1)' --seed 7 --left … --right …\n  \
    bowline wan --link delay=40ms --hold            keep the link up, and print how to enter its ends\n\n\
    Commands run in a shell; {left} and {right} stand for the addresses of the ends. The right command starts\n\
    once something listens on the left. When it exits, the run ends with its exit status.\n\
    The delay is one-way; the rate counts whole IP packets, headers included. Without root, a user\n\
    namespace is created; the user must have access to /dev/net/tun.")]
pub(crate) struct WanArgs {
    /// What the link does each way, as in `bowline run`: rate=1Gbps,delay=20ms,queue=1bdp,loss=0.1%
    #[arg(long, value_name = "PROFILE", default_value = "")]
    pub(super) link: LinkProfile,
    /// Profile from right to left, if it differs
    #[arg(long, value_name = "PROFILE")]
    pub(super) link_back: Option<LinkProfile>,
    /// Change rate, delay and queue after a time, in both directions:
    /// 10s:rate=300Mbps,delay=20ms,queue=5MB
    #[arg(long, value_name = "TIME:PROFILE", value_parser = parse_step)]
    pub(super) then: Option<Step>,
    /// Seed of the losses, instead of the profile's
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// The largest IP packet
    #[arg(long, default_value_t = 1500)]
    #[arg(value_parser = clap::value_parser!(u32).range(576..=65_535))]
    pub(super) mtu: u32,
    /// Use IPv6 addresses
    #[arg(long)]
    pub(super) ipv6: bool,
    /// Command at the left end, usually the server
    #[arg(long, value_name = "COMMAND")]
    pub(super) left: Option<String>,
    /// Command at the right end; its exit status becomes that of `bowline wan`
    #[arg(long, value_name = "COMMAND")]
    pub(super) right: Option<String>,
    /// Keep the link up until interrupted, and say how to enter its ends
    #[arg(long)]
    pub(super) hold: bool,
    /// Start the right command after this time, whether or not something listens on the left
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub(super) start_after: Option<Duration>,
    /// How late the 99th percentile of packets may leave [1ms, or 2 % of the delay if that is more]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub(super) late_limit: Option<Duration>,
    /// Capture every packet on the link to a pcap file, as an observer on the link would see it
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: Option<PathBuf>,
    /// Print the report as JSON, one object as the last line
    #[arg(long)]
    pub(super) json: bool,
}

/// A change of the link.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) after: Duration,
    pub(super) link: LinkProfile,
}

fn parse_step(text: &str) -> Result<Step, String> {
    const HOW: &str = "write a time and a profile, e.g. 10s:rate=300Mbps,delay=20ms";
    let (after, link) = text.split_once(':').ok_or(HOW)?;
    let after = units::parse_duration(after)?;
    let link: LinkProfile =
        link.parse().map_err(|e: bowline_link::ParseLinkError| e.to_string())?;
    if link.faults != bowline_link::Faults::default() {
        return Err(format!("a step changes rate, delay and queue only: {HOW}"));
    }
    Ok(Step { after, link })
}

impl WanArgs {
    /// The profiles of both directions.
    pub(super) fn links(&self) -> (LinkProfile, LinkProfile) {
        let mut there = self.link.clone();
        let mut back = self.link_back.clone().unwrap_or_else(|| there.clone());
        if let Some(seed) = self.seed {
            there.seed = seed;
            back.seed = seed;
        }
        (there, back)
    }

    /// How late packets may be.
    pub(super) fn late_limit(&self) -> Duration {
        const AT_LEAST: Duration = Duration::from_millis(1);
        let (there, back) = self.links();
        let delay = Duration::from_nanos(there.config.delay_ns.max(back.config.delay_ns));
        self.late_limit.unwrap_or_else(|| AT_LEAST.max(delay / 50))
    }
}
