//! The sender of a chain. It measures, and finds the culprit when the chain breaks.

use std::error::Error;
use std::time::{Duration, Instant};

use bowline::Channel;

use super::super::account::{self, cpu_time};
use super::super::args::{PerfArgs, Replicate, Spec};
use super::super::bandwidth::{Goal, Meter};
use super::super::interval::Watch;
use super::super::replicate::{self, Flight};
use super::super::report::{BandwidthRow, Report, Row};
use super::super::session::{self, TEST_TIMEOUT};
use super::{Broken, Down, End, Eye, Place, Side};
use crate::interrupt;

/// A chain is considered broken if no message reaches its end for this long.
const STALL: Duration = Duration::from_secs(20);
/// How often the sender checks, while idle, whether the servers are still there.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long servers may take to report what they know of a failure.
const GRACE: Duration = Duration::from_millis(500);

/// The sender and its servers.
struct Head {
    end: End,
    down: Down,
    hosts: Vec<String>,
    channels: Vec<Channel>,
}

/// Measures at the sender, for every size.
pub(crate) fn client(args: &PerfArgs) -> Result<Report, Box<dyn Error>> {
    let mut head = Head::connect(args)?;
    let mut report = Report::new(&head.end.spec, &head.end.device, !args.json);
    report.print_header();
    for bytes in head.end.spec.sizes() {
        head.end.memory.fill(bytes);
        head.barrier()?;
        let first = head.down.posted;
        let watch =
            Watch { device: &head.end.device.clone(), every: args.interval, text: !args.json };
        let row = Row::Bandwidth(head.measure(bytes, watch)?);
        let is_interrupted = row.is_interrupted();
        head.settle(&row, first, bytes)?;
        report.add(row);
        if is_interrupted {
            return Ok(report);
        }
    }
    head.barrier()?;
    report.add_counters(&head.end.device);
    Ok(report)
}

impl Head {
    fn connect(args: &PerfArgs) -> Result<Head, Box<dyn Error>> {
        let (spec, hosts, servers) = (Spec::new(args), args.to.clone(), args.to.len());
        let mut channels = replicate::reach(args, |position| Spec {
            chain: Some(Place { position, servers }),
            ..spec.clone()
        })?;
        let device = session::open(args, session::local_addr(args, &channels[0])?)?;
        let mut end = End::new(device, spec)?;
        let mut down = end.down.take().ok_or("a sender sends")?;
        if channels.iter().any(Channel::is_sealing) {
            return Err("a chain cannot be sealed, because servers have no keys for each other: \
                        give all ends --insecure, or use --replicate fan-out"
                .into());
        }
        let named = |host: &String, error: Box<dyn Error>| format!("{host}: {error}");
        down.connect(&mut channels[0], &end.memory).map_err(|e| named(&hosts[0], e))?;
        for position in 1..channels.len() {
            let (before, after) = channels.split_at_mut(position);
            let [previous, next] = [&mut before[position - 1], &mut after[0]];
            Channel::connect_peers(previous, next).map_err(|error| {
                format!("{} and {}: {error}", hosts[position - 1], hosts[position])
            })?;
        }
        for channel in &mut channels {
            channel.set_timeout(TEST_TIMEOUT);
        }
        Ok(Head { end, down, hosts, channels })
    }

    fn barrier(&mut self) -> Result<(), Box<dyn Error>> {
        for (channel, host) in self.channels.iter_mut().zip(&self.hosts) {
            channel.barrier().map_err(|error| format!("{host}: {error}"))?;
        }
        Ok(())
    }

    fn measure(&mut self, bytes: u32, watch: Watch<'_>) -> Result<BandwidthRow, Box<dyn Error>> {
        let first = self.down.posted;
        let mut flight = Flight::new(self.end.memory.depth, 1)?;
        let mut goal = Goal::new(&self.end.spec, &watch);
        let (start, cpu) = (Instant::now(), cpu_time());
        let mut meter = Meter::new(start, bytes, watch);
        let (mut eye, mut looked_at) = (Eye::new(), start);
        while interrupt::asked().is_none() {
            let end = goal.messages_per_qp(start);
            while flight.has_room() && flight.posted < end {
                let sent = self.down.send(&self.end.memory, self.end.spec.test, bytes);
                sent.map_err(|broken| self.blame(Some(broken)))?;
                flight.post();
            }
            if flight.is_empty() {
                break;
            }
            let done = self.down.done();
            self.turn(&mut eye).map_err(|broken| self.blame(Some(broken)))?;
            let news = (done..self.down.done()).filter(|message| flight.complete(message - first));
            match news.count() {
                0 if eye.idle() > STALL => return Err(self.blame(None)),
                0 if eye.idle() > LOOK_EVERY && looked_at.elapsed() > LOOK_EVERY => {
                    looked_at = Instant::now();
                    self.look_after_servers()?;
                }
                0 => {}
                count => meter.add(count as u64),
            }
        }
        let cpu = cpu_time().saturating_sub(cpu);
        let row = meter.finish(interrupt::asked().is_some());
        Ok(flight.add_to(row, self.hosts.len(), Replicate::Chain, cpu))
    }

    fn turn(&mut self, eye: &mut Eye) -> Result<(), Broken> {
        let completions = eye.look(&self.end.cq).map_err(|e| Broken::new(Side::Next, e))?;
        completions.iter().try_for_each(|completion| self.down.on_completion(completion))
    }

    /// Tells all servers the result, and checks that each received what was sent.
    fn settle(&mut self, row: &Row, first: u64, bytes: u32) -> Result<(), Box<dyn Error>> {
        let sent = self.end.memory.digest(first..self.down.posted, bytes);
        for (channel, host) in self.channels.iter_mut().zip(&self.hosts) {
            let named = |error: Box<dyn Error>| format!("{host}: {error}");
            session::tell(channel, row).map_err(named)?;
            // This end's packet count is not what any single server was sent.
            account::exchange(channel, None).map_err(named)?;
            if row.is_interrupted() {
                continue;
            }
            let has = channel.recv().map_err(|error| named(error.into()))?;
            if has != sent {
                return Err(format!("{host}: its data differs from what was sent").into());
            }
        }
        Ok(())
    }

    /// Fails if a server has disconnected or given up.
    fn look_after_servers(&mut self) -> Result<(), Box<dyn Error>> {
        for channel in &self.channels {
            if channel.is_readable()? {
                // While messages flow, servers send nothing on this channel.
                return Err(self.blame(None));
            }
        }
        Ok(())
    }

    /// Finds out which server stopped the chain.
    fn blame(&mut self, own: Option<Broken>) -> Box<dyn Error> {
        let deadline = Instant::now() + GRACE;
        let mut words: Vec<Word> = self.hosts.iter().map(|_| Word::Silent).collect();
        while Instant::now() < deadline {
            for (channel, word) in self.channels.iter_mut().zip(&mut words) {
                if matches!(word, Word::Silent) && channel.is_readable().unwrap_or(true) {
                    channel.set_timeout(GRACE);
                    let broken = channel.recv().ok().and_then(|m| Broken::from_message(&m));
                    *word = broken.map_or(Word::Gone, Word::Gave);
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
        verdict(&self.hosts, &words, own.as_ref()).into()
    }
}

/// A server's report about a broken chain.
#[derive(Debug)]
pub(super) enum Word {
    Silent,
    /// It has disconnected.
    Gone,
    /// It has given up.
    Gave(Broken),
}

/// Finds the culprit. A server that has disconnected is one. Otherwise it is the server that the
/// last complaining server blames: the servers before it only miss what it does not receive either.
pub(super) fn verdict(hosts: &[String], words: &[Word], own: Option<&Broken>) -> String {
    let said: Vec<(&String, &Word)> = hosts.iter().zip(words).collect();
    let gone: Vec<&str> = said
        .iter()
        .filter(|(_, word)| matches!(word, Word::Gone))
        .map(|(host, _)| host.as_str())
        .collect();
    if !gone.is_empty() {
        return format!("{}: disconnected, which broke the chain", gone.join(", "));
    }
    let sender = "the sender".to_owned();
    let complaints = said.iter().enumerate().filter_map(|(position, (host, word))| {
        let Word::Gave(Broken { side, why }) = word else { return None };
        let other = match side {
            Side::Next => hosts.get(position + 1)?,
            Side::Previous => position.checked_sub(1).map_or(&sender, |before| &hosts[before]),
        };
        let order = (*side == Side::Next, position);
        Some((order, format!("{other}: {why} (reported by {host})")))
    });
    if let Some((_, complaint)) = complaints.max_by_key(|(order, _)| *order) {
        return complaint;
    }
    match own {
        Some(Broken { why, .. }) => format!("{}: {why}", hosts[0]),
        None => {
            let (secs, last) = (STALL.as_secs(), hosts.last().map_or("", String::as_str));
            format!("no acknowledgement from {last}, the last server, for {secs} s")
        }
    }
}
