//! One sender, many servers: every message goes to all of them, and is complete when all have it.

use std::error::Error;
use std::time::{Duration, Instant};

use bowline::multicast::{Group, GroupOptions, Multicast};
use bowline::{Channel, RemoteMr, SendOp, SendWr};
use hdrhistogram::Histogram;

use super::account::{self, cpu_time};
use super::args::{PerfArgs, Replicate, Spec, Test};
use super::bandwidth::{Goal, Meter};
use super::interval::Watch;
use super::report::{BandwidthRow, Replication, Report, Row};
use super::rig::{Poller, Rig};
use super::session::{self, TEST_TIMEOUT};
use super::{chain, replicate_scheme};
use crate::interrupt;
use crate::peers::Target;

/// The longest time that the histogram can record.
const MAX_NS: u64 = 60_000_000_000;

/// A sender, its servers, and how messages reach them.
struct Sender {
    rig: Rig,
    channels: Vec<Channel>,
    replicate: Replicate,
    /// Whether a group is to be carried by IP multicast.
    multicast: Multicast,
    /// The QPs on which each message is posted, and the target of a WRITE on each.
    ways: Vec<RemoteMr>,
    /// Held until the test ends.
    _group: Option<Group>,
}

/// Measures at the sender, for every size.
pub(crate) fn client(args: &PerfArgs) -> Result<Report, Box<dyn Error>> {
    if !matches!(args.test, Test::WriteBw | Test::SendBw) {
        return Err("--to works with write-bw and send-bw only".into());
    }
    match (&args.scheme, args.replicate) {
        (Some(_), chosen @ (Replicate::Chain | Replicate::Multicast)) => {
            let name = if chosen == Replicate::Chain { "chain" } else { "multicast" };
            let why = "uses RC: remove --scheme, or use --replicate port";
            return Err(format!("--replicate {name} {why}").into());
        }
        (Some(_), _) => return replicate_scheme::client(args),
        (None, Replicate::Chain) => return chain::client(args),
        (None, _) => {}
    }
    let mut sender = Sender::connect(args)?;
    let mut report = Report::new(&sender.rig.spec, &sender.rig.device, !args.json);
    report.print_header();
    for bytes in sender.rig.spec.sizes() {
        sender.barrier()?;
        let watch = Watch { device: &sender.rig.device, every: args.interval, text: !args.json };
        let row = Row::Bandwidth(sender.measure(bytes, watch)?);
        for channel in &mut sender.channels {
            session::tell(channel, &row)?;
            // This end's packet count is not what any single server was sent.
            account::exchange(channel, None)?;
        }
        let is_interrupted = row.is_interrupted();
        report.add(row);
        if is_interrupted {
            return Ok(report);
        }
    }
    sender.barrier()?;
    Ok(report)
}

/// How messages reach the servers.
pub(super) fn choose(args: &PerfArgs) -> Replicate {
    match args.replicate {
        Replicate::Auto if args.to.len() > 1 => Replicate::Port,
        Replicate::Auto => Replicate::FanOut,
        chosen => chosen,
    }
}

/// Connects to all servers and sends each of them the test's specification.
pub(super) fn reach(
    args: &PerfArgs,
    spec_of: impl Fn(usize) -> Spec,
) -> Result<Vec<Channel>, Box<dyn Error>> {
    let mut channels = Vec::with_capacity(args.to.len());
    for host in &args.to {
        let channel = session::reach(args, &Target::parse(host, args.port)?);
        channels.push(channel.map_err(|error| format!("{host}: {error}"))?);
    }
    interrupt::watch();
    for (index, (channel, host)) in channels.iter_mut().zip(&args.to).enumerate() {
        session::ask(channel, &spec_of(index)).map_err(|error| format!("{host}: {error}"))?;
    }
    Ok(channels)
}

impl Sender {
    fn connect(args: &PerfArgs) -> Result<Sender, Box<dyn Error>> {
        let spec = Spec::new(args);
        let (channels, replicate) = (reach(args, |_| spec.clone())?, choose(args));
        let qps = if replicate == Replicate::FanOut { channels.len() } else { 1 };
        let device = session::open(args, session::local_addr(args, &channels[0])?)?;
        let rig = Rig::new(device, Spec { qps: qps as u16, ..spec })?;
        let multicast = match args.replicate {
            Replicate::Auto => Multicast::IfItWorks,
            Replicate::Multicast => Multicast::Always,
            _ => Multicast::Never,
        };
        let ways = Vec::new();
        let mut sender = Sender { rig, channels, replicate, multicast, ways, _group: None };
        sender.connect_qps()?;
        for channel in &mut sender.channels {
            channel.set_timeout(TEST_TIMEOUT);
        }
        Ok(sender)
    }

    fn connect_qps(&mut self) -> Result<(), Box<dyn Error>> {
        if self.replicate == Replicate::FanOut {
            for (qp, channel) in self.channels.iter_mut().enumerate() {
                let peer = channel.connect(&self.rig.qps[qp], &[self.rig.offer(qp)])?;
                self.ways.extend(peer.regions);
            }
        } else {
            let options = GroupOptions { multicast: self.multicast, ..GroupOptions::default() };
            let (qp, offer) = (&self.rig.qps[0], [self.rig.offer(0)]);
            let group = Group::connect(qp, &offer, &mut self.channels, &options)?;
            self.ways.extend_from_slice(group.regions());
            if group.multicast().is_some() {
                self.replicate = Replicate::Multicast;
            }
            self._group = Some(group);
        }
        let is_enough = |way: &RemoteMr| way.len >= self.rig.spec.max_size() as u64;
        if self.ways.len() != self.rig.qps.len() || !self.ways.iter().all(is_enough) {
            return Err("a server offers no memory, or too little for the test: \
                        run the same release on all ends"
                .into());
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.channels.iter_mut().try_for_each(Channel::barrier)?)
    }

    /// Posts one message to all servers.
    fn post(&self, message: u64, bytes: u32) -> Result<(), Box<dyn Error>> {
        // All servers get the message from the same memory.
        let source = self.rig.source(0);
        let sges = [self.rig.mr.sge(source..source + bytes as usize)?];
        for (qp, way) in self.rig.qps.iter().zip(&self.ways) {
            let op = match self.rig.spec.test {
                Test::SendBw => SendOp::Send,
                _ => SendOp::Write(way.start()),
            };
            qp.post_send(&SendWr::new(message, op, &sges))?;
        }
        Ok(())
    }

    fn measure(&self, bytes: u32, watch: Watch<'_>) -> Result<BandwidthRow, Box<dyn Error>> {
        let depth = u64::from(self.rig.spec.tx_depth);
        let mut flight = Flight::new(depth, self.ways.len())?;
        let mut goal = Goal::new(&self.rig.spec, &watch);
        let mut poller = Poller::new(&self.rig.cq);
        let (start, cpu) = (Instant::now(), cpu_time());
        let mut meter = Meter::new(start, bytes, watch);
        while interrupt::asked().is_none() {
            let end = goal.messages_per_qp(start);
            while flight.has_room() && flight.posted < end {
                self.post(flight.posted, bytes)?;
                flight.post();
            }
            if flight.is_empty() {
                break;
            }
            let got = poller.poll_or_sleep()?;
            if got.is_empty() {
                poller.idle()?;
                continue;
            }
            let done = got.iter().filter(|completion| flight.complete(completion.wr_id)).count();
            meter.add(done as u64);
        }
        let cpu = cpu_time().saturating_sub(cpu);
        let row = meter.finish(interrupt::asked().is_some());
        Ok(flight.add_to(row, self.channels.len(), self.replicate, cpu))
    }
}

/// The messages in flight.
pub(super) struct Flight {
    /// Indexed by message modulo depth: when it was posted, and how many completions are missing.
    slots: Vec<(Instant, usize)>,
    ways: usize,
    pub(super) posted: u64,
    /// All earlier messages are complete.
    oldest: u64,
    times: Histogram<u64>,
}

impl Flight {
    pub(super) fn new(depth: u64, ways: usize) -> Result<Flight, Box<dyn Error>> {
        let times = Histogram::new_with_bounds(1, MAX_NS, 3)
            .map_err(|error| format!("cannot make a histogram: {error}"))?;
        let slots = vec![(Instant::now(), 0); depth as usize];
        Ok(Flight { slots, ways, posted: 0, oldest: 0, times })
    }

    pub(super) fn has_room(&self) -> bool {
        self.posted - self.oldest < self.slots.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted == self.oldest
    }

    fn slot(&mut self, message: u64) -> &mut (Instant, usize) {
        let depth = self.slots.len() as u64;
        &mut self.slots[(message % depth) as usize]
    }

    pub(super) fn post(&mut self) {
        let ways = self.ways;
        *self.slot(self.posted) = (Instant::now(), ways);
        self.posted += 1;
    }

    /// Records a completion. Returns whether it completed the message.
    pub(super) fn complete(&mut self, message: u64) -> bool {
        let (posted_at, left) = self.slot(message);
        *left -= 1;
        if *left > 0 {
            return false;
        }
        let time = posted_at.elapsed();
        self.times.saturating_record(time.as_nanos() as u64);
        while self.oldest < self.posted && self.slot(self.oldest).1 == 0 {
            self.oldest += 1;
        }
        true
    }

    /// Adds to a result how long messages took to reach all servers, and how much CPU time that
    /// took.
    pub(super) fn add_to(
        &self,
        mut row: BandwidthRow,
        servers: usize,
        replicate: Replicate,
        cpu: Duration,
    ) -> BandwidthRow {
        let gb = row.iterations as f64 * f64::from(row.bytes) / 1e9;
        let us = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        row.replication = Some(Replication {
            servers,
            replicate,
            t_typical_us: us(0.5),
            p99_us: us(0.99),
            sender_cpu_s_per_gb: cpu.as_secs_f64() / gb.max(1e-9),
        });
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_done_when_all_have_it_and_makes_room_in_order() {
        let mut flight = Flight::new(2, 2).expect("a histogram");
        flight.post();
        flight.post();
        assert!(!flight.has_room());
        assert!(!flight.complete(1));
        assert!(flight.complete(1), "the second message is done first");
        assert!(!flight.has_room(), "its place is behind the first one's");
        assert!(!flight.complete(0));
        assert!(flight.complete(0));
        assert!(flight.has_room() && flight.is_empty());
        assert_eq!(flight.times.len(), 2);
    }
}
