//! Options of `bowline perf`, and the subset that the client sends to the server.

use std::path::PathBuf;
use std::time::Duration;

use bowline::{FecMode, LaneCount, LinkProfile, Mtu, RateControl, Via};
use bowline_link::units;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::chain::Place;
use super::failover::FailoverArgs;
use super::transport::Transport;
use crate::nic_name::NicName;
use crate::output::{parse_bytes, parse_time};
use crate::peers::TrustArgs;

/// The sizes of `--all`: 2 bytes to 8 MiB, as in perftest.
const ALL_SIZES: std::ops::RangeInclusive<u32> = 1..=23;
/// The longest datagram at the largest MTU.
const MAX_DATAGRAM: u32 = 4096;

/// Measure bandwidth and latency between two programs, as perftest does
///
/// Without a host it is the server: it waits for one client, runs the tests that the client asks
/// for, and exits. With a host it is the client.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline perf write-bw                                server on 127.0.0.1\n  \
    bowline perf write-bw 127.0.0.1                      client, on the same address\n  \
    bowline perf write-bw 127.0.0.1 -d 127.0.0.2 -a      client on another, all sizes\n  \
    bowline perf write-bw 127.0.0.1 -b -D 10s -i 1s      both ways, with a line each second\n  \
    bowline perf send-bw 127.0.0.1 --transport ud -s 1K  datagrams, and how many arrive\n  \
    bowline perf write-lat 127.0.0.1 -s 8 -D 5s --json   latency for 5 s, as JSON\n  \
    bowline perf write-bw 127.0.0.1 -s 1M --region 512M  from and to memory that no cache holds\n  \
    bowline perf write-bw 192.0.2.7 -s 16M --scheme ec-mds\n  \
    bowline perf write-bw 192.0.2.7 --cc dcqcn:25Gbps    where switches mark\n  \
    bowline perf write-bw 127.0.0.1 -s 16M --scheme auto --explain --rate 1Gbps\n  \
    bowline perf send-bw 127.0.0.1 --link loss=0.1%,delay=5ms --pcap out.pcap\n  \
    bowline perf write-bw --to 192.0.2.7,192.0.2.8 -s 1M -t 8    one sender, two servers\n  \
    bowline perf write-bw --to 192.0.2.7,192.0.2.8 -s 1M -t 8 --replicate chain    the first passes on to the second\n  \
    bowline perf write-bw --to 192.0.2.7,192.0.2.8 -s 16M --scheme ec-mds    the same where packets get lost\n  \
    bowline perf write-bw 192.0.2.7 -d verbs:mlx5_0      on hardware; the server may be on either\n  \
    bowline perf write-bw -d 192.0.2.7 --code            server for whoever has the code it prints …\n  \
    bowline perf write-bw 192.0.2.7 --code WORDS         … and its client, encrypted\n\n\
    Bandwidth is in Gbit/s of payload; its peak is the best 50 ms. Latency is in \
    microseconds: half a round trip, or the whole operation for READ and atomics; t_typical is the median. CPU \
    counts all threads of an end; 100 is one core. Lost packets are those that one end sent and the other did \
    not receive. Ctrl-C ends a test early and prints the results so far.\n\n\
    Outside loopback, both ends authenticate each other, by keys (`bowline key`) or a one-time code, and encrypt \
    their packets, unless both use --insecure.\n\n\
    Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.")]
pub(crate) struct PerfArgs {
    /// What to measure
    pub(crate) test: Test,
    /// The server's host; without it this is the server
    pub(crate) host: Option<String>,
    /// Send to all of these servers at once, e.g. 192.0.2.7,192.0.2.8:18516; write-bw and send-bw
    /// only. Each server runs its own `bowline perf`, as for one client
    #[arg(long, value_delimiter = ',', value_name = "HOST[:PORT],…", conflicts_with_all = [
          "host", "transport", "qps", "region", "inline", "fec", "both"])]
    pub(crate) to: Vec<String>,
    /// How one message reaches all servers of --to
    #[arg(long, value_enum, default_value_t = Replicate::Auto, requires = "to")]
    pub(crate) replicate: Replicate,
    /// This end's NIC: an address of this machine, or verbs:NAME for a RoCE NIC of the system. The
    /// server also listens at its address [server: 127.0.0.1, client: the address from which it
    /// reaches the server]
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) device: Option<NicName>,
    /// Packet transport of this end: udp; shm (shared memory, between processes of this user on
    /// this host); auto (shm if both ends support it, else udp); or, on a physical NIC and as root,
    /// xdp[:mode=auto|copy|zerocopy,queue=N]
    #[arg(long, default_value_t = Via::Udp, value_name = "PORT")]
    pub(crate) via: Via,
    /// Number of lanes of this end's NIC, or auto. A lane is an engine with its own socket and core
    #[arg(long, default_value_t = LaneCount::default(), value_name = "COUNT")]
    pub(crate) lanes: LaneCount,
    /// Message size in bytes; K, M and G are powers of 1024 [bandwidth: 64K, or 1K for ud; latency:
    /// 8]
    #[arg(short, long, value_parser = parse_bytes, value_name = "BYTES")]
    pub(crate) size: Option<u32>,
    /// Messages to send on each QP [bandwidth: 5000, latency: 1000]
    #[arg(short = 'n', long, value_name = "COUNT",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iters: Option<u64>,
    /// Measure all sizes from 2 bytes to 8 MiB
    #[arg(short, long, conflicts_with = "size")]
    pub(crate) all: bool,
    /// Measure for this long, e.g. 5s, instead of for a number of messages
    #[arg(short = 'D', long, value_parser = parse_time, conflicts_with = "iters",
          value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Send both ways at the same time, bandwidth only; results are sums
    #[arg(short, long = "bidirectional", conflicts_with = "scheme")]
    pub(crate) both: bool,
    /// Print a line for each interval, e.g. 1s
    #[arg(short, long, value_parser = parse_time, value_name = "TIME")]
    pub(crate) interval: Option<Duration>,
    /// QPs that send at the same time, bandwidth only
    #[arg(short, long, default_value_t = 1, value_name = "COUNT",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) qps: u16,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: what the link carries]
    #[arg(short, long, value_parser = parse_mtu, value_name = "BYTES")]
    pub(crate) mtu: Option<Mtu>,
    /// TCP port for setting up the connection
    #[arg(short, long, default_value_t = 18515, value_name = "PORT")]
    pub(crate) port: u16,
    /// Messages outstanding on each QP, bandwidth only
    #[arg(short, long, default_value_t = 128, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) tx_depth: u32,
    /// Cycle each QP's messages through this many bytes of memory at both ends, to defeat caches
    /// [default: reuse one message's memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, conflicts_with = "scheme")]
    pub(crate) region: Option<u32>,
    /// Send messages of up to this many bytes inline [bandwidth: 0, latency: 64]
    #[arg(short = 'I', long, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) inline: Option<u32>,
    /// Transport of the QPs. uc, ud and xp do not repair loss: bandwidth tests report how much was
    /// delivered, and a latency test that loses a message fails after 20 s
    #[arg(long, value_enum, default_value_t = Transport::Rc, conflicts_with = "scheme")]
    pub(crate) transport: Transport,
    /// Use SDR with this reliability scheme instead of RC: sr-nack, sr-rto, ec-mds, ec-xor, or
    /// auto, which picks for each message the scheme that the planner expects to be fastest;
    /// write-bw only
    #[arg(long, value_name = "SCHEME")]
    pub(crate) scheme: Option<String>,
    /// Bytes that a scheme retransmits per lost packet: a power of two packets
    #[arg(long, value_name = "BYTES", requires = "scheme", value_parser = parse_bytes)]
    pub(crate) chunk: Option<u32>,
    /// With --scheme auto: print which schemes were chosen, and why
    #[arg(long, requires = "scheme")]
    pub(crate) explain: bool,
    /// Congestion control of this end: none, fixed:1Gbps, dcqcn, bbr, swift [default: bbr for a
    /// scheme to another host, none otherwise]
    #[arg(long, value_name = "NAME")]
    pub(crate) cc: Option<RateControl>,
    /// Sending rate of a scheme, e.g. 1Gbps [default: as --cc says]
    #[arg(long, value_name = "RATE", requires = "scheme", value_parser = units::parse_rate)]
    pub(crate) rate: Option<u64>,
    /// Impair what this end sends, e.g. loss=0.1%,delay=10ms,rate=1Gbps,queue=8MiB
    #[arg(long, value_name = "PROFILE")]
    pub(crate) link: Option<LinkProfile>,
    /// Forward error correction towards a peer that has it too: r,c (e.g. 32,1), auto or off
    #[arg(long, value_name = "R,C")]
    pub(crate) fec: Option<FecMode>,
    /// Encrypt and authenticate every packet with the key in this file, 64 hexadecimal digits,
    /// which both ends must have (`openssl rand -hex 32 > FILE`)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["insecure", "seal", "code"])]
    pub(crate) seal_key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) failover: FailoverArgs,
    /// Write all packets of this end to a capture file
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Report in Gbit/s; this is the default, and the option exists for compatibility with perftest
    #[arg(long, alias = "report_gbits")]
    pub(crate) report_gbits: bool,
    /// Print one JSON object and nothing else
    #[arg(long, alias = "out_json")]
    pub(crate) json: bool,
}

/// How one message reaches many servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Replicate {
    /// Multicast if there are several servers and it works, else the port
    Auto,
    /// One QP: this end sends each packet once, to an IP multicast address; ordinary switches copy
    /// it
    Multicast,
    /// One QP: this end's port copies what it sends, and merges the servers' responses
    Port,
    /// One QP and one work request for each server
    FanOut,
    /// The first server forwards each message to the second, and so on; the last one's
    /// acknowledgement returns the same way
    Chain,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// RDMA WRITE, bandwidth
    WriteBw,
    /// RDMA WRITE ping-pong on memory, latency
    WriteLat,
    /// SEND, bandwidth
    SendBw,
    /// SEND ping-pong, latency
    SendLat,
    /// RDMA READ, bandwidth
    ReadBw,
    /// RDMA READ, latency
    ReadLat,
    /// Fetch-and-add, latency
    AtomicLat,
}

/// What a test reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Gbit/s.
    Bandwidth,
    /// Microseconds.
    Latency,
}

impl Test {
    /// The metric that the test reports.
    pub(crate) fn metric(self) -> Metric {
        match self {
            Test::WriteBw | Test::SendBw | Test::ReadBw => Metric::Bandwidth,
            Test::WriteLat | Test::SendLat | Test::ReadLat | Test::AtomicLat => Metric::Latency,
        }
    }

    /// The name as typed on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value().expect("no test is skipped");
        value.get_name().to_owned()
    }
}

/// The options that the client sends to the server, because both ends must use the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) test: Test,
    pub(crate) size: u32,
    pub(crate) all: bool,
    pub(crate) iters: u64,
    pub(crate) duration: Option<Duration>,
    pub(crate) qps: u16,
    pub(crate) tx_depth: u32,
    /// Bytes that a QP's messages cycle through.
    pub(crate) region: u32,
    pub(crate) inline: u32,
    #[serde(default)]
    pub(crate) transport: Transport,
    pub(crate) scheme: Option<String>,
    pub(crate) rate_bps: Option<u64>,
    /// Lanes that share each message of a scheme, at both ends.
    pub(crate) spread: usize,
    #[serde(default)]
    pub(crate) chunk: Option<u32>,
    /// Bytes in a packet, if the client was given `-m`: a scheme's ends must use the same value.
    #[serde(default)]
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) explain: bool,
    /// Whether the server sends as well.
    #[serde(default)]
    pub(crate) both: bool,
    /// The server's place in a chain of servers.
    #[serde(default)]
    pub(crate) chain: Option<Place>,
}

impl Spec {
    /// The specification for these options, with the test's defaults.
    pub(crate) fn new(args: &PerfArgs) -> Spec {
        let latency = args.test.metric() == Metric::Latency;
        let default = |of_latency: u64, of_bandwidth: u64| {
            if latency { of_latency } else { of_bandwidth }
        };
        // A datagram of this length fits every link.
        let longest_default = if args.transport.is_datagram() { 1024 } else { 65_536 };
        Spec {
            test: args.test,
            size: args.size.unwrap_or(default(8, longest_default) as u32),
            all: args.all,
            iters: args.iters.unwrap_or(default(1_000, 5_000)),
            duration: args.duration,
            qps: if latency { 1 } else { args.qps },
            tx_depth: args.tx_depth,
            region: if latency { 0 } else { args.region.unwrap_or(0) },
            inline: args.inline.unwrap_or(default(64, 0) as u32),
            transport: args.transport,
            scheme: args.scheme.clone(),
            rate_bps: args.rate,
            spread: args.lanes.get(),
            chunk: args.chunk,
            mtu_bytes: args.mtu.map(Mtu::bytes),
            explain: args.explain,
            both: args.both && !latency,
            chain: None,
        }
    }

    /// Parses what a peer sent, and checks that this end supports it.
    pub(crate) fn from_peer(text: &[u8], ours: Test) -> Result<Spec, String> {
        let spec: Spec = serde_json::from_slice(text)
            .map_err(|e| format!("the client's request cannot be read: {e}"))?;
        if spec.test != ours {
            let (theirs, ours) = (spec.test.name(), ours.name());
            return Err(format!("the client asks for {theirs}, but this server runs {ours}"));
        }
        let sane = (1..=1 << 30).contains(&spec.size)
            && (1..=1024).contains(&spec.qps)
            && (1..=8192).contains(&spec.tx_depth)
            && spec.inline <= 1024
            && (1..=64).contains(&spec.spread)
            && spec.iters >= 1
            && spec.mtu_bytes.is_none_or(|bytes| Mtu::from_bytes(bytes).is_some())
            && !(spec.both && spec.scheme.is_some())
            && spec.chain.is_none_or(|place| place.is_sane() && spec.can_chain());
        spec.transport.check(spec.test)?;
        let invalid = "invalid request from the client: check its options, and that both ends run \
                       the same release";
        if sane { Ok(spec) } else { Err(invalid.to_owned()) }
    }

    /// Whether a chain of servers can forward such messages.
    fn can_chain(&self) -> bool {
        self.transport == Transport::Rc && self.scheme.is_none() && self.qps == 1 && !self.both
    }

    /// The message sizes to measure, in order.
    pub(crate) fn sizes(&self) -> Vec<u32> {
        if self.test == Test::AtomicLat {
            return vec![8];
        }
        let most = if self.transport.is_datagram() { MAX_DATAGRAM } else { u32::MAX };
        match self.all {
            true => ALL_SIZES.map(|shift| 1 << shift).filter(|size| *size <= most).collect(),
            false => vec![self.size],
        }
    }

    /// The MTU of a scheme's messages, on a NIC whose MTU is `ours`.
    pub(crate) fn mtu(&self, ours: Mtu) -> Mtu {
        let asked = self.mtu_bytes.and_then(Mtu::from_bytes);
        asked.filter(|asked| asked.bytes() < ours.bytes()).unwrap_or(ours)
    }

    /// The largest message.
    pub(crate) fn max_size(&self) -> usize {
        self.sizes().into_iter().max().unwrap_or(8) as usize
    }

    /// Whether messages of this size go inline.
    pub(crate) fn is_inline(&self, bytes: u32) -> bool {
        bytes <= self.inline && !matches!(self.test, Test::ReadBw | Test::ReadLat | Test::AtomicLat)
    }
}

fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let bytes = text.parse().ok();
    bytes.and_then(Mtu::from_bytes).ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".to_owned())
}
