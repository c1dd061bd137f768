//! One sender, many servers, and a scheme that makes messages reliable over unreliable packets.

use std::error::Error;
use std::time::Instant;

use bowline::{Channel, ReliableEvent, ReliableQp, SdrError, WriteOptions};

use super::account::{self, cpu_time};
use super::args::{PerfArgs, Replicate, Spec};
use super::bandwidth::{Goal, Meter};
use super::explain;
use super::interval::Watch;
use super::reliable::{End, STALL};
use super::replicate::{self, Flight};
use super::report::{BandwidthRow, Report, Row};
use super::session::{self, TEST_TIMEOUT};
use crate::interrupt;

/// A sender and its servers.
struct Sender {
    end: End,
    /// With fan-out: the queue pairs to all servers but the first.
    more: Vec<ReliableQp>,
    channels: Vec<Channel>,
    replicate: Replicate,
}

/// Measures at the sender, for every size.
pub(super) fn client(args: &PerfArgs) -> Result<Report, Box<dyn Error>> {
    let mut sender = Sender::connect(args)?;
    let mut report = Report::new(&sender.end.spec, &sender.end.device, !args.json);
    report.print_header();
    for bytes in sender.end.spec.sizes() {
        sender.barrier()?;
        let watch = Watch { device: &sender.end.device, every: args.interval, text: !args.json };
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
    let mut resent = 0;
    for qp in sender.qps() {
        resent += qp.stats()?.chunks_resent;
    }
    report.say(&format!(" chunks sent again {resent}"));
    report.add_counters(&sender.end.device);
    if sender.end.spec.explain {
        report.say(explain::text(&sender.end.names(), &sender.end.qp.decisions()?).trim_end());
    }
    Ok(report)
}

impl Sender {
    fn connect(args: &PerfArgs) -> Result<Sender, Box<dyn Error>> {
        // A group's messages use one lane.
        let replicate = replicate::choose(args);
        let spread = if replicate == Replicate::FanOut { args.lanes.get() } else { 1 };
        let spec = Spec { spread, ..Spec::new(args) };
        let mut channels = replicate::reach(args, |_| spec.clone())?;
        let device = session::open(args, session::local_addr(args, &channels[0])?)?;
        let (end, more) = if replicate == Replicate::FanOut {
            let end = End::new(device, spec)?;
            let more = (1..channels.len()).map(|_| end.another()).collect::<Result<Vec<_>, _>>()?;
            (end, more)
        } else {
            (End::for_group(device, spec, channels.len())?, Vec::new())
        };
        if replicate == Replicate::FanOut {
            let qps = [&end.qp].into_iter().chain(&more);
            for (qp, channel) in qps.zip(&mut channels) {
                qp.connect_over(channel)?;
            }
        } else {
            end.qp.connect_group_over(&mut channels)?;
        }
        for channel in &mut channels {
            channel.set_timeout(TEST_TIMEOUT);
        }
        Ok(Sender { end, more, channels, replicate })
    }

    fn qps(&self) -> impl Iterator<Item = &ReliableQp> {
        [&self.end.qp].into_iter().chain(&self.more)
    }

    fn barrier(&mut self) -> Result<(), Box<dyn Error>> {
        Ok(self.channels.iter_mut().try_for_each(Channel::barrier)?)
    }

    fn measure(&self, bytes: u32, watch: Watch<'_>) -> Result<BandwidthRow, Box<dyn Error>> {
        let mut goal = Goal::new(&self.end.spec, &watch);
        let mut run = Run { sender: self, first: Vec::new(), flight: self.flight()?, done: 0 };
        let (start, cpu) = (Instant::now(), cpu_time());
        let mut meter = Meter::new(start, bytes, watch);
        let mut heard = start;
        while interrupt::asked().is_none() {
            let end = goal.messages_per_qp(start);
            while run.flight.has_room() && run.flight.posted < end {
                run.post(bytes)?;
            }
            if run.flight.is_empty() {
                break;
            }
            run.collect()?;
            if run.done > 0 {
                meter.add(std::mem::take(&mut run.done));
                heard = Instant::now();
            } else if heard.elapsed() > STALL {
                let secs = STALL.as_secs();
                return Err(format!("no message was delivered to all servers for {secs} s").into());
            }
        }
        let cpu = cpu_time().saturating_sub(cpu);
        let row = meter.finish(interrupt::asked().is_some());
        Ok(run.flight.add_to(row, self.channels.len(), self.replicate, cpu))
    }

    fn flight(&self) -> Result<Flight, Box<dyn Error>> {
        Flight::new(self.end.depth, 1 + self.more.len())
    }
}

/// The messages of one size.
struct Run<'a> {
    sender: &'a Sender,
    /// The number of each queue pair's first message in this run.
    first: Vec<u64>,
    flight: Flight,
    /// Messages that all servers have and that are not counted yet.
    done: u64,
}

impl Run<'_> {
    /// Posts one message to all servers.
    fn post(&mut self, bytes: u32) -> Result<(), Box<dyn Error>> {
        let Sender { end, .. } = self.sender;
        let options = WriteOptions { scheme: end.scheme, imm: None };
        self.flight.post();
        let sender = self.sender;
        for (index, qp) in sender.qps().enumerate() {
            let id = loop {
                match qp.write(&end.mr, 0..bytes as usize, options) {
                    Ok(id) => break id,
                    // Messages finish in any order, and free their numbers in that order.
                    Err(bowline::Error::Sdr(SdrError::Full { .. })) => self.collect()?,
                    Err(e) => return Err(e.into()),
                }
            };
            if self.first.len() == index {
                self.first.push(id.0);
            }
        }
        Ok(())
    }

    /// Records which messages were delivered.
    fn collect(&mut self) -> Result<(), Box<dyn Error>> {
        let sender = self.sender;
        for (index, qp) in sender.qps().enumerate() {
            while let Some(event) = qp.poll()? {
                let ReliableEvent::Written { id, result } = event else { continue };
                result.map_err(|failure| qp.explain(failure))?;
                let message = self.first.get(index).map(|first| id.0 - first);
                if message.is_some_and(|message| self.flight.complete(message)) {
                    self.done += 1;
                }
            }
        }
        Ok(())
    }
}
