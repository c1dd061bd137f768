//! How long single messages take over an emulated long-haul link, by scheme.
//!
//! One message at a time, from the write until the writer knows that all of it has arrived, over
//! real sockets on loopback with the link's delay, rate and loss in between. The ideal is what the
//! message needs on a link without loss: its bytes at the link's rate, and a round trip.

mod report;
mod transfer;

use std::error::Error;
use std::process::ExitCode;

use bowline_bench_common::bars::status;
use clap::Parser;

use report::{Report, Row};
use transfer::{Link, gbn, scheme};

/// Measure how long messages take over a lossy long-haul link, by scheme
///
/// Two NICs in this process, on two loopback addresses, with an emulated link between them. Takes
/// about three minutes with the defaults.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
    bench/completion/run --json --check\n  \
    bench/completion/run --runs 20\n  \
    bench/completion/run --loss 1 --rtt-ms 80 --runs 50")]
struct Args {
    /// Messages for each scheme
    #[arg(long, default_value_t = 200)]
    runs: u32,
    /// Bytes of a message, in MiB
    #[arg(long, default_value_t = 16)]
    size_mib: u32,
    /// Loss of packets in percent
    #[arg(long, default_value_t = 0.1)]
    loss: f64,
    /// Round trip in milliseconds
    #[arg(long, default_value_t = 40)]
    rtt_ms: u32,
    /// The link's rate in Gbit/s
    #[arg(long, default_value_t = 1.0)]
    gbps: f64,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Fail if a bar does not hold
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    status("completion", run(&Args::parse()))
}

fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let link = Link {
        rtt_ms: args.rtt_ms,
        bps: (args.gbps * 1e9) as u64,
        loss_percent: args.loss,
        seed: args.seed,
    };
    let bytes = args.size_mib as usize * (1 << 20);
    let ideal_ms = bytes as f64 * 8e3 / link.bps as f64 + f64::from(args.rtt_ms);
    let mut report = Report::new(ideal_ms);
    for name in ["ec-mds", "ec-xor", "sr-nack", "sr-rto"] {
        eprintln!("{name}: {} messages", args.runs);
        report.add(Row::new(name, ideal_ms, &scheme(&link, name, bytes, args.runs)?));
    }
    // For contrast; each takes so long that a few show it.
    let few = args.runs.div_ceil(10).min(20);
    eprintln!("gbn: {few} messages");
    report.add(Row::new("gbn", ideal_ms, &gbn(&link, bytes, few)?));
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}
