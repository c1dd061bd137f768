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

use args::Metric;
pub(crate) use args::PerfArgs;
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
        let row = match session.rig.spec.test.metric() {
            Metric::Bandwidth => Row::Bandwidth(bandwidth::client(&session.rig, bytes)?),
            Metric::Latency => Row::Latency(latency::client(&session.rig, bytes)?),
        };
        session::tell(&mut session.channel, &row)?;
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
        channel.barrier()?;
        let row = session::serve_until_told(&mut channel, |done| match rig.spec.test.metric() {
            Metric::Bandwidth => bandwidth::server(&rig, done),
            Metric::Latency => latency::server(&rig, bytes, done),
        })?;
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
