//! `bowline perf`: bandwidth and latency between two programs, in the manner of perftest.

mod args;
mod bandwidth;
mod explain;
mod failover;
mod latency;
mod reliable;
mod report;
mod rig;
mod session;

use std::error::Error;

pub(crate) use args::PerfArgs;
use args::{Metric, Spec};
use bowline::Channel;
use report::{Report, Row};
use session::{Agreed, Session};

/// Runs one end of a test.
pub(crate) fn run(args: PerfArgs) -> Result<(), Box<dyn Error>> {
    let report = match &args.host {
        Some(host) => client(&args, host)?,
        None => server(&args)?,
    };
    if args.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// The end that decides what is measured, and measures it.
fn client(args: &PerfArgs, host: &str) -> Result<Report, Box<dyn Error>> {
    let mut session = match session::connect(args, host)? {
        Agreed::Rc(session) => session,
        Agreed::Scheme(end, channel) => return reliable::client(&end, channel),
    };
    let mut report = Report::new(&session.rig.spec, &session.rig.device);
    report.print_header();
    for bytes in session.rig.spec.sizes() {
        latency::clear_flag(&session.rig, bytes);
        session.channel.barrier()?;
        let before = bandwidth::received_bytes(&session.rig)?;
        let mut row = match session.rig.spec.test.metric() {
            Metric::Bandwidth => Row::Bandwidth(bandwidth::client(&session.rig, bytes)?),
            Metric::Latency => Row::Latency(latency::client(&session.rig, bytes)?),
        };
        session::tell(&mut session.channel, &row)?;
        let here = bandwidth::received_bytes(&session.rig)? - before;
        add_delivered(&session.rig.spec, &mut session.channel, &mut row, here)?;
        report.add(row);
    }
    session.channel.barrier()?;
    if args.fec.is_some() {
        report.add_fec(&session.rig.device.fec_counters());
    }
    if let Some(account) = session.rig.device.failover_account() {
        report.add_failover(&account);
    }
    Ok(report)
}

/// The end that answers, until the client has told its result for every size.
fn server(args: &PerfArgs) -> Result<Report, Box<dyn Error>> {
    let Session { rig, mut channel } = match session::serve(args)? {
        Agreed::Rc(session) => session,
        Agreed::Scheme(end, channel) => return reliable::server(&end, channel),
    };
    let mut report = Report::new(&rig.spec, &rig.device);
    report.print_header();
    for bytes in rig.spec.sizes() {
        // Before the barrier: behind it the client sends at once.
        latency::clear_flag(&rig, bytes);
        let before = bandwidth::received_bytes(&rig)?;
        channel.barrier()?;
        let mut row =
            session::serve_until_told(&mut channel, |done| match rig.spec.test.metric() {
                Metric::Bandwidth => bandwidth::server(&rig, done),
                Metric::Latency => latency::server(&rig, bytes, done),
            })?;
        let here = bandwidth::settled_bytes(&rig)? - before;
        add_delivered(&rig.spec, &mut channel, &mut row, here)?;
        report.add(row);
    }
    channel.barrier()?;
    if args.fec.is_some() {
        report.add_fec(&rig.device.fec_counters());
    }
    if let Some(account) = rig.device.failover_account() {
        report.add_failover(&account);
    }
    Ok(report)
}

/// Where a sender cannot know what arrives, the receiver tells: both ends exchange what they have received of a
/// size, and what the test sends that way is what counts.
fn add_delivered(
    spec: &Spec,
    channel: &mut Channel,
    row: &mut Row,
    here: u64,
) -> Result<(), Box<dyn Error>> {
    let Row::Bandwidth(row) = row else { return Ok(()) };
    if spec.transport.is_reliable() {
        return Ok(());
    }
    channel.send(&here.to_be_bytes())?;
    let there = channel.recv()?;
    let there = <[u8; 8]>::try_from(&there[..])
        .map_err(|_| "the peer does not say what it has received")?;
    // A bandwidth test moves data one way: one of the two has received nothing.
    row.set_delivered(here + u64::from_be_bytes(there));
    Ok(())
}
