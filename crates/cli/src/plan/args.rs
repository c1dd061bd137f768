//! Options of `bowline plan`.

use std::path::PathBuf;

use bowline::LinkProfile;
use bowline_link::units;
use bowline_plan::{
    Axis, Coding, Erasure, GilbertElliott, Goal, Link, Loss, Message, PlanError, Scheme, Transfer,
    rtt_of_distance_s,
};
use clap::{ArgGroup, Args, ValueEnum};

/// Say which reliability scheme suits a link, and how long messages will take
///
/// Completion times are computed, not sampled, by the model of the SDR-RDMA paper: see docs/plan.md.
#[derive(Args)]
#[command(
    group(ArgGroup::new("length").required(true).args(["rtt", "distance"])),
    group(ArgGroup::new("losses").required(true).args(["loss", "chunk_loss"])),
    after_help = "Examples:\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB\n  \
    bowline plan --bandwidth 100Gbps --distance 350km --loss 0.1% --size 1GiB --json\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --chunk-loss 1e-3 --size 128MiB --sweep loss\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB --report plan.html\n  \
    bowline plan --bandwidth 400Gbps --rtt 25ms --loss 1e-5 --size 128MiB --allreduce 4\n  \
    bowline plan --bandwidth 10Gbps --rtt 40ms --loss 0.1% --size 16MiB --receivers 8\n  \
    bowline plan --bandwidth 10Gbps --rtt 40ms --loss 'ge(1e-5,12%)' --size 64MiB")]
pub(crate) struct PlanArgs {
    /// The link's rate, as 400Gbps
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate, allow_hyphen_values = true)]
    bandwidth: u64,
    /// Its round trip, as 25ms
    #[arg(long, value_name = "TIME", value_parser = parse_rtt, allow_hyphen_values = true)]
    rtt: Option<f64>,
    /// Its length instead, as 3750km; 300,000 km/s as in the paper, where fibre has 200,000
    #[arg(long, value_name = "KM", value_parser = parse_distance, allow_hyphen_values = true)]
    distance: Option<f64>,
    /// Loss of packets, as 1e-5 or 0.1%, or in bursts as ge(P,R): P to the bad state, R out of it
    #[arg(long, value_name = "P", value_parser = parse_loss, allow_hyphen_values = true)]
    loss: Option<Loss>,
    /// Loss of whole chunks instead, as 1e-4: the paper's P_drop
    #[arg(long, value_name = "P", value_parser = parse_chunk_loss, allow_hyphen_values = true)]
    chunk_loss: Option<Loss>,
    /// Bytes of a message, as 128MiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    size: u64,
    /// Bytes of a chunk, a multiple of the MTU
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_size,
          allow_hyphen_values = true)]
    chunk: u64,
    /// Payload of a packet
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = parse_size,
          allow_hyphen_values = true)]
    mtu: u64,
    /// Schemes to compare, and to choose from: gbn, sr-rto, sr-nack, ec-mds, ec-xor, lowar,
    /// best-effort [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = parse_scheme)]
    scheme: Vec<&'static str>,
    /// Data and parity chunks of a submessage
    #[arg(long, value_name = "K,M", default_value = "32,8", value_parser = parse_pair,
          allow_hyphen_values = true)]
    ec: (u32, u32),
    /// Round trips that a receiver of coded messages waits before it asks for what failed
    #[arg(long, value_name = "BETA", default_value_t = 0.5, allow_hyphen_values = true)]
    beta: f64,
    /// Round trips until sr-rto sends a chunk again, and coding's fallback
    #[arg(long, value_name = "RTTS", default_value_t = 3.0, allow_hyphen_values = true)]
    rto: f64,
    /// Packets and lanes of a block of LoWAR
    #[arg(long, value_name = "R,C", default_value = "32,1", value_parser = parse_pair,
          allow_hyphen_values = true)]
    lowar: (u32, u32),
    /// What the recommended scheme keeps short
    #[arg(long, value_enum, default_value_t = GoalArg::Mean)]
    goal: GoalArg,
    /// Draw so many messages of each scheme at random as well, as a check on the model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) samples: Option<u32>,
    /// Seed of what is drawn
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(super) seed: u64,
    /// A ring allreduce of that size over so many datacenters as well
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub(super) allreduce: Option<u32>,
    /// The message to so many receivers at once as well: through a multicast group, and by fan-out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) receivers: Option<u32>,
    /// Draw how completion times change with this
    #[arg(long, value_enum, value_name = "AXIS")]
    pub(super) sweep: Option<AxisArg>,
    /// Draw where coding leads over repeating alone, by size and loss on this link
    #[arg(long, conflicts_with = "sweep")]
    pub(super) heatmap: bool,
    /// Where to write what is drawn, as SVG [default: plan-AXIS.svg, plan-heatmap.svg]
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Write everything into one self-contained page
    #[arg(long, value_name = "FILE.html")]
    pub(super) report: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum GoalArg {
    Mean,
    P50,
    P99,
    P999,
}

/// What a sweep changes.
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
    /// The planner's name for it.
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
    /// The message on its link.
    pub(super) fn transfer(&self) -> Result<Transfer, String> {
        Transfer::new(self.link(), self.message()).map_err(named)
    }

    pub(super) fn link(&self) -> Link {
        let rtt_s = self.rtt.or_else(|| self.distance.map(rtt_of_distance_s)).unwrap_or_default();
        let loss = self.loss.or(self.chunk_loss).unwrap_or(Loss::Packet(0.0));
        Link { bandwidth_bps: self.bandwidth as f64, rtt_s, loss }
    }

    pub(super) fn message(&self) -> Message {
        Message { bytes: self.size, chunk_bytes: self.chunk, mtu_bytes: self.mtu }
    }

    /// The schemes of the table.
    pub(super) fn schemes(&self) -> Result<Vec<Scheme>, String> {
        let schemes = Scheme::all().map(|scheme| self.with_parameters(scheme));
        for scheme in &schemes {
            scheme.check().map_err(named)?;
        }
        let wanted =
            |scheme: &Scheme| self.scheme.is_empty() || self.scheme.contains(&scheme.name());
        Ok(schemes.into_iter().filter(wanted).collect())
    }

    /// The schemes to choose from, those that ask for least first: of the other end, and of the CPU. All
    /// of them can be run.
    pub(super) fn candidates(&self) -> Result<Vec<Scheme>, String> {
        const SIMPLEST_FIRST: [&str; 6] = ["gbn", "sr-nack", "sr-rto", "lowar", "ec-xor", "ec-mds"];
        let mut schemes = self.schemes()?;
        schemes.retain(Scheme::is_reliable);
        schemes.sort_by_key(|scheme| SIMPLEST_FIRST.iter().position(|n| *n == scheme.name()));
        if schemes.is_empty() {
            return Err("--scheme: best-effort is no way to be reliable: add one, as in \
                        `--scheme best-effort,sr-nack`"
                .to_owned());
        }
        Ok(schemes)
    }

    pub(super) fn goal(&self) -> Goal {
        match self.goal {
            GoalArg::Mean => Goal::Mean,
            GoalArg::P50 => Goal::Quantile(0.5),
            GoalArg::P99 => Goal::Quantile(0.99),
            GoalArg::P999 => Goal::Quantile(0.999),
        }
    }

    fn with_parameters(&self, scheme: Scheme) -> Scheme {
        match scheme {
            Scheme::SelectiveRepeat { .. } if scheme.name() == "sr-rto" => {
                Scheme::SelectiveRepeat { rto_rtts: self.rto }
            }
            Scheme::Erasure(Erasure { coding, .. }) => self.coded(coding),
            Scheme::Lowar { .. } => Scheme::Lowar { r: self.lowar.0, c: self.lowar.1 },
            other => other,
        }
    }

    fn coded(&self, coding: Coding) -> Scheme {
        let (k, m) = self.ec;
        Scheme::Erasure(Erasure { coding, k, m, beta: self.beta, rto_rtts: self.rto })
    }
}

/// The planner's complaint, with the option that it is about.
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

fn parse_rtt(text: &str) -> Result<f64, String> {
    let rtt_s = units::parse_duration(text)?.as_secs_f64();
    if rtt_s <= 0.0 {
        return Err("there is no round trip of no time: write 25ms or 100us".to_owned());
    }
    Ok(rtt_s)
}

fn parse_distance(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no distance: write 3750km or 500m");
    let (number, scale) = match (text.strip_suffix("km"), text.strip_suffix('m')) {
        (Some(number), _) => (number, 1.0),
        (None, Some(number)) => (number, 1e-3),
        (None, None) => return Err(wrong()),
    };
    let kilometres = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if (1e-6..=1e9).contains(&kilometres) { Ok(kilometres) } else { Err(wrong()) }
}

/// As in a link profile: `1e-5`, `0.1%`, `ge(p,r)`, `ge(p,r,bad,good)`.
fn parse_loss(text: &str) -> Result<Loss, String> {
    let wrong = || {
        format!("`{text}` is no probability below 1: write 1e-5, 0.1% or, in bursts, ge(1e-5,12%)")
    };
    let profile: LinkProfile = format!("loss={text}").parse().map_err(|_| wrong())?;
    match profile.faults.loss {
        bowline_link::Loss::None => Ok(Loss::Packet(0.0)),
        bowline_link::Loss::Iid(p) if p < bowline_link::Prob::ALWAYS => {
            Ok(Loss::Packet(p.as_f64()))
        }
        bowline_link::Loss::GilbertElliott(model) => Ok(Loss::Bursts(GilbertElliott {
            to_bad: model.good_to_bad.as_f64(),
            to_good: model.bad_to_good.as_f64(),
            loss_good: model.loss_good.as_f64(),
            loss_bad: model.loss_bad.as_f64(),
        })),
        bowline_link::Loss::Iid(_) | bowline_link::Loss::Bursts(_) => Err(wrong()),
    }
}

fn parse_chunk_loss(text: &str) -> Result<Loss, String> {
    match units::parse_probability(text) {
        Ok(p) if p < 1.0 => Ok(Loss::Chunk(p)),
        _ => Err(format!("`{text}` is no probability below 1: write 1e-4 or 0.1%")),
    }
}

/// A size with its unit, or as `bowline perf` takes them: bytes, or K, M, G, T of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let short = ["K", "M", "G", "T"].iter().any(|unit| text.ends_with(unit));
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unit = if short {
        "iB"
    } else if plain {
        "B"
    } else {
        ""
    };
    match units::parse_size(&format!("{text}{unit}")) {
        Ok(0) => Err("there is no message of no bytes: write 128MiB".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("`{text}` is no size: write 128MiB, 64KiB or 4096")),
    }
}

fn parse_scheme(text: &str) -> Result<&'static str, String> {
    let names = Scheme::all().map(|scheme| scheme.name());
    let found = names.into_iter().find(|name| *name == text.trim());
    found.ok_or_else(|| format!("there is no `{text}`: it is one of {}", names.join(", ")))
}

fn parse_pair(text: &str) -> Result<(u32, u32), String> {
    let pair = text
        .split_once(',')
        .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.ok_or_else(|| format!("`{text}` is not two numbers: write 32,8"))
}
