//! LoWAR's figures again, with the real engines: in the simulator, where 10 Gbit/s over 80 ms are
//! no matter of the machine, and over real sockets through an impaired link.

mod auto;
mod bars;
mod callgrind;
mod loopback;
mod udp;

use std::error::Error;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use bowline_sim::experiment::{LowarFigure, lowar};
use clap::{Parser, ValueEnum};

use crate::bars::Bars;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures FEC under one connection against go-back-N, beside what theory and the paper say.
#[derive(Parser)]
#[command(name = "fec")]
struct Args {
    /// Which parts; all unless given
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Seed of all losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Goodput against loss at 40 and 80 ms (figure 9)
    Goodput,
    /// Completion times of 1 MB messages (figure 10)
    Completion,
    /// Bursts of losses (figure 11)
    Bursts,
    /// Small messages (figure 12)
    Small,
    /// Latency that FEC adds (figure 13)
    Latency,
    /// Automatic FEC on a link that changes
    Auto,
    /// Real sockets through an impaired link
    Udp,
    /// Instructions per packet when nothing is lost; needs valgrind
    Cost,
    /// Bandwidth on loopback with FEC off and on
    Loopback,
}

/// The parts that are figures of the paper, measured in the simulator.
const FIGURES: [(Part, LowarFigure); 5] = [
    (Part::Goodput, LowarFigure::Goodput),
    (Part::Completion, LowarFigure::Completion),
    (Part::Bursts, LowarFigure::Bursts),
    (Part::Small, LowarFigure::Small),
    (Part::Latency, LowarFigure::Latency),
];

fn main() -> ExitCode {
    let args = Args::parse();
    status("fec", measure(&args))
}

fn measure(args: &Args) -> Result<bool> {
    let wants = |part| args.parts.is_empty() || args.parts.contains(&part);
    let mut bars = Bars::default();
    for (_, figure) in FIGURES.into_iter().filter(|(part, _)| wants(*part)) {
        let figure = lowar(figure, args.seed, false)?;
        println!("{figure}");
        bars.add_figure(&figure);
    }
    if wants(Part::Auto) {
        auto::phases(args.seed, &mut bars)?;
    }
    if wants(Part::Udp) {
        udp::goodput(args.seed, &mut bars)?;
    }
    if wants(Part::Cost) {
        callgrind::cost(&mut bars)?;
    }
    if wants(Part::Loopback) {
        loopback::bandwidth(&mut bars)?;
    }
    print!("{}", bars.text());
    if args.json {
        println!("{}", bars.json());
    }
    Ok(!args.check || bars.hold())
}
