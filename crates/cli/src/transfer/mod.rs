//! `bowline send` and `bowline recv`: files and directories over a reliable queue pair.
//!
//! A file is cut into blocks of 16 MiB, and blocks, those of small files together, make the messages
//! that the queue pair moves ([`tree`]). Reading, hashing and writing go on in threads beside it;
//! the main thread of each end only decides ([`sender`], [`receiver`]). Names and hashes go over the
//! TCP connection that set the queue pair up ([`message`], [`control`]). What a sender says leads
//! nowhere but into the receiver's directory ([`dir`]), and what an interrupted transfer has left
//! is hashed before it is built upon ([`store`], [`partial`]).

mod args;
mod control;
mod digest;
mod dir;
mod files;
mod message;
mod partial;
mod receiver;
mod report;
mod scan;
mod sender;
mod session;
mod store;
#[cfg(test)]
mod tests;
mod tree;

use std::error::Error;

use bowline::{Connector, Listener};

pub(crate) use args::{RecvArgs, SendArgs};
use dir::Dir;
use report::Report;
use scan::Source;

use crate::output;

/// Why a transfer failed; threads pass it on.
type Failure = Box<dyn Error + Send + Sync>;

/// Sends what the arguments name.
pub(crate) fn send(args: &SendArgs) -> Result<(), Box<dyn Error>> {
    let report = try_send(args).map_err(|e| e as Box<dyn Error>)?;
    report.print("sent", args.json);
    Ok(())
}

fn try_send(args: &SendArgs) -> Result<Report, Failure> {
    let source = Source::scan(&args.paths)?;
    for note in &source.notes {
        eprintln!("bowline: {note}");
    }
    let channel = Connector::new().connect((args.host.as_str(), args.port))?;
    sender::send(args, &source, channel)
}

/// Receives what senders send.
pub(crate) fn recv(args: &RecvArgs) -> Result<(), Box<dyn Error>> {
    let open_dir = || Dir::open(&args.dir).map_err(|e| e as Box<dyn Error>);
    let mut dir = open_dir()?;
    let listener = Listener::bind((args.device, args.port))?;
    eprintln!("receiving into {} on {}", args.dir.display(), listener.local_addr()?);
    loop {
        match receiver::receive(args, &dir, listener.accept()?) {
            Ok(report) => report.print("received", args.json),
            Err(e) if args.once => return Err(e),
            Err(e) => output::print_error(&*e),
        }
        if args.once {
            return Ok(());
        }
        // What is in it may be removed and made anew between transfers.
        dir = open_dir()?;
    }
}
