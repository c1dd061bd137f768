//! `bowline sim`: runs the protocol in virtual time.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bowline_sim::attack::Attacker;
use bowline_sim::storm::{Failure, Outcome, SeedReport, Totals, run_many};
use bowline_sim::{
    cm_storm, collective_storm, failover_storm, multicast_storm, sdr_storm, sealed_storm, storm,
    xp_storm,
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::{experiment, output};

/// Arguments of `bowline sim`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline sim storm                            a thousand random scenarios\n  \
    bowline sim storm --seeds 10000              ten thousand of them\n  \
    bowline sim storm --seed 42 --trace 42.log   one of them again, with a log of its events\n  \
    bowline sim storm --sdr                      the same for SDR and its schemes\n  \
    bowline sim storm --failover                 the same with two NICs per host, which die\n  \
    bowline sim storm --xp                       the same for XP: deadlines, preemption, late packets\n  \
    bowline sim storm --multicast                the same for groups behind switches that merge\n  \
    bowline sim storm --cm                       the same for connection setup\n  \
    bowline sim storm --collective               ranks that lose packets, stall and die\n  \
    bowline sim storm --sealed                   sealed connections, and an attacker on the path\n  \
    bowline sim run fig10 --quick                what loss costs each scheme over a long cable\n\n\
    The same seed gives the same events and the same trace hash on every machine.")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Run random scenarios with faults, one per seed, and check every rule of the transport
    Storm(StormArgs),
    /// Reproduce figures of papers in virtual time, with the real protocol code
    Run(experiment::RunArgs),
}

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline sim storm --seeds 10000 --jobs 2\n  \
    bowline sim storm --start 5000 --seeds 100 --json\n  \
    bowline sim storm --seed 42 --trace 42.log\n  \
    bowline sim storm --sdr --seeds 2000\n  \
    bowline sim storm --failover --seeds 2000\n  \
    bowline sim storm --attacker --seeds 500\n  \
    bowline sim storm --xp --seeds 2000\n  \
    bowline sim storm --multicast --seeds 2000\n  \
    bowline sim storm --cm --seeds 10000\n  \
    bowline sim storm --collective --seeds 500\n  \
    bowline sim storm --sealed --seeds 500\n\n\
    Exit code 1 if a seed broke a rule; the command that replays it is printed.")]
struct StormArgs {
    /// Number of seeds [default: 1000, or 1 with --seed]
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// First seed
    #[arg(long, default_value_t = 0, value_name = "S0")]
    start: u64,
    /// This seed, or with --seeds the first of them
    #[arg(long, value_name = "S", conflicts_with = "start")]
    seed: Option<u64>,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// SDR and its reliability schemes instead of the NIC's own transports
    #[arg(long, conflicts_with = "failover")]
    sdr: bool,
    /// XP (best effort with deadlines) alone
    #[arg(long, conflicts_with_all = ["failover", "sdr"])]
    xp: bool,
    /// Reliable multicast: groups over trees of switches that copy and merge
    #[arg(long, conflicts_with_all = ["failover", "sdr", "xp"])]
    multicast: bool,
    /// The connection manager alone: connecting, accepting, disconnecting, and processes that die
    #[arg(long, conflicts_with_all = ["failover", "sdr", "xp", "multicast"])]
    cm: bool,
    /// Collective operations of several ranks, over RC and over XP with bounds
    #[arg(long, conflicts_with_all = ["failover", "sdr", "xp", "multicast", "cm", "attacker"])]
    collective: bool,
    /// Sealed connections, some with failover, with frequent key changes and an attacker on the
    /// path
    #[arg(long, conflicts_with_all = ["failover", "sdr", "xp", "multicast", "cm", "collective"])]
    sealed: bool,
    /// Two NICs per host, with connections that move between them
    #[arg(long)]
    failover: bool,
    /// Add an attacker who forges packets but knows no secrets to every seed, instead of only to
    /// those that draw one
    #[arg(long)]
    attacker: bool,
    /// Write a readable log of the seed's events
    #[arg(long, value_name = "FILE", requires = "seed")]
    trace: Option<PathBuf>,
}

impl StormArgs {
    fn kind(&self) -> StormKind {
        let kinds = [
            (self.sdr, StormKind::Sdr),
            (self.failover, StormKind::Failover),
            (self.xp, StormKind::Xp),
            (self.multicast, StormKind::Multicast),
            (self.cm, StormKind::Cm),
            (self.collective, StormKind::Collective),
            (self.sealed, StormKind::Sealed),
        ];
        kinds.into_iter().find(|(is_asked, _)| *is_asked).map_or(StormKind::Plain, |(_, kind)| kind)
    }

    fn attacker(&self) -> Attacker {
        if self.attacker { Attacker::Always } else { Attacker::Drawn }
    }

    /// The options that select the scenario of a seed.
    fn flags(&self) -> String {
        let attacker = if self.attacker { " --attacker" } else { "" };
        format!("{}{attacker}", self.kind().flag())
    }
}

/// The kind of storm.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StormKind {
    Plain,
    Sdr,
    Failover,
    Xp,
    Multicast,
    Cm,
    Collective,
    Sealed,
}

impl StormKind {
    fn run_seed(self) -> fn(u64, Attacker) -> SeedReport {
        match self {
            StormKind::Plain => storm::run_seed,
            StormKind::Sdr => sdr_storm::run_seed,
            StormKind::Failover => failover_storm::run_seed,
            StormKind::Xp => xp_storm::run_seed,
            StormKind::Multicast => multicast_storm::run_seed,
            StormKind::Cm => cm_storm::run_seed,
            StormKind::Collective => collective_storm::run_seed,
            StormKind::Sealed => sealed_storm::run_seed,
        }
    }

    fn run_seed_traced(self) -> fn(u64, Attacker, Box<dyn Write>) -> io::Result<SeedReport> {
        match self {
            StormKind::Plain => storm::run_seed_traced,
            StormKind::Sdr => sdr_storm::run_seed_traced,
            StormKind::Failover => failover_storm::run_seed_traced,
            StormKind::Xp => xp_storm::run_seed_traced,
            StormKind::Multicast => multicast_storm::run_seed_traced,
            StormKind::Cm => cm_storm::run_seed_traced,
            StormKind::Collective => collective_storm::run_seed_traced,
            StormKind::Sealed => sealed_storm::run_seed_traced,
        }
    }

    /// The option that selects it.
    fn flag(self) -> &'static str {
        match self {
            StormKind::Plain => "",
            StormKind::Sdr => " --sdr",
            StormKind::Failover => " --failover",
            StormKind::Xp => " --xp",
            StormKind::Multicast => " --multicast",
            StormKind::Cm => " --cm",
            StormKind::Collective => " --collective",
            StormKind::Sealed => " --sealed",
        }
    }
}

/// Maximum number of failing seeds that are printed; one is enough to start with.
const MAX_FAILURES_SHOWN: usize = 5;

/// Runs `bowline sim`.
pub(crate) fn run(args: SimArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.command {
        SimCommand::Storm(args) => run_storm(&args),
        SimCommand::Run(args) => experiment::run(&args),
    }
}

fn run_storm(args: &StormArgs) -> Result<ExitCode, Box<dyn Error>> {
    if let (Some(seed), Some(path)) = (args.seed, &args.trace) {
        trace(args, seed, path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    let (first, default_count) = match args.seed {
        Some(seed) => (seed, 1),
        None => (args.start, 1_000),
    };
    let count = args.seeds.unwrap_or(default_count);
    let seeds = first..first.checked_add(count).ok_or("seeds end at 2^64 - 1")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bar = progress_bar(seeds.end - seeds.start, args.json);
    let failed = AtomicU64::new(0);
    let started = Instant::now();
    let (kind, flags, attacker) = (args.kind(), args.flags(), args.attacker());
    let run = |seed| kind.run_seed()(seed, attacker);
    let outcome = run_many(seeds, args.jobs.unwrap_or(cores), run, |_, failure| {
        bar.inc(1);
        if failure.is_some() {
            let count = failed.fetch_add(1, Ordering::Relaxed) + 1;
            bar.set_message(format!("{count} failed"));
        }
        true
    });
    bar.finish_and_clear();
    let seconds = started.elapsed().as_secs_f64();
    let text = if args.json {
        serde_json::to_string_pretty(&to_json(&outcome, &flags, seconds))? + "\n"
    } else {
        totals_text(&outcome.totals, kind, seconds)
            + &failures_text(&outcome.failures, &flags)
            + &verdict(outcome.totals.seeds, outcome.failures.len())
    };
    match io::stdout().write_all(text.as_bytes()) {
        // The reader, e.g. `head`, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the log of a seed's events. If an engine panics, the log ends there, and the run that
/// follows reports the panic.
fn trace(args: &StormArgs, seed: u64, path: &Path) -> io::Result<()> {
    let log = Box::new(BufWriter::new(File::create(path)?));
    let (run, attacker) = (args.kind().run_seed_traced(), args.attacker());
    if let Ok(report) = catch_unwind(|| run(seed, attacker, log)) {
        report?;
    }
    eprintln!("events of seed {seed}: {}", path.display());
    Ok(())
}

fn progress_bar(seeds: u64, json: bool) -> ProgressBar {
    if json || seeds == 1 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left {msg}");
    ProgressBar::new(seeds).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn totals_text(totals: &Totals, kind: StormKind, seconds: f64) -> String {
    let mut text = format!(
        "{} seeds in {seconds:.1} s ({:.0} seeds/s): {} packets, {:.1} s of virtual time\n\
         trace hash {:016x}\n",
        totals.seeds,
        totals.seeds as f64 / seconds,
        totals.packets,
        totals.virtual_ns as f64 / 1e9,
        totals.trace_hash,
    );
    let coverage = &totals.coverage;
    let kinds = coverage.ops.iter().map(|(kind, n)| (format!("{kind:?}"), n));
    let engines = coverage.nic.iter().map(|(name, _, n)| (name.replace('_', " "), n));
    let shims = coverage.fec.iter().map(|(name, _, n)| (name.replace('_', " "), n));
    text += &section("faults", totals.faults.iter().map(owned));
    if !coverage.attack.is_empty() {
        text += &section("attacker", coverage.attack.iter().map(owned));
    }
    if kind == StormKind::Cm {
        return text + &section("application", coverage.cm.iter().map(owned));
    }
    if matches!(kind, StormKind::Failover | StormKind::Sealed) {
        text += &section("failover", coverage.failover.iter().map(owned));
    }
    if kind == StormKind::Collective {
        text += &section("ranks", coverage.collective.iter().map(owned));
    } else if kind == StormKind::Xp {
        text += &section("application", coverage.xp.iter().map(owned));
    } else if kind == StormKind::Multicast {
        text += &section("application", coverage.multicast.iter().map(owned));
    } else if kind == StormKind::Sdr {
        text += &section("application", coverage.sdr.iter().map(owned));
    } else {
        text += &section("operations", kinds);
        text += &section("application", coverage.iter().map(owned));
        text += &section("FEC", shims);
    }
    text + &section("engines", engines)
}

fn owned((name, n): (&'static str, u64)) -> (String, u64) {
    (name.to_owned(), n)
}

fn section(title: &str, rows: impl Iterator<Item = (String, u64)>) -> String {
    let rows: String = rows.map(|(name, n)| format!("  {name:<28} {n:>14}\n")).collect();
    format!("{title}\n{rows}")
}

fn failures_text(failures: &[Failure], flags: &str) -> String {
    let mut text = String::new();
    for failure in failures.iter().take(MAX_FAILURES_SHOWN) {
        text += &format!("\nseed {} failed\n", failure.seed);
        if let Some(panic) = &failure.panic {
            text += &format!("  panic: {panic}\n");
        }
        for violation in &failure.violations {
            text += &format!("  {violation}\n");
        }
        text += &format!("  replay: {}\n", replay_command(failure.seed, flags));
    }
    if failures.len() > MAX_FAILURES_SHOWN {
        let seeds: Vec<String> = failures.iter().map(|f| f.seed.to_string()).collect();
        text += &format!("\n{} seeds failed: {}\n", failures.len(), seeds.join(" "));
    }
    text
}

/// The last line: how the storm ended.
fn verdict(seeds: u64, failed: usize) -> String {
    match failed {
        0 => format!("storm passed: {seeds} seeds\n"),
        _ => format!("storm failed: {failed} of {seeds} seeds broke a rule\n"),
    }
}

fn replay_command(seed: u64, flags: &str) -> String {
    format!("bowline sim storm{flags} --seed {seed} --trace storm-{seed}.log")
}

fn to_json(outcome: &Outcome, flags: &str, seconds: f64) -> Value {
    let totals = &outcome.totals;
    let table = |rows: &mut dyn Iterator<Item = (String, u64)>| {
        Value::Object(rows.map(|(name, n)| (name, Value::from(n))).collect::<Map<_, _>>())
    };
    let failures: Vec<Value> = outcome
        .failures
        .iter()
        .map(|failure| {
            json!({
                "seed": failure.seed,
                "panic": failure.panic,
                "violations": failure.violations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "replay": replay_command(failure.seed, flags),
            })
        })
        .collect();
    output::versioned(json!({
        "ok": outcome.failures.is_empty(),
        "seeds": totals.seeds,
        "seconds": seconds,
        "seeds_per_second": totals.seeds as f64 / seconds,
        "packets": totals.packets,
        "virtual_seconds": totals.virtual_ns as f64 / 1e9,
        "trace_hash": format!("{:016x}", totals.trace_hash),
        "attacker": table(&mut totals.coverage.attack.iter().map(owned)),
        "failover": table(&mut totals.coverage.failover.iter().map(owned)),
        "sdr": table(&mut totals.coverage.sdr.iter().map(owned)),
        "xp": table(&mut totals.coverage.xp.iter().map(owned)),
        "multicast": table(&mut totals.coverage.multicast.iter().map(owned)),
        "cm": table(&mut totals.coverage.cm.iter().map(owned)),
        "collective": table(&mut totals.coverage.collective.iter().map(owned)),
        "operations": table(&mut totals.coverage.ops.iter().map(|(kind, n)| (format!("{kind:?}"), n))),
        "faults": table(&mut totals.faults.iter().map(owned)),
        "application": table(&mut totals.coverage.iter().map(owned)),
        "engines": table(&mut totals.coverage.nic.iter().map(|(name, _, n)| (name.to_owned(), n))),
        "fec": table(&mut totals.coverage.fec.iter().map(|(name, _, n)| (name.to_owned(), n))),
        "failures": failures,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_says_how_it_ended() {
        assert_eq!(verdict(20, 0), "storm passed: 20 seeds\n");
        assert_eq!(verdict(20, 3), "storm failed: 3 of 20 seeds broke a rule\n");
    }
}
