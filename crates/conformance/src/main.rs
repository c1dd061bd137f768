//! Runs the conformance body between a device here and a NIC behind a verbs agent.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use bowline::{Device, LinkProfile};
use bowline_conformance::ends::agent::AgentEnd;
use bowline_conformance::ends::device::{DeviceEnd, WallClock};
use bowline_conformance::{End, Lab, Outcome, Profile, cases, run_case};
use clap::Parser;

/// Checks a RoCEv2 NIC behind a verbs agent against Bowline.
///
/// In the names of cases `->` says that Bowline asks, and `<-` that the other end does.
#[derive(Parser)]
struct Args {
    /// Where the agent listens.
    #[arg(long)]
    agent: SocketAddr,
    /// Address of the NIC behind it.
    #[arg(long)]
    peer: IpAddr,
    /// Address here, on which a device is opened.
    #[arg(long)]
    local: IpAddr,
    /// The network loses packets: run what must hold all the same.
    #[arg(long)]
    faulty: bool,
    /// What to do to the packets that leave here, as `loss=1%,reorder=1%`.
    #[arg(long)]
    link: Option<LinkProfile>,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Writes all packets to a capture file.
    #[arg(long)]
    pcap: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all cases; returns how many failed.
fn run(args: &Args) -> Outcome<usize> {
    let mut builder = Device::builder(args.local);
    if let Some(link) = &args.link {
        builder = builder.link(link.clone());
    }
    if let Some(file) = &args.pcap {
        builder = builder.pcap(file);
    }
    let ours = DeviceEnd::new(builder.open()?)?;
    let theirs = AgentEnd::connect(args.agent, args.peer)?;
    let maker = theirs.maker();
    let mut lab = Lab::new([Box::new(ours), Box::new(theirs)], Box::new(WallClock::start()));

    let profile = if args.faulty { Profile::Faulty } else { Profile::Clean };
    let (mut passed, mut failed) = (0, 0);
    for case in cases(profile, maker) {
        if !case.to_string().contains(&args.only) {
            continue;
        }
        let start = Instant::now();
        let row = run_case(&mut lab, case);
        let seconds = start.elapsed().as_secs_f64();
        match row.result {
            Ok(()) => {
                passed += 1;
                println!("ok    {seconds:5.2} s  {case}");
            }
            Err(failure) => {
                failed += 1;
                println!("FAIL  {seconds:5.2} s  {case}: {failure}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed)
}
