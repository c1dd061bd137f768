//! Runs the conformance checks between a local device and a NIC behind a verbs agent, or another
//! local device.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use bowline::multicast::{GroupSwitch, SwitchOptions};
use bowline::{Device, LinkProfile, VerbsName};
use bowline_conformance::ends::agent::AgentEnd;
use bowline_conformance::ends::device::{DeviceEnd, WallClock};
use bowline_conformance::ends::groups::Groups;
use bowline_conformance::{
    Case, End, Failure, Lab, Outcome, Profile, Side, cases, group_cases, run_case,
};
use clap::Parser;

/// Checks a RoCEv2 NIC against Bowline: one behind a verbs agent, or a device of this machine.
///
/// In the names of cases `->` says that the local device asks, and `<-` that the other end does.
#[derive(Parser)]
struct Args {
    /// Where the agent listens.
    #[arg(long, requires = "peer", required_unless_present = "other")]
    agent: Option<SocketAddr>,
    /// Address of the NIC behind it.
    #[arg(long)]
    peer: Option<IpAddr>,
    /// The other end is this device: an address of this machine, or verbs:NAME.
    #[arg(long, conflicts_with = "agent")]
    other: Option<String>,
    /// The device here: an address of this machine, or verbs:NAME.
    #[arg(long)]
    local: String,
    /// The network loses packets: run what must hold all the same.
    #[arg(long)]
    faulty: bool,
    /// What to do to the packets that leave here, as `loss=1%,reorder=1%`.
    #[arg(long)]
    link: Option<LinkProfile>,
    /// Put a multicast group between the two: behind a switch at this address of this machine, or
    /// in the local device's own `port`, which sends alone. Runs what a group carries.
    #[arg(long, value_name = "ADDR|port")]
    group: Option<String>,
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

/// The implementation of the requested groups, if any.
fn groups(args: &Args) -> Outcome<Option<Groups>> {
    let Some(at) = &args.group else { return Ok(None) };
    if at == "port" {
        return Ok(Some(Groups::Port));
    }
    let wrong = |_| Failure::new(format!("invalid group `{at}`: give an address, or port"));
    let switch = GroupSwitch::open(&SwitchOptions::new(at.parse().map_err(wrong)?));
    Ok(Some(Groups::Switch(Arc::new(switch.map_err(bowline::Error::from)?))))
}

/// The end that is not the local device.
fn other_end(args: &Args, groups: Option<&Groups>) -> Outcome<Box<dyn End>> {
    match (&args.other, args.agent, args.peer) {
        (Some(name), ..) => {
            let end = DeviceEnd::new(Device::open(name)?)?;
            Ok(match groups {
                Some(groups) => Box::new(end.with_groups(groups.clone())),
                None => Box::new(end),
            })
        }
        (None, Some(agent), Some(peer)) => {
            let end = AgentEnd::connect(agent, peer)?;
            Ok(match groups {
                Some(groups) => Box::new(end.with_groups(groups.clone())),
                None => Box::new(end),
            })
        }
        _ => Err(Failure::new("give --agent and --peer, or --other")),
    }
}

/// Runs all cases; returns how many failed.
fn run(args: &Args) -> Outcome<usize> {
    let mut builder = Device::named(&args.local)?;
    if let Some(link) = &args.link {
        builder = builder.link(link.clone());
    }
    if let Some(file) = &args.pcap {
        builder = builder.pcap(file);
    }
    let device = builder.open()?;
    let groups = groups(args)?;
    let theirs = other_end(args, groups.as_ref())?;
    let maker = theirs.maker();
    // Only our engine has XP's opcodes: no verbs device does.
    let is_verbs = |name: &String| VerbsName::is_meant(name);
    let no_xp = is_verbs(&args.local) || args.other.as_ref().is_some_and(is_verbs);
    let mut ours = DeviceEnd::new(device)?;
    if let Some(groups) = &groups {
        ours = ours.with_groups(groups.clone());
    }
    let mut lab = Lab::new([Box::new(ours), theirs], Box::new(WallClock::start()));

    let profile = if args.faulty { Profile::Faulty } else { Profile::Clean };
    let cases: Vec<Case> = match groups {
        None => cases(profile, maker),
        Some(Groups::Switch(_)) => group_cases(profile),
        Some(Groups::Port) => {
            let ours = |case: &Case| case.requester == Side::Left;
            group_cases(profile).into_iter().filter(ours).collect()
        }
    };
    let (mut passed, mut failed) = (0, 0);
    for case in cases {
        if !case.to_string().contains(&args.only) || no_xp && case.check.needs_xp {
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
