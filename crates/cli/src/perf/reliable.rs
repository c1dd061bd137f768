//! Bandwidth of messages that a scheme makes reliable over unreliable packets.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::{
    Access, Channel, Device, Mr, Pd, ReliableConfig, ReliableEvent, ReliableQp, SdrConfig,
    SdrError, WriteOptions,
};

use super::account::{self, End as Side, Ledger};
use super::args::{PerfArgs, Spec, Test};
use super::bandwidth::{Goal, Meter};
use super::interval::Watch;
use super::report::{BandwidthRow, Report, Row};
use super::{explain, session};
use crate::interrupt;

/// Bytes of messages outstanding, but at least `MIN_DEPTH` messages. More would only evict others
/// from the caches.
const DEPTH_BYTES: u32 = 4 << 20;
const MIN_DEPTH: u32 = 16;
/// Number of empty polls before a receiver sleeps.
const EAGER_POLLS: u32 = 1_000;
/// Bytes of a chunk, unless the messages are shorter.
const CHUNK_BYTES: u32 = 64 << 10;
/// A peer that does nothing for this long is considered gone.
pub(crate) const STALL: Duration = Duration::from_secs(20);

/// One end of a test.
pub(crate) struct End {
    pub(crate) spec: Spec,
    pub(crate) device: Device,
    pd: Pd,
    config: Box<ReliableConfig>,
    pub(crate) qp: ReliableQp,
    pub(crate) mr: Mr,
    pub(crate) scheme: usize,
    pub(crate) depth: u64,
}

impl End {
    /// Creates everything except the connection.
    pub(crate) fn new(device: Device, spec: Spec) -> Result<End, Box<dyn Error>> {
        let lanes = spec.spread;
        End::with(device, spec, |pd, config| ReliableQp::spread(pd, config, lanes))
    }

    /// The same for messages that go to `servers` servers over one queue pair.
    pub(crate) fn for_group(
        device: Device,
        spec: Spec,
        servers: usize,
    ) -> Result<End, Box<dyn Error>> {
        End::with(device, spec, |pd, config| ReliableQp::for_group(pd, config, servers))
    }

    fn with(
        device: Device,
        spec: Spec,
        make: impl FnOnce(&Pd, &ReliableConfig) -> Result<ReliableQp, bowline::Error>,
    ) -> Result<End, Box<dyn Error>> {
        if spec.test != Test::WriteBw || spec.qps != 1 {
            return Err("--scheme works with write-bw over one QP only".into());
        }
        let mtu = spec.mtu(device.mtu());
        let config = ReliableConfig {
            sdr: SdrConfig {
                mtu,
                chunk_bytes: spec.chunk.unwrap_or(CHUNK_BYTES.max(mtu.bytes())),
                rate_bps: spec.rate_bps,
                ..SdrConfig::default()
            },
            max_write: spec.max_size() as u64,
            ..ReliableConfig::default()
        };
        let pd = device.alloc_pd()?;
        let qp = make(&pd, &config)?;
        let name = spec.scheme.clone().unwrap_or_default();
        let scheme = qp.scheme(&name).map_err(|_| {
            format!("unknown scheme {name:?}: choose one of {}", names(&config).join(", "))
        })?;
        let mr = pd.register(spec.max_size(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let enough = (DEPTH_BYTES / spec.max_size().max(1) as u32).max(MIN_DEPTH);
        let depth = spec.tx_depth.min(enough).min(config.max_outstanding()).max(1);
        let config = Box::new(config);
        Ok(End { spec, device, pd, config, qp, mr, scheme, depth: depth.into() })
    }

    /// Names of all schemes, by index.
    pub(crate) fn names(&self) -> Vec<String> {
        names(&self.config)
    }

    /// Another queue pair like its own.
    pub(crate) fn another(&self) -> Result<ReliableQp, bowline::Error> {
        ReliableQp::spread(&self.pd, &self.config, self.spec.spread)
    }

    /// Connects to the other end.
    pub(crate) fn connect(&self, channel: &mut Channel) -> Result<(), bowline::Error> {
        self.qp.connect_over(channel)
    }

    /// The next finished message. Fails if nothing happens for too long.
    fn next(&self) -> Result<ReliableEvent, Box<dyn Error>> {
        let start = Instant::now();
        loop {
            if let Some(event) = self.qp.poll()? {
                let (ReliableEvent::Written { result, .. }
                | ReliableEvent::Received { result, .. }) = event;
                result?;
                return Ok(event);
            }
            if start.elapsed() > STALL {
                let secs = STALL.as_secs();
                let why = format!("no progress for {secs} s: check that the peer is still running");
                return Err(why.into());
            }
        }
    }
}

fn names(config: &ReliableConfig) -> Vec<String> {
    config.schemes.iter().map(|scheme| scheme.name()).collect()
}

/// The end that writes, and measures.
pub(crate) fn client(
    args: &PerfArgs,
    end: &End,
    mut channel: Channel,
) -> Result<Report, Box<dyn Error>> {
    let report = Report::new(&end.spec, &end.device, !args.json);
    let mut report = report.sealed(channel.is_sealing());
    report.print_header();
    for bytes in end.spec.sizes() {
        let mut ledger = Ledger::open(&end.device)?;
        channel.barrier()?;
        let watch = Watch { device: &end.device, every: args.interval, text: !args.json };
        let mut row = Row::Bandwidth(write(end, bytes, watch)?);
        ledger.drain(&end.device)?;
        session::tell(&mut channel, &row)?;
        let ours = ledger.close(&end.device)?;
        let theirs = account::exchange(&mut channel, Some(&ours))?;
        row.add_accounts(&end.spec, Side::Client, &ours, theirs.as_ref());
        let is_interrupted = row.is_interrupted();
        report.add(row);
        if is_interrupted {
            return Ok(report);
        }
    }
    channel.barrier()?;
    let (stats, path) = (end.qp.stats()?, end.qp.path()?);
    report.say(&format!(
        " chunks sent again {}   round trip {:.3} ms",
        stats.chunks_resent,
        path.rtt_ns.unwrap_or(0) as f64 / 1e6,
    ));
    report.add_counters(&end.device);
    if end.spec.explain {
        report.say(explain::text(&end.names(), &end.qp.decisions()?).trim_end());
    }
    Ok(report)
}

fn write(end: &End, bytes: u32, watch: Watch<'_>) -> Result<BandwidthRow, Box<dyn Error>> {
    let mut goal = Goal::new(&end.spec, &watch);
    let options = WriteOptions { scheme: end.scheme, imm: None };
    let start = Instant::now();
    let mut meter = Meter::new(start, bytes, watch);
    let (mut posted, mut completed) = (0, 0);
    loop {
        let last = goal.messages_per_qp(start);
        while posted < last && posted - completed < end.depth {
            match end.qp.write(&end.mr, 0..bytes as usize, options) {
                Ok(_) => posted += 1,
                // Messages finish in any order, and free their numbers in that order.
                Err(bowline::Error::Sdr(SdrError::Full { .. })) if posted > completed => break,
                Err(e) => return Err(e.into()),
            }
        }
        let interrupted = interrupt::asked().is_some();
        if completed == posted || interrupted {
            return Ok(meter.finish(interrupted));
        }
        end.next()?;
        completed += 1;
        meter.add(1);
    }
}

/// The end that receives.
pub(crate) fn server(
    args: &PerfArgs,
    end: &End,
    mut channel: Channel,
) -> Result<Report, Box<dyn Error>> {
    let report = Report::new(&end.spec, &end.device, !args.json);
    let mut report = report.sealed(channel.is_sealing());
    report.print_header();
    // Receives that are not posted yet: recently used IDs are quarantined for a while.
    let mut owed = end.depth;
    post(end, &mut owed)?;
    for _ in end.spec.sizes() {
        let mut ledger = Ledger::open(&end.device)?;
        channel.barrier()?;
        let mut row = session::serve_until_told(&mut channel, &end.device, |done| {
            receive(end, &mut owed, done)
        })?;
        ledger.stop();
        let ours = ledger.close(&end.device)?;
        let theirs = account::exchange(&mut channel, Some(&ours))?;
        row.add_accounts(&end.spec, Side::Server, &ours, theirs.as_ref());
        let is_interrupted = row.is_interrupted();
        report.add(row);
        if is_interrupted {
            return Ok(report);
        }
    }
    channel.barrier()?;
    let stats = end.qp.stats()?;
    let landing = stats.landing;
    report.say(&format!(
        " packets landed {}   duplicates {}   late {}   chunks recovered {}",
        landing.packets, landing.duplicates, landing.late, stats.chunks_recovered
    ));
    report.add_counters(&end.device);
    Ok(report)
}

fn receive(end: &End, owed: &mut u64, done: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut idle = 0;
    while !done.load(Ordering::Acquire) && interrupt::asked().is_none() {
        let event = match idle {
            0..EAGER_POLLS => end.qp.poll()?,
            _ => end.qp.wait(Duration::from_millis(if *owed > 0 { 1 } else { 5 }))?,
        };
        idle = if event.is_some() { 0 } else { idle + 1 };
        if let Some(ReliableEvent::Received { result, .. }) = event {
            result?;
            *owed += 1;
        }
        post(end, owed)?;
    }
    Ok(())
}

/// Posts as many of the owed receives as possible.
fn post(end: &End, owed: &mut u64) -> Result<(), Box<dyn Error>> {
    while *owed > 0 {
        match end.qp.recv(&end.mr, 0..end.spec.max_size()) {
            Ok(_) => *owed -= 1,
            Err(bowline::Error::Sdr(SdrError::Quarantined | SdrError::Full { .. })) => {
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
