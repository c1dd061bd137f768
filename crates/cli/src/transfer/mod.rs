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
mod list;
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
mod turns;

use std::error::Error;
use std::thread;

use bowline::{Channel, Connector, Listener};

pub(crate) use args::{RecvArgs, SendArgs};
use dir::Dir;
use report::Report;
use scan::Source;
use turns::Turns;

use crate::output;

/// Transfers that a receiver takes at a time; each may take 128 MiB of memory. Further senders wait to be
/// accepted.
const MAX_TRANSFERS: usize = 4;

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
        eprintln!("bowline: {}", output::plain(note));
    }
    let channel = Connector::new().connect((args.host.as_str(), args.port))?;
    sender::send(args, &source, channel)
}

/// Receives what senders send.
pub(crate) fn recv(args: &RecvArgs) -> Result<(), Box<dyn Error>> {
    // Better said now than to the first sender.
    Dir::open(&args.dir).map_err(|e| e as Box<dyn Error>)?;
    let listener = Listener::bind((args.device, args.port))?;
    eprintln!("receiving into {} on {}", args.dir.display(), listener.local_addr()?);
    if args.once {
        let report = receive(args, listener.accept()?).map_err(|e| e as Box<dyn Error>)?;
        report.print("received", args.json);
        return Ok(());
    }
    serve(args, &listener)
}

/// Takes transfers from whoever connects, several at a time, so that none holds up the others.
fn serve(args: &RecvArgs, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let turns = Turns::new(MAX_TRANSFERS);
    thread::scope(|scope| {
        loop {
            let turn = turns.wait();
            let channel = listener.accept()?;
            scope.spawn(move || {
                match receive(args, channel) {
                    Ok(report) => report.print("received", args.json),
                    Err(e) => output::print_error(&*e),
                }
                drop(turn);
            });
        }
    })
}

fn receive(args: &RecvArgs, channel: Channel) -> Result<Report, Failure> {
    // What is in it may be removed and made anew between transfers.
    let dir = Dir::open(&args.dir)?;
    receiver::receive(args, &dir, channel, receiver::PATIENCE)
}
