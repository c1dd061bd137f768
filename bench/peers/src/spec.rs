//! What a measurement is: the same options at both ends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::{Args, ValueEnum};

/// What connects the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Datagrams of UDP with segmentation offload at both ends and nothing on top; cold, the
    /// receiver copies with memcpy
    Udp,
    /// The same, copying past the caches
    UdpStream,
    /// The same with what RoCEv2 asks of every packet, and nothing else: the sender sums up and
    /// copies into packets, the receiver checks the sums
    UdpSummed,
    /// A TCP connection with CUBIC
    TcpCubic,
    /// A TCP connection with BBR
    TcpBbr,
    /// One QUIC stream of quinn with CUBIC
    QuinnCubic,
    /// One QUIC stream of quinn with BBR
    QuinnBbr,
    /// SRT in file mode, as a stream
    Srt,
    /// Bowline: RDMA WRITE over RC
    Rc,
    /// Bowline: the same with forward error correction below
    RcFec,
    /// Bowline: RDMA WRITE with immediate over UC
    Uc,
    /// Bowline SDR: selective repeat by NACK
    SrNack,
    /// Bowline SDR: selective repeat by timeout
    SrRto,
    /// Bowline SDR: Reed–Solomon
    EcMds,
    /// Bowline SDR: XOR
    EcXor,
    /// Bowline SDR: what the planner chooses
    Auto,
}

impl Kind {
    /// As typed.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value().expect("no kind is skipped");
        value.get_name().to_owned()
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Message after message without waiting: throughput, and CPU time of both ends
    Bulk,
    /// One message at a time, until the sender knows that all of it has arrived
    Message,
    /// Small messages back and forth, both ends spinning
    Ping,
    /// Nothing, over a connection that stands: CPU time
    Idle,
}

/// Where messages are sent from and put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Buffers {
    /// One message's worth of memory, again and again
    Hot,
    /// 512 MiB at either end, gone through in turn
    Cold,
}

/// The options of either end.
#[derive(Args, Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// Where the server listens: for control here, for data on the next port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) at: SocketAddr,
    /// The driver's own address
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub(crate) from: IpAddr,
    /// Bytes of a message; K and M are powers of 1024
    #[arg(long, default_value = "1M", value_parser = parse_bytes)]
    pub(crate) size: usize,
    /// Where messages come from and go to
    #[arg(long, value_enum, default_value_t = Buffers::Hot)]
    pub(crate) buffers: Buffers,
    /// How long bulk, ping and idle measure, and messages at most, in seconds
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// How long bulk runs before it measures, in seconds
    #[arg(long, default_value_t = 0.3)]
    pub(crate) warm_up: f64,
    /// Measure bulk once for each line of the standard input, a number of seconds: somebody else
    /// has turns in between
    #[arg(long)]
    pub(crate) turns: bool,
    /// Messages that are measured, one at a time
    #[arg(long, default_value_t = 100)]
    pub(crate) count: usize,
    /// Messages before them, so that windows have opened
    #[arg(long, default_value_t = 10)]
    pub(crate) warm_count: usize,
    /// Payload of a packet: Bowline's path MTU, the segments of bare UDP, the datagrams of quinn
    #[arg(long)]
    pub(crate) mtu: Option<u16>,
    /// What carries Bowline's packets: udp, shm or auto
    #[arg(long, default_value_t = bowline::Via::Udp)]
    pub(crate) via: bowline::Via,
    /// Connected queue pairs that share the work (RC)
    #[arg(long, default_value_t = 1)]
    pub(crate) qps: usize,
    /// Connected queue pairs beside them that do nothing (RC)
    #[arg(long, default_value_t = 0)]
    pub(crate) idle_qps: usize,
    /// Bytes of a chunk (SDR)
    #[arg(long, default_value = "64K", value_parser = parse_bytes)]
    pub(crate) chunk: usize,
    /// Data and parity chunks of a group (SDR)
    #[arg(long, num_args = 2, default_values_t = [32, 8], value_names = ["K", "M"])]
    pub(crate) code: Vec<u32>,
    /// Rate of the link in bit/s, for windows: nobody paces at it
    #[arg(long, value_name = "BPS")]
    pub(crate) rate: Option<u64>,
    /// Round trip of the link in ms, for transports that are told it, and for windows
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    pub(crate) rtt: f64,
    /// Keep this process on one CPU
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
}

impl Spec {
    /// Where data goes.
    pub(crate) fn data_at(&self) -> SocketAddr {
        SocketAddr::new(self.at.ip(), self.at.port() + 1)
    }

    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Whether there is a long link between the ends.
    pub(crate) fn is_long(&self) -> bool {
        self.bdp_bytes() > 0
    }

    /// Bytes that fit on the way there and back; on a local link, nothing to speak of.
    pub(crate) fn bdp_bytes(&self) -> u64 {
        (self.rate.unwrap_or(0) as f64 / 8.0 * self.rtt / 1e3) as u64
    }

    /// Buffers that hold what is under way, twice, whatever the link.
    pub(crate) fn window_bytes(&self) -> u64 {
        (4 * self.bdp_bytes()).max(16 << 20)
    }

    /// Messages under way at a time: enough bytes to fill the link, and not one alone.
    pub(crate) fn depth(&self) -> usize {
        let bytes = (2 * self.bdp_bytes() as usize).max(16 << 20);
        (bytes / self.size.max(1)).clamp(2, 128)
    }
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) => (digits, 20),
        None => (text, 0),
    };
    match digits.parse::<usize>() {
        Ok(n @ 1..=1024) if shift == 20 => Ok(n << shift),
        Ok(n @ 1..) if shift < 20 && n << shift <= 1 << 30 => Ok(n << shift),
        _ => Err("must be a number of bytes up to 1 GiB, as 8, 64K or 16M".to_owned()),
    }
}
