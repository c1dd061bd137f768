//! Options of `bowline plan`.

use std::net::SocketAddr;
use std::path::PathBuf;

use bowline_plan::{Axis, Goal, Link, Loss, Message, PlanError, rtt_of_distance_s};
use bowline_planner::{Parameters, Question, parse};
use clap::{Args, ValueEnum};

use crate::http;

/// Say which reliability scheme suits a link, and how long messages will take
///
/// Completion times are computed, not sampled, by the model of the SDR-RDMA paper: see
/// docs/plan.md.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB\n  \
    bowline plan --bandwidth 100Gbps --distance 350km --loss 0.1% --size 1GiB --json\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --chunk-loss 1e-3 --size 128MiB --sweep loss\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB --report plan.html\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB --allreduce 4\n  \
    bowline plan --bandwidth 10Gbps --rtt 40ms --loss 0.1% --size 16MiB --receivers 8\n  \
    bowline plan --bandwidth 10Gbps --rtt 40ms --loss 1e-4 --burst 8 --size 64MiB\n  \
    bowline plan --serve                  explore it in a browser, with sliders\n  \
    bowline plan --serve 9000 --loss 0.1%  on that port, starting from this loss\n  \
    bowline plan --page planner.html      the same explorer as one file, without a server")]
pub(crate) struct PlanArgs {
    /// The link's rate, e.g. 400Gbps
    #[arg(long, value_name = "RATE", value_parser = parse::rate, allow_hyphen_values = true,
          required_unless_present_any = ["serve", "page"])]
    bandwidth: Option<u64>,
    /// The link's round-trip time, e.g. 25ms
    #[arg(long, value_name = "TIME", value_parser = parse::rtt, allow_hyphen_values = true,
          conflicts_with = "distance",
          required_unless_present_any = ["distance", "serve", "page"])]
    rtt: Option<f64>,
    /// The link's length instead of --rtt, e.g. 3750km. Assumes 300,000 km/s as the paper does;
    /// fibre has 200,000
    #[arg(long, value_name = "KM", value_parser = parse::distance, allow_hyphen_values = true)]
    distance: Option<f64>,
    /// Packet loss rate, e.g. 1e-5 or 0.1%, or bursts (Gilbert-Elliott) as ge(P,R): probability P
    /// to enter the bad state, R to leave it
    #[arg(long, value_name = "P", value_parser = parse::loss, allow_hyphen_values = true,
          conflicts_with = "chunk_loss",
          required_unless_present_any = ["chunk_loss", "serve", "page"])]
    loss: Option<Loss>,
    /// Loss rate of whole chunks instead of --loss, e.g. 1e-4: the paper's P_drop
    #[arg(long, value_name = "P", value_parser = parse::chunk_loss, allow_hyphen_values = true)]
    chunk_loss: Option<Loss>,
    /// Lose packets in bursts of this mean length, at the same rate
    #[arg(long, value_name = "PACKETS", value_parser = parse::burst, allow_hyphen_values = true,
          conflicts_with = "chunk_loss")]
    burst: Option<f64>,
    /// Bytes of a message, e.g. 128MiB
    #[arg(long, value_name = "SIZE", value_parser = parse::size, allow_hyphen_values = true,
          required_unless_present_any = ["serve", "page"])]
    size: Option<u64>,
    /// Bytes of a chunk, a multiple of the MTU
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse::size,
          allow_hyphen_values = true)]
    chunk: u64,
    /// Payload of a packet
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse::size,
          allow_hyphen_values = true)]
    mtu: u64,
    /// Schemes to compare, and to choose from: gbn, sr-rto, sr-nack, ec-mds, ec-xor, lowar,
    /// best-effort [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parse::scheme)]
    scheme: Vec<&'static str>,
    /// Data and parity chunks of a submessage
    #[arg(long, value_name = "K,M", default_value = "32,8", value_parser = parse::pair,
          allow_hyphen_values = true)]
    ec: (u32, u32),
    /// Round trips that the receiver of a coded message waits before it requests what it could not
    /// decode
    #[arg(long, value_name = "BETA", default_value_t = 0.5, allow_hyphen_values = true)]
    beta: f64,
    /// Retransmission timeout of sr-rto and of coding's fallback, in round trips
    #[arg(long, value_name = "RTTS", default_value_t = 3.0, allow_hyphen_values = true)]
    rto: f64,
    /// Packets and lanes of a block of LoWAR
    #[arg(long, value_name = "R,C", default_value = "32,1", value_parser = parse::pair,
          allow_hyphen_values = true)]
    lowar: (u32, u32),
    /// The completion time that the recommended scheme minimises
    #[arg(long, value_enum, default_value_t = GoalArg::Mean)]
    goal: GoalArg,
    /// Also simulate this many messages per scheme, as a check on the model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) samples: Option<u32>,
    /// Random seed for samples
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// Also plan a ring allreduce of --size bytes over this many datacenters
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub(super) allreduce: Option<u32>,
    /// Also plan sending the message to this many receivers, by multicast and by fan-out; --samples
    /// then covers all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) receivers: Option<u32>,
    /// Plot completion times over this parameter
    #[arg(long, value_enum, value_name = "AXIS")]
    pub(super) sweep: Option<AxisArg>,
    /// Plot where erasure coding beats selective repeat, by size and loss on this link
    #[arg(long, conflicts_with = "sweep")]
    pub(super) heatmap: bool,
    /// Where to write the plot, as SVG [default: plan-AXIS.svg, plan-heatmap.svg]
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Write everything into one self-contained page
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
    /// Serve an explorer for browsers, with a slider for each of these options, on PORT of loopback
    /// or on ADDRESS:PORT [default: 127.0.0.1:18519]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = DEFAULT_LISTEN,
          value_parser = parse_listen, conflicts_with_all = NOT_EXPLORED)]
    pub(super) serve: Option<SocketAddr>,
    /// Write the explorer into one HTML file
    #[arg(long, value_name = "FILE.html", conflicts_with = "serve",
          conflicts_with_all = NOT_EXPLORED)]
    pub(super) page: Option<PathBuf>,
}

/// Where the explorer is served by default.
const DEFAULT_LISTEN: &str = "127.0.0.1:18519";
/// Options that the explorer does not take, because it computes its answers in the browser.
const NOT_EXPLORED: [&str; 13] = [
    "chunk_loss",
    "scheme",
    "ec",
    "beta",
    "rto",
    "lowar",
    "samples",
    "allreduce",
    "sweep",
    "heatmap",
    "svg",
    "report",
    "json",
];

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    http::parse_listen(text, DEFAULT_LISTEN)
}

#[derive(Clone, Copy, ValueEnum)]
enum GoalArg {
    Mean,
    P50,
    P99,
    P999,
}

impl GoalArg {
    fn goal(self) -> Goal {
        match self {
            GoalArg::Mean => Goal::Mean,
            GoalArg::P50 => Goal::Quantile(0.5),
            GoalArg::P99 => Goal::Quantile(0.99),
            GoalArg::P999 => Goal::Quantile(0.999),
        }
    }
}

/// The parameter that a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AxisArg {
    /// Bytes of the message
    Size,
    /// Loss rate
    Loss,
    /// Length of the link
    Distance,
    /// Rate of the link
    Bandwidth,
}

impl AxisArg {
    /// The planner's name for the parameter.
    pub(super) fn axis(self) -> Axis {
        match self {
            AxisArg::Size => Axis::Size,
            AxisArg::Loss => Axis::Loss,
            AxisArg::Distance => Axis::Distance,
            AxisArg::Bandwidth => Axis::Bandwidth,
        }
    }
}

impl PlanArgs {
    /// The question that these options ask.
    pub(super) fn question(&self) -> Result<Question, String> {
        let missing = |option: &str| format!("--{option} is missing");
        let bandwidth_bps = self.bandwidth.ok_or_else(|| missing("bandwidth"))? as f64;
        let distance_s = self.distance.map(rtt_of_distance_s);
        let rtt_s = self.rtt.or(distance_s).ok_or_else(|| missing("rtt"))?;
        let loss = self.loss.or(self.chunk_loss).ok_or_else(|| missing("loss"))?;
        let loss = match self.burst {
            Some(packets) => {
                parse::with_burst(loss, packets).map_err(|why| format!("--burst: {why}"))?
            }
            None => loss,
        };
        let message = Message {
            bytes: self.size.ok_or_else(|| missing("size"))?,
            chunk_bytes: self.chunk,
            mtu_bytes: self.mtu,
        };
        Ok(Question {
            only: self.scheme.clone(),
            parameters: Parameters {
                ec: self.ec,
                beta: self.beta,
                rto: self.rto,
                lowar: self.lowar,
            },
            goal: self.goal.goal(),
            receivers: self.receivers.unwrap_or(1),
            ..Question::new(Link { bandwidth_bps, rtt_s, loss }, message)
        })
    }

    /// The options that the explorer starts from, encoded as its state.
    pub(super) fn state(&self) -> String {
        let goal = self.goal.to_possible_value().map(|value| value.get_name().to_owned());
        let values = [
            ("bandwidth", self.bandwidth.map(|bps| in_units(bps, &RATES))),
            ("distance", self.distance.map(|km| format!("{km}km"))),
            ("rtt", self.rtt.map(|s| in_units((s * 1e9).round() as u64, &TIMES))),
            ("loss", self.loss.as_ref().map(loss_text)),
            ("burst", self.burst.map(|packets| packets.to_string())),
            ("size", self.size.map(|bytes| in_units(bytes, &SIZES))),
            ("receivers", self.receivers.map(|count| count.to_string())),
            ("goal", goal),
            ("chunk", Some(in_units(self.chunk, &SIZES))),
            ("mtu", Some(self.mtu.to_string())),
        ];
        let given = values.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let told = |(key, value): &(&str, String)| {
            !bowline_planner::State::DEFAULTS.contains(&(key, value.as_str()))
        };
        given.filter(told).map(|(key, value)| format!("{key}={value}\n")).collect()
    }
}

const RATES: [(u64, &str); 5] = [
    (1_000_000_000_000, "Tbps"),
    (1_000_000_000, "Gbps"),
    (1_000_000, "Mbps"),
    (1_000, "kbps"),
    (1, "bps"),
];
const TIMES: [(u64, &str); 4] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
const SIZES: [(u64, &str); 5] =
    [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];

/// Writes a value as a whole number of the largest unit that divides it.
fn in_units(value: u64, units: &[(u64, &str)]) -> String {
    let found = units.iter().find(|(unit, _)| value >= *unit && value.is_multiple_of(*unit));
    let (unit, name) = found.copied().unwrap_or((1, ""));
    format!("{}{name}", value / unit)
}

/// A loss with all digits, in the syntax of [`parse::loss`].
fn loss_text(loss: &Loss) -> String {
    match loss {
        Loss::Packet(p) | Loss::Chunk(p) => format!("{p:e}"),
        Loss::Bursts(m) => {
            format!("ge({:e},{:e},{:e},{:e})", m.to_bad, m.to_good, m.loss_bad, m.loss_good)
        }
    }
}

/// The planner's error, with the name of the option that caused it.
pub(super) fn named(error: PlanError) -> String {
    let option = match error.what {
        "ec k,m" => "--ec".to_owned(),
        "lowar r,c" => "--lowar".to_owned(),
        "bursts" => "--loss".to_owned(),
        what => format!("--{}", what.replace(' ', "-")),
    };
    let example = match error.what {
        "bandwidth" => "400Gbps",
        "rtt" => "25ms",
        "bursts" => "'ge(1e-5,12%)'",
        "size" => "128MiB",
        "chunk" => "64KiB",
        _ => error.example,
    };
    format!("{option}: {}: write `{option} {example}`", error.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explorers_state_reads_back_as_the_same_values() {
        assert_eq!(parse::rate(&in_units(400_000_000_000, &RATES)), Ok(400_000_000_000));
        assert_eq!(in_units(400_000_000_000, &RATES), "400Gbps");
        assert_eq!(in_units(1_500_000_000, &RATES), "1500Mbps");
        assert_eq!(in_units(25_000_000, &TIMES), "25ms");
        assert_eq!(in_units(4096, &SIZES), "4KiB");
        assert_eq!(parse::size(&in_units(5_000_000, &SIZES)), Ok(5_000_000));
        for text in ["1e-5", "0.123%", "ge(1e-5,12%)", "ge(1e-5,12%,90%,1e-7)", "0"] {
            let loss = parse::loss(text).unwrap();
            assert_eq!(parse::loss(&loss_text(&loss)), Ok(loss), "{text}");
        }
    }
}
