//! Middleware that impairs what a port sends, as a bad network would.

mod held;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_link::{Fate, Link, LinkProfile};
use bowline_nic::{ECN_CE, ECN_MASK, Time, TxBatch};
use bowline_wire::FlowKey;

use crate::fault::Faults;
use crate::port::{FrameSink, Outbox, Port, PortCaps, PortCounters, PortError, PortFds, earlier};
use crate::udp::Multicasts;
use held::{Held, HeldPackets};

/// Packets released in one batch.
const BATCH_PACKETS: usize = 64;
/// Due packets wait up to this long for others, to leave in one burst: at 1 Gbit/s a packet of 4
/// KiB is due every 33 µs, and waking up for each would cost a core.
const SLACK_NS: u64 = 40_000;
/// Behind a queue, due packets wait longer still: by this part of the time that the queue takes.
/// Nobody notices that, and waking up for two packets at a time took most of the sender's CPU.
const QUEUE_PART: u64 = 8;
/// The most that a queue adds, in time and in bytes at the link's rate: more could overflow the
/// receiver's socket.
const MAX_QUEUE_SLACK_NS: u64 = 200_000;
const MAX_QUEUE_SLACK_BYTES: u64 = 32 << 10;
/// Links with a shorter delay get no slack: it would be noticeable.
const SLACK_MIN_DELAY_NS: u64 = 500_000;
/// IPv4 and UDP headers, which count towards the rate besides the packet.
const IP_UDP_BYTES: usize = 28;

/// Impairs what a port sends: loss, delay, rate, reordering, duplication, corruption.
///
/// Impairments are drawn per packet, also within a burst. Received packets are not touched: to
/// impair both directions, wrap both ends.
///
/// Drops or blocking in the port below add to the profile's; the counters tell them apart.
pub struct Impair<P> {
    inner: P,
    link: SharedLink,
    /// Reports the link's counters; of several ports that share a link, only the first does.
    counts: bool,
    held: HeldPackets,
    slack: Slack,
    /// The batch being sent; holds the rest while the port below is full.
    outbox: Outbox,
    /// Time of the last call.
    now: Time,
    /// Packets dropped because too many were held.
    overflows: u64,
    max_lateness_ns: u64,
}

/// A link that several ports send over: the lanes of a device share its rate, queue and losses.
#[derive(Clone)]
pub struct SharedLink {
    link: Arc<Mutex<Link>>,
    slack: Slack,
}

/// How long due packets wait for others.
#[derive(Clone, Copy, Default)]
struct Slack {
    least_ns: u64,
    delay_ns: u64,
    /// The most that a queue adds; none without a rate.
    max_queue_ns: u64,
}

impl Slack {
    fn of(profile: &LinkProfile) -> Slack {
        let config = &profile.config;
        let (rate_bps, delay_ns) = (config.rate_bps, config.delay_ns);
        let coarse = rate_bps.is_some() || delay_ns >= SLACK_MIN_DELAY_NS;
        let max_queue_ns = rate_bps.map_or(0, |rate| {
            let bytes_ns = MAX_QUEUE_SLACK_BYTES * 8 * 1_000_000_000 / rate.max(1);
            bytes_ns.min(MAX_QUEUE_SLACK_NS)
        });
        Slack { least_ns: if coarse { SLACK_NS } else { 0 }, delay_ns, max_queue_ns }
    }

    /// For packets that arrive over a time of `span_ns`: what exceeds the delay is the queue.
    fn for_span(&self, span_ns: u64) -> u64 {
        let queue_ns = span_ns.saturating_sub(self.delay_ns);
        self.least_ns + (queue_ns / QUEUE_PART).min(self.max_queue_ns)
    }
}

impl SharedLink {
    /// A link with this profile.
    pub fn new(profile: &LinkProfile) -> SharedLink {
        let link = Arc::new(Mutex::new(Link::from_profile(profile, 0)));
        SharedLink { link, slack: Slack::of(profile) }
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        // The model has no state that a panic could leave half-changed.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Port> Impair<P> {
    /// Puts a link with this profile behind a port.
    pub fn new(inner: P, profile: &LinkProfile) -> Impair<P> {
        Impair::over(inner, &SharedLink::new(profile), true)
    }

    /// Puts a link that other ports share behind a port. Exactly one of the ports `counts` what the
    /// link does.
    pub fn over(inner: P, link: &SharedLink, counts: bool) -> Impair<P> {
        Impair {
            outbox: Outbox::new(inner.caps().tx, BATCH_PACKETS),
            held: HeldPackets::new(),
            slack: link.slack,
            link: link.clone(),
            counts,
            inner,
            now: Time::ZERO,
            overflows: 0,
            max_lateness_ns: 0,
        }
    }

    /// The port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    fn admit(&mut self, now: Time, key: &FlowKey, tos: u8, summed_id: u16, frame: Vec<u8>) {
        let len = frame.len() + IP_UDP_BYTES;
        let fate = self.link.lock().admit(now, len, tos & ECN_MASK != 0);
        let Fate::Arrives(arrival) = fate else { return };
        let tos = if arrival.is_marked { tos | ECN_CE } else { tos };
        let mut held = Held { at: arrival.at, key: *key, tos, summed_id, frame };
        if let Some(damage) = arrival.damage {
            held.flip_bit(damage.bit(len));
        }
        if let Some(at) = arrival.copy_at {
            self.hold(Held { at, ..held.clone() });
        }
        self.hold(held);
    }

    fn hold(&mut self, held: Held) {
        if !self.held.push(held) {
            self.overflows += 1;
        }
    }

    /// Forwards the packets that are due.
    fn release(&mut self, now: Time) -> Result<(), PortError> {
        loop {
            if self.outbox.is_blocked() {
                self.outbox.send(now, &mut self.inner)?;
            }
            if self.outbox.is_blocked() {
                return Ok(());
            }
            while self.outbox.room() > 0
                && let Some(held) = self.held.pop_due(now)
            {
                self.max_lateness_ns = self.max_lateness_ns.max(now.nanos_since(held.at));
                self.outbox.push(&held.key, held.tos, held.summed_id, &held.frame);
            }
            if self.outbox.is_empty() {
                return Ok(());
            }
            self.outbox.send(now, &mut self.inner)?;
        }
    }

    /// When enough packets are due to be worth a call.
    fn next_release(&self) -> Option<Time> {
        let due = || {
            let (due, last) = (self.held.next_due()?, self.held.last_due());
            Some(due.plus_nanos(self.slack.for_span(last.nanos_since(due))))
        };
        self.outbox.retry_at(self.now).or_else(due)
    }
}

impl<P: Port> Port for Impair<P> {
    fn caps(&self) -> PortCaps {
        PortCaps { shares_memory: false, ..self.inner.caps() }
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.now = now;
        let caps = self.inner.caps();
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        for burst in bursts {
            let key = FlowKey {
                src: caps.addr,
                dst: burst.dst,
                src_port: caps.udp_port,
                dst_port: burst.dst_port,
            };
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let frame = batch.bytes(packet).to_vec();
                self.admit(now, &key, burst.tos, id as u16, frame);
            }
        }
        if self.slack.least_ns == 0 {
            self.release(now)?;
        }
        Ok(bursts.len())
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.inner.recv(now, sink)
    }

    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        self.now = now;
        if self.next_release().is_some_and(|at| at <= now) || self.outbox.is_blocked() {
            self.release(now)?;
        }
        self.inner.flush(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        earlier(self.next_release(), self.inner.poll_timeout())
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep()
    }

    fn fds(&self) -> PortFds {
        self.inner.fds()
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.inner.counters();
        all.impair_queue_full += self.overflows;
        all.impair_max_lateness_ns = all.impair_max_lateness_ns.max(self.max_lateness_ns);
        if !self.counts {
            return all;
        }
        let link = self.link.lock();
        let link = link.stats();
        all.impair_lost += link.lost;
        all.impair_queue_full += link.queue_drops;
        all.impair_duplicated += link.duplicated;
        all.impair_corrupted += link.corrupted;
        all.impair_reordered += link.reordered;
        all.impair_marked += link.marked;
        all
    }

    fn faults(&self) -> Option<&Faults> {
        self.inner.faults()
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        self.inner.multicasts()
    }
}
