//! Bandwidth of messages that a scheme makes reliable over unreliable packets.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::{
    Access, Channel, Device, Mr, ReliableConfig, ReliableEvent, ReliableQp, SdrConfig, SdrError,
    WriteOptions,
};

use super::args::{Spec, Test};
use super::bandwidth::{Goal, Meter};
use super::report::{Report, Row};
use super::{explain, session};

/// Messages outstanding, unless that is more than their size allows.
const MAX_DEPTH: u32 = 16;
/// Bytes of a chunk, unless the messages are shorter.
const CHUNK_BYTES: u32 = 64 << 10;
/// A peer that does nothing for so long is gone.
const STALL: Duration = Duration::from_secs(20);

/// One end of a test.
pub(crate) struct End {
    spec: Spec,
    device: Device,
    qp: ReliableQp,
    mr: Mr,
    scheme: usize,
    /// Names of all schemes, by index.
    names: Vec<String>,
    depth: u64,
}

impl End {
    /// Makes everything but the connection.
    pub(crate) fn new(device: Device, spec: Spec) -> Result<End, Box<dyn Error>> {
        if spec.test != Test::WriteBw || spec.qps != 1 {
            return Err("--scheme works with write-bw over one QP only".into());
        }
        let config = ReliableConfig {
            sdr: SdrConfig {
                mtu: device.mtu(),
                chunk_bytes: spec.chunk.unwrap_or(CHUNK_BYTES.max(device.mtu().bytes())),
                rate_bps: spec.rate_bps,
                ..SdrConfig::default()
            },
            max_write: spec.max_size() as u64,
            ..ReliableConfig::default()
        };
        let pd = device.alloc_pd()?;
        let qp = ReliableQp::spread(&pd, &config, spec.spread)?;
        let name = spec.scheme.clone().unwrap_or_default();
        let names: Vec<String> = config.schemes.iter().map(|s| s.name()).collect();
        let scheme = qp.scheme(&name).map_err(|_| {
            format!("there is no scheme {name:?}: choose one of {}", names.join(", "))
        })?;
        let mr = pd.register(spec.max_size(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let depth = spec.tx_depth.min(MAX_DEPTH).min(config.max_outstanding()).max(1);
        Ok(End { spec, device, qp, mr, scheme, names, depth: depth.into() })
    }

    /// Connects to the other end.
    pub(crate) fn connect(&self, channel: &mut Channel) -> Result<(), bowline::Error> {
        self.qp.connect_over(channel)
    }

    /// The next message that is over; an error if nothing happens any more.
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
                let why = format!("the peer has done nothing for {secs} s: is it still there?");
                return Err(why.into());
            }
        }
    }
}

/// The end that writes, and measures.
pub(crate) fn client(end: &End, mut channel: Channel) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new(&end.spec, &end.device);
    report.print_header();
    for bytes in end.spec.sizes() {
        channel.barrier()?;
        let row = Row::Bandwidth(write(end, bytes)?);
        session::tell(&mut channel, &row)?;
        report.add(row);
    }
    channel.barrier()?;
    let (stats, path) = (end.qp.stats()?, end.qp.path()?);
    println!(
        " chunks sent again {}   round trip {:.3} ms   loss {:.4} %",
        stats.chunks_resent,
        path.rtt_ns.unwrap_or(0) as f64 / 1e6,
        path.loss * 100.0
    );
    if end.spec.explain {
        print!("{}", explain::text(&end.names, &end.qp.decisions()?));
    }
    Ok(report)
}

fn write(end: &End, bytes: u32) -> Result<super::report::BandwidthRow, Box<dyn Error>> {
    let mut goal = Goal::new(&end.spec);
    let options = WriteOptions { scheme: end.scheme, imm: None };
    let start = Instant::now();
    let mut meter = Meter::new(start, bytes);
    let (mut posted, mut completed) = (0, 0);
    loop {
        let last = goal.messages_per_qp(start);
        while posted < last && posted - completed < end.depth {
            match end.qp.write(&end.mr, 0..bytes as usize, options) {
                Ok(_) => posted += 1,
                // Messages end in any order, and their numbers are free in theirs.
                Err(bowline::Error::Sdr(SdrError::Full { .. })) if posted > completed => break,
                Err(e) => return Err(e.into()),
            }
        }
        if completed == posted {
            return Ok(meter.finish());
        }
        end.next()?;
        completed += 1;
        meter.add(1);
    }
}

/// The end that receives.
pub(crate) fn server(end: &End, mut channel: Channel) -> Result<Report, Box<dyn Error>> {
    let mut report = Report::new(&end.spec, &end.device);
    report.print_header();
    // What is not posted yet: IDs that were in use a moment ago have to rest.
    let mut owed = end.depth;
    post(end, &mut owed)?;
    for _ in end.spec.sizes() {
        channel.barrier()?;
        let row = session::serve_until_told(&mut channel, |done| receive(end, &mut owed, done))?;
        report.add(row);
    }
    channel.barrier()?;
    let stats = end.qp.stats()?;
    let landing = stats.landing;
    println!(
        " packets landed {}   duplicates {}   late {}   chunks recovered {}",
        landing.packets, landing.duplicates, landing.late, stats.chunks_recovered
    );
    Ok(report)
}

fn receive(end: &End, owed: &mut u64, done: &AtomicBool) -> Result<(), Box<dyn Error>> {
    while !done.load(Ordering::Acquire) {
        let event = end.qp.wait(Duration::from_millis(if *owed > 0 { 1 } else { 5 }))?;
        if let Some(ReliableEvent::Received { result, .. }) = event {
            result?;
            *owed += 1;
        }
        post(end, owed)?;
    }
    Ok(())
}

/// Posts receives that are owed, as many as can be now.
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
