//! `bowline sim run fig10`: the paper's 128 MiB write at full size, with every packet simulated.

use std::error::Error;
use std::process::ExitCode;

use bowline_sim::experiment::{Fig10Config, Fig10Row, SCHEMES, fig10};
use serde_json::json;

use super::{RunArgs, jobs, verdict};
use crate::output;

/// Erasure coding's slowdown stays below this, up to a chunk loss of 1e-2.
const MAX_EC_SLOWDOWN: f64 = 1.1;
/// Selective repeat's slowdown is at least this at 1e-3 and 1e-2, with timeouts and with NACKs.
const MIN_SR_SLOWDOWN: [(&str, f64); 2] = [("sr-rto", 2.0), ("sr-nack", 1.3)];

/// Runs the experiment.
pub(super) fn run(args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    let mut config = if args.quick { Fig10Config::quick() } else { Fig10Config::full() };
    config.repetitions = args.repetitions.unwrap_or(config.repetitions).max(1);
    let messages = config.chunk_losses.len() * SCHEMES.len() * config.repetitions as usize;
    let bar = output::progress(messages as u64, "messages of 128 MiB");
    let rows = fig10(&config, jobs(args), || bar.inc(1));
    bar.finish_and_clear();
    let broken = broken_bars(&rows);
    if args.json {
        output::say(&to_json(&rows, config.repetitions, &broken));
    } else {
        print!("{}", table(&rows, config.repetitions, &broken));
    }
    Ok(verdict(args, broken.len()))
}

/// The ways in which the rows contradict the paper's trend.
fn broken_bars(rows: &[Fig10Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows {
        let Fig10Row { scheme, chunk_loss, mean_slowdown, failed, .. } = row;
        let at = format!("{scheme} at {chunk_loss:.0e}: {mean_slowdown:.2}");
        if *failed > 0 {
            broken.push(format!("{at}, {failed} messages failed"));
        }
        if *scheme == "ec-mds" && *chunk_loss <= 1e-2 && *mean_slowdown >= MAX_EC_SLOWDOWN {
            broken.push(format!("{at}, not below {MAX_EC_SLOWDOWN}"));
        }
        let least = MIN_SR_SLOWDOWN.iter().find(|(name, _)| name == scheme);
        if let Some((_, least)) = least.filter(|_| (1e-3..=1e-2).contains(chunk_loss))
            && mean_slowdown < least
        {
            broken.push(format!("{at}, below {least}"));
        }
    }
    broken
}

fn table(rows: &[Fig10Row], repetitions: u32, broken: &[String]) -> String {
    let mut text = format!(
        "128 MiB over 400 Gbit/s and 25 ms, {repetitions} messages each: slowdown over size / bandwidth + RTT\n\
         {:<10} {:<8} {:>8} {:>8} {:>8} {:>8} {:>10}\n",
        "chunk loss", "scheme", "mean", "worst", "model", "resent", "recovered",
    );
    for row in rows {
        text += &format!(
            "{:<10} {:<8} {:>8.3} {:>8.3} {:>8.3} {:>8.1} {:>10.1}\n",
            format!("{:.0e}", row.chunk_loss),
            row.scheme,
            row.mean_slowdown,
            row.worst_slowdown,
            row.model,
            row.resent,
            row.recovered,
        );
    }
    for bar in broken {
        text += &format!("DOES NOT HOLD: {bar}\n");
    }
    text
}

fn to_json(rows: &[Fig10Row], repetitions: u32, broken: &[String]) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "scheme": row.scheme,
                "chunk_loss": row.chunk_loss,
                "mean_slowdown": row.mean_slowdown,
                "worst_slowdown": row.worst_slowdown,
                "model": row.model,
                "resent": row.resent,
                "recovered": row.recovered,
                "failed": row.failed,
            })
        })
        .collect();
    json!({ "version": output::JSON_VERSION, "repetitions": repetitions, "rows": rows, "broken": broken, "ok": broken.is_empty() })
        .to_string()
}
