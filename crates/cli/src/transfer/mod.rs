//! `bowline send` and `bowline recv`: files and directories over a reliable queue pair.
//!
//! A file is cut into blocks of 16 MiB. Each message of the queue pair carries one block, or
//! several blocks of small files ([`tree`]). Threads read, hash and write; the main thread of each
//! end only coordinates ([`sender`], [`receiver`]). Names and hashes travel over the TCP connection
//! that set up the queue pair ([`message`], [`control`]), after the ends have authenticated each
//! other ([`crate::peers`], [`serve`]). Whatever a sender sends, the receiver writes only inside
//! its directory ([`dir`]). It hashes what an interrupted transfer has left before it relies on it
//! ([`store`], [`partial`]). An entry that cannot be transferred is left out ([`failures`]).

mod args;
mod control;
mod digest;
mod dir;
mod failures;
mod files;
mod filter;
mod fleet;
pub(crate) mod fuzzing;
mod list;
mod message;
mod meter;
mod partial;
mod pipe;
mod receiver;
mod report;
mod scan;
mod sender;
mod serve;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod turns;
mod xattr;

use std::error::Error;
use std::process::ExitCode;

use bowline::Channel;
use serde_json::json;

pub(crate) use args::{PORT, RecvArgs, SendArgs};
use meter::Show;
use report::Report;
use scan::Source;
pub(crate) use serve::recv;

use crate::peers::{Target, Trust};
use crate::{interrupt, output, peers};

/// Exit status of a transfer that left something out.
const LEFT_OUT: u8 = 3;

/// Why a transfer failed. Threads pass it on.
type Failure = Box<dyn Error + Send + Sync>;

/// Sends the files that the arguments name.
pub(crate) fn send(args: &SendArgs) -> Result<ExitCode, Box<dyn Error>> {
    interrupt::watch();
    finish(try_send(args), "sent", args.show())
}

fn try_send(args: &SendArgs) -> Result<Report, Failure> {
    let (paths, mut hosts) = args.paths_and_hosts()?;
    let options = args.scan_options()?;
    let spool;
    let source = if pipe::is_stdio(paths) {
        spool = pipe::Spool::from_stdin(&args.name)?;
        Source::single(spool.path(), &args.name)?
    } else {
        Source::scan(paths, &options)?
    };
    source.notes.iter().for_each(|note| output::notice(&output::plain(note)));
    if hosts.len() > 1 {
        return fleet::send(args, &source, &options.filter, reach_all(args, &hosts)?);
    }
    let target = match hosts.pop() {
        Some(host) => host,
        None => peers::discovery::find()?,
    };
    let channel = peers::connect(&target, &args.trust())?;
    sender::send(args, &source, &options.filter, channel)
}

/// Connects to several receivers. Returns their names and channels.
fn reach_all(args: &SendArgs, hosts: &[Target]) -> Result<(Vec<String>, Vec<Channel>), Failure> {
    let (mut names, mut channels) = (Vec::new(), Vec::new());
    // A receiver that refuses is named here.
    let trust = Trust { early: false, ..args.trust() };
    for target in hosts {
        let name = target.to_string();
        let channel = peers::connect(target, &trust);
        channels.push(channel.map_err(|e| format!("{name}: {e}"))?);
        names.push(name);
    }
    Ok((names, channels))
}

/// Reports the result to the user, also by the exit status.
fn finish(
    outcome: Result<Report, Failure>,
    verb: &str,
    show: Show,
) -> Result<ExitCode, Box<dyn Error>> {
    match outcome {
        Ok(report) => {
            report.print(verb, show);
            Ok(match (report.has_failures(), report.is_partial()) {
                (true, _) => ExitCode::FAILURE,
                (false, true) => ExitCode::from(LEFT_OUT),
                (false, false) => ExitCode::SUCCESS,
            })
        }
        Err(e) => {
            if show.json {
                let (version, message) = (output::JSON_VERSION, e.to_string());
                println!("{}", json!({ "version": version, "event": "error", "message": message }));
            }
            match interrupt::asked() {
                Some(signal) => {
                    output::print_error(&*e);
                    Ok(ExitCode::from(128_u8.saturating_add(signal as u8)))
                }
                None => Err(e),
            }
        }
    }
}
