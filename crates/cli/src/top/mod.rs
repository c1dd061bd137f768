//! `bowline top`: live activity of the devices of this host's processes.

mod metrics;
mod sample;
mod screen;
mod serve;
mod view;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use bowline_link::units;
use clap::Args;
use serde_json::json;

use crate::http;
use crate::interrupt;
use crate::output::{self, JSON_VERSION};
use sample::{Row, Sample, rows};
use screen::{Key, Screen};

/// Where metrics are served by default: on loopback, because they name programs and peers.
const DEFAULT_LISTEN: &str = "127.0.0.1:18518";
/// The shortest interval. Each one sends a request to every process.
const SHORTEST: Duration = Duration::from_millis(100);
/// How often a wait checks whether the program should exit.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Watch rates, losses, round trips and failovers of this host's processes
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline top                               every device of your processes, once a second\n  \
    bowline top -i 5s                         every five seconds\n  \
    bowline top --once                        one table, then end\n  \
    bowline top --once --json | jq '.devices[].rtt_max_us'\n  \
    bowline top --prometheus                  serve http://127.0.0.1:18518/metrics as well\n  \
    bowline top --prometheus 0.0.0.0:9400     on all addresses\n\n\
    It shows processes of this user on this host (in this network namespace). RESENT counts packets that \
    this end sent again. DROPPED counts packets that this end threw away or that its --link lost. RTT is the \
    smoothed round trip, of the fastest and the slowest connection. MOVED counts connections that failover has \
    moved. Press q to quit. Without a terminal it prints a table for each interval, and only serves if \
    --prometheus is given.")]
pub(crate) struct TopArgs {
    /// Refresh interval, e.g. 500ms or 5s
    #[arg(short, long, default_value = "1s", value_name = "TIME", value_parser = parse_interval)]
    interval: Duration,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Print one JSON object per interval, each on its own line
    #[arg(long)]
    json: bool,
    /// Serve the counters of all devices to Prometheus, on PORT of loopback or on ADDRESS:PORT
    /// [default: 127.0.0.1:18518]
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = DEFAULT_LISTEN,
          value_parser = parse_listen)]
    prometheus: Option<SocketAddr>,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    http::parse_listen(text, DEFAULT_LISTEN)
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text)? {
        interval if interval >= SHORTEST => Ok(interval),
        _ => Err(format!("invalid interval `{text}`: the shortest is 100ms")),
    }
}

/// Shows, prints or serves until told to exit.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, Box<dyn Error>> {
    interrupt::watch();
    if let Some(addr) = args.prometheus {
        let at = serve::start(addr)?;
        output::notice(&format!("serving http://{at}/metrics"));
    }
    let on_terminal = io::stdout().is_terminal();
    let outcome = match args {
        TopArgs { once: true, .. } | TopArgs { json: true, .. } => print(args),
        _ if on_terminal => show(args),
        TopArgs { prometheus: Some(_), .. } => {
            while wait(Duration::MAX) {}
            Ok(())
        }
        _ => print(args),
    };
    match outcome {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        outcome => outcome?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for an interval. Returns `false` if interrupted.
fn wait(interval: Duration) -> bool {
    let start = Instant::now();
    while interrupt::asked().is_none() {
        let Some(left) = interval.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
        else {
            return true;
        };
        thread::sleep(left.min(LOOK_EVERY));
    }
    false
}

/// Prints a table or an object for each interval.
fn print(args: &TopArgs) -> io::Result<()> {
    let mut before = Sample::take()?;
    while wait(args.interval) {
        let now = Sample::take()?;
        let rows = rows(&before, &now);
        let text = if args.json {
            let interval_s = (now.at - before.at).as_secs_f64();
            let (version, devices) = (JSON_VERSION, rows);
            json!({ "version": version, "interval_s": interval_s, "devices": devices }).to_string()
        } else {
            view::table(&rows).join("\n")
        };
        writeln!(io::stdout(), "{text}")?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

/// Draws on the terminal, again for each interval.
fn show(args: &TopArgs) -> io::Result<()> {
    let mut before = Sample::take()?;
    let mut screen = Screen::enter()?;
    let mut rows: Vec<Row> = rows(&before, &before);
    loop {
        screen.draw(&view::page(&rows, args.interval))?;
        let until = Instant::now() + args.interval;
        loop {
            if interrupt::asked().is_some() {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match screen.key(left.min(LOOK_EVERY))? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Other) => break,
                None => {}
            }
        }
        let now = Sample::take()?;
        rows = sample::rows(&before, &now);
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_units_and_a_least() {
        assert_eq!(parse_interval("500ms"), Ok(Duration::from_millis(500)));
        assert!(parse_interval("1").unwrap_err().contains("add a unit"));
        assert!(parse_interval("1ms").unwrap_err().contains("100ms"));
    }
}
