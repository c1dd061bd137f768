//! Measures Bowline against bare UDP sockets in one run, because on a shared machine only ratios
//! taken side by side mean anything.
//!
//! Every measurement is a pair of processes, one on CPU 0 and one on CPU 1. Rounds are interleaved
//! (bare, Bowline, bare, Bowline, …) so that a slow minute hits both; medians are compared. The
//! bare peer is measured in several variants and its best median counts.

mod bowline;
mod raw;
mod report;

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};

use bowline_bench_common::bars::status;
use clap::{Parser, Subcommand};

use crate::raw::{Calls, Wait};
use crate::report::Report;

/// CPU of the sending (or asking) process.
const SENDER_CPU: usize = 0;
/// CPU of the receiving (or answering) process.
const RECEIVER_CPU: usize = 1;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Compares `bowline perf` with bare UDP sockets: goodput of 1 MiB writes, latency of 8 B writes.
#[derive(Parser)]
#[command(name = "raw-ratio", args_conflicts_with_subcommands = true)]
struct Args {
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
    /// Exit with 1 if a bar does not hold
    #[arg(long)]
    check: bool,
    /// Length of each measurement, in seconds
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Rounds; medians over them are compared
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Let the scheduler place the processes, rather than one on each of two CPUs
    #[arg(long)]
    unpinned: bool,
    /// The bowline program to measure
    #[arg(long, default_value = "bowline")]
    bowline: PathBuf,
    /// Measure only the bare sockets
    #[arg(long)]
    raw_only: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

/// One end of a bare measurement; this program starts itself in these roles.
#[derive(Subcommand)]
#[command(hide = true)]
enum Role {
    #[command(hide = true)]
    BulkRecv { calls: Calls, seconds: f64, cpu: Option<usize> },
    #[command(hide = true)]
    BulkSend { peer: SocketAddrV4, calls: Calls, seconds: f64, cpu: Option<usize> },
    #[command(hide = true)]
    Pong { wait: Wait, cpu: Option<usize> },
    #[command(hide = true)]
    Ping { peer: SocketAddr, wait: Wait, seconds: f64, cpu: Option<usize> },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match args.role {
        Some(role) => play(role).map(|()| true),
        None => measure(&args),
    };
    status("raw-ratio", outcome)
}

/// Runs all rounds and prints the report; `false` if `--check` found a bar that does not hold.
fn measure(args: &Args) -> Result<bool> {
    let pin = !args.unpinned;
    let mut report = Report::new(args.runs, args.seconds, pin);
    for run in 1..=args.runs {
        eprintln!("round {run} of {}", args.runs);
        for calls in Calls::ALL {
            report.raw_gbps.add(calls.name(), raw_bulk(calls, args.seconds, pin)?);
        }
        if !args.raw_only {
            report.bowline_gbps.add(
                "write-bw, 1 MiB, MTU 4096",
                bowline::write_bw(&args.bowline, args.seconds, pin)?,
            );
        }
        for wait in Wait::ALL {
            report.raw_lat_us.add(wait.name(), raw_latency(wait, args.seconds, pin)?);
        }
        if !args.raw_only {
            report
                .bowline_lat_us
                .add("write-lat, 8 B", bowline::write_lat(&args.bowline, args.seconds, pin)?);
        }
    }
    print!("{}", report.table());
    if args.json {
        println!("{}", report.json());
    }
    Ok(!args.check || report.holds())
}

/// Gbit/s of UDP payload between two processes with bare sockets.
fn raw_bulk(calls: Calls, seconds: f64, pin: bool) -> Result<f64> {
    let calls_arg = value_name(calls);
    let mut receiver =
        Peer::start(&["bulk-recv", &calls_arg, &seconds.to_string()], pin.then_some(RECEIVER_CPU))?;
    let to = receiver.line()?;
    let longer = (seconds + 0.5).to_string();
    let mut sender =
        Peer::start(&["bulk-send", &to, &calls_arg, &longer], pin.then_some(SENDER_CPU))?;
    let gbps = receiver.line()?.parse()?;
    sender.stop();
    Ok(gbps)
}

/// Median half round trip, in µs, of 8-byte datagrams between two processes with bare sockets.
fn raw_latency(wait: Wait, seconds: f64, pin: bool) -> Result<f64> {
    let wait_arg = value_name(wait);
    let mut pong = Peer::start(&["pong", &wait_arg], pin.then_some(RECEIVER_CPU))?;
    let to = pong.line()?;
    let mut ping =
        Peer::start(&["ping", &to, &wait_arg, &seconds.to_string()], pin.then_some(SENDER_CPU))?;
    Ok(ping.line()?.parse()?)
}

/// Plays one end, printing the address and the result on lines of their own.
fn play(role: Role) -> Result<()> {
    let mut out = std::io::stdout();
    let pin = |cpu: Option<usize>| cpu.map_or(Ok(()), bowline_bench_common::pin);
    match role {
        Role::BulkRecv { calls, seconds, cpu } => {
            pin(cpu)?;
            let socket = bowline_bench_common::udp::loopback_socket()?;
            writeln!(out, "{}", socket.local_addr()?)?;
            writeln!(out, "{}", raw::bulk_recv(&socket, calls, seconds)?)?;
        }
        Role::BulkSend { peer, calls, seconds, cpu } => {
            pin(cpu)?;
            raw::bulk_send(peer, calls, seconds)?;
        }
        Role::Pong { wait, cpu } => {
            pin(cpu)?;
            let socket = bowline_bench_common::udp::loopback_socket()?;
            writeln!(out, "{}", socket.local_addr()?)?;
            raw::pong(&socket, wait)?;
        }
        Role::Ping { peer, wait, seconds, cpu } => {
            pin(cpu)?;
            writeln!(out, "{}", raw::ping(peer, wait, seconds)?)?;
        }
    }
    Ok(())
}

/// This program in another process, stopped when dropped.
struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(args: &[&str], cpu: Option<usize>) -> Result<Peer> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .args(cpu.map(|c| c.to_string()))
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("stdout is piped");
        Ok(Peer { child, lines: BufReader::new(stdout) })
    }

    /// The next line that the process prints.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("a measuring process ended early: its message is above".into());
        }
        Ok(line.trim().to_owned())
    }

    fn stop(&mut self) {
        // It may have ended by itself, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn value_name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().expect("no variant is skipped").get_name().to_owned()
}

fn parse_seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(s),
        _ => Err("must be a number of seconds between 0.1 and 3600".to_owned()),
    }
}
