//! One end of a measurement: Bowline, or what a user would pick instead, driven alike.
//!
//! `bench/peers/run` starts two of these for every measurement, `serve` on one CPU and `drive` on
//! another. They share the loops that measure ([`measure`]) and the channel beside the connection
//! over which the driver learns what the server saw ([`control`]); each transport only says how it
//! sends and receives ([`peer`]).

mod control;
mod measure;
mod memory;
mod page;
mod peer;
mod quic;
mod rc;
mod sdr;
mod spec;
mod srt;
mod tcp;
mod udp;

use std::error::Error;
use std::iter;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::page::PageArgs;
use crate::spec::Spec;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures one transport between two processes; `bench/peers/run` runs this for all of them
#[derive(Parser)]
#[command(
    name = "peers",
    after_help = "Examples:\n  \
    peers serve rc bulk --at 127.0.0.1:7000 --size 1M --buffers cold --cpu 1 &\n  \
    peers drive rc bulk --at 127.0.0.1:7000 --size 1M --buffers cold --cpu 0 --from 127.0.0.2\n\n\
    Both ends must be told the same. The server uses the port for control and the next for data; it \
    ends with its driver."
)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// The end that receives
    Serve(Spec),
    /// The end that sends and measures; prints one JSON object, or one for each turn
    Drive(Spec),
    /// Draw results as a page
    Page(PageArgs),
}

fn main() -> ExitCode {
    let outcome = match Args::parse().role {
        Role::Serve(spec) => measure::serve(&spec),
        Role::Page(args) => page::draw(&args),
        Role::Drive(spec) if spec.turns => measure::drive(&spec).map(|_| ()),
        Role::Drive(spec) => measure::drive(&spec).map(|found| println!("{found}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let causes = iter::successors(e.source(), |&cause| cause.source());
            let text: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("peers: {e}{text}");
            ExitCode::FAILURE
        }
    }
}
