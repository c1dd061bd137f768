//! `bowline perf`: bandwidth and latency between two programs, modelled on perftest.

mod account;
mod args;
mod bandwidth;
mod chain;
mod explain;
mod failover;
mod interval;
mod latency;
mod reliable;
mod replicate;
mod replicate_scheme;
mod report;
mod rig;
mod seal;
mod session;
mod transport;

use std::error::Error;
use std::process::ExitCode;

use account::{End, Ledger};
use args::Metric;
pub(crate) use args::PerfArgs;
use bowline::Channel;
use interval::Watch;
use report::{BandwidthRow, Report, Row};
use rig::Rig;
use session::{Agreed, Session};

use crate::interrupt;

/// Runs one end of a test.
pub(crate) fn run(args: PerfArgs) -> Result<ExitCode, Box<dyn Error>> {
    let report = match &args.host {
        Some(host) => client(&args, host)?,
        None if !args.to.is_empty() => replicate::client(&args)?,
        None => server(&args)?,
    };
    if args.json {
        crate::output::say(&report.json());
    }
    Ok(match interrupt::asked() {
        Some(signal) => ExitCode::from(128_u8.saturating_add(signal as u8)),
        None => ExitCode::SUCCESS,
    })
}

/// The end that decides what is measured, and measures it.
fn client(args: &PerfArgs, host: &str) -> Result<Report, Box<dyn Error>> {
    match session::connect(args, host)? {
        Agreed::Rc(session) => measure(args, session, End::Client),
        Agreed::Scheme(end, channel) => reliable::client(args, &end, channel),
        Agreed::Chain(..) => Err("only servers are members of a chain".into()),
    }
}

/// The end that responds, until the client has reported its result for every size.
fn server(args: &PerfArgs) -> Result<Report, Box<dyn Error>> {
    match session::serve(args)? {
        Agreed::Rc(session) => measure(args, session, End::Server),
        Agreed::Scheme(end, channel) => reliable::server(args, &end, channel),
        Agreed::Chain(end, channel) => chain::server(args, end, channel),
    }
}

/// Runs one end of the test for every size, and reports.
fn measure(args: &PerfArgs, session: Session, end: End) -> Result<Report, Box<dyn Error>> {
    let Session { rig, mut channel } = session;
    let report = Report::new(&rig.spec, &rig.device, !args.json);
    let mut report = report.sealed(channel.is_sealing());
    report.print_header();
    let mut is_interrupted = false;
    for bytes in rig.spec.sizes() {
        // Must happen before the barrier, because the client sends right after it.
        latency::clear_flag(&rig, bytes);
        let mut ledger = Ledger::open(&rig.device)?;
        channel.barrier()?;
        let watch = Watch { device: &rig.device, every: args.interval, text: !args.json };
        let mut row = match (rig.spec.both, end) {
            (true, _) => both_ways(&rig, bytes, watch, (&mut channel, &mut ledger), end)?,
            (false, End::Client) => one_way(&rig, bytes, watch, &mut channel, &mut ledger)?,
            (false, End::Server) => answer(&rig, bytes, &mut channel)?,
        };
        let ours = ledger.close(&rig.device)?;
        let theirs = account::exchange(&mut channel, Some(&ours))?;
        row.add_accounts(&rig.spec, end, &ours, theirs.as_ref());
        is_interrupted = row.is_interrupted();
        report.add(row);
        if is_interrupted {
            break;
        }
    }
    if !is_interrupted {
        channel.barrier()?;
    }
    report.add_counters(&rig.device);
    if args.fec.is_some() {
        report.add_fec(&rig.device.fec_counters());
    }
    if let Some(account) = rig.device.failover_account() {
        report.add_failover(&account);
    }
    Ok(report)
}

/// Measures, and reports the result to the server.
fn one_way(
    rig: &Rig,
    bytes: u32,
    watch: Watch<'_>,
    channel: &mut Channel,
    ledger: &mut Ledger,
) -> Result<Row, Box<dyn Error>> {
    let row = match rig.spec.test.metric() {
        Metric::Bandwidth => Row::Bandwidth(bandwidth::client(rig, bytes, watch)?),
        Metric::Latency => Row::Latency(latency::client(rig, bytes, watch)?),
    };
    ledger.drain(&rig.device)?;
    session::tell(channel, &row)?;
    Ok(row)
}

/// Responds until the client reports its result.
fn answer(rig: &Rig, bytes: u32, channel: &mut Channel) -> Result<Row, Box<dyn Error>> {
    session::serve_until_told(channel, &rig.device, |done| match rig.spec.test.metric() {
        Metric::Bandwidth => bandwidth::server(rig, done),
        Metric::Latency => latency::server(rig, bytes, done),
    })
}

/// Both ends send at the same time.
fn both_ways(
    rig: &Rig,
    bytes: u32,
    watch: Watch<'_>,
    (channel, ledger): (&mut Channel, &mut Ledger),
    end: End,
) -> Result<Row, Box<dyn Error>> {
    let [own, peers] = bandwidth::both(rig, bytes, watch, channel, ledger)?;
    Ok(Row::Bandwidth(match end {
        End::Client => BandwidthRow::of_both(own, &peers),
        End::Server => BandwidthRow::of_both(peers, &own),
    }))
}
