//! Middleware that makes a port's link worse, as a network would: for what it sends.

mod held;
mod link;
mod profile;
pub mod units;

#[cfg(test)]
mod tests;

use bowline_nic::{Time, TxBatch};
use bowline_wire::FlowKey;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::fault::Faults;
use crate::port::{FrameSink, Outbox, Port, PortCaps, PortCounters, PortError, PortFds, earlier};
use held::{Held, HeldPackets};
pub use link::{Fate, Link};
pub use profile::{LinkProfile, Loss, ParseLinkError};

/// Packets released in one batch.
const BATCH_PACKETS: usize = 64;
/// Due packets wait up to this long for others, to leave in one burst: at 1 Gbit/s a packet of
/// 4 KiB is due every 33 µs, and waking up for each would cost a core.
const SLACK_NS: u64 = 40_000;
/// On links faster than this the slack would be felt.
const SLACK_MIN_DELAY_NS: u64 = 500_000;
/// IPv4 and UDP headers: what the rate counts besides the packet.
const IP_UDP_BYTES: usize = 28;

/// Impairs what a port sends: loss, delay, rate, reordering, duplication, corruption.
///
/// Every packet meets its own fate, also within a burst. What arrives is not touched: to impair
/// both directions, both ends have one.
///
/// A port below that drops or blocks adds to what the profile says; the counters tell.
pub struct Impair<P> {
    inner: P,
    link: Link,
    rng: ChaCha8Rng,
    held: HeldPackets,
    slack_ns: u64,
    /// Being sent; holds the rest if the port below is full.
    outbox: Outbox,
    /// When the last call was.
    now: Time,
    counters: PortCounters,
}

impl<P: Port> Impair<P> {
    /// Puts a link with this profile behind a port.
    pub fn new(inner: P, profile: LinkProfile) -> Impair<P> {
        let delay_ns = profile.delay.as_nanos();
        let coarse = profile.rate_bps.is_some() || delay_ns >= u128::from(SLACK_MIN_DELAY_NS);
        Impair {
            outbox: Outbox::new(inner.caps().tx, BATCH_PACKETS),
            rng: ChaCha8Rng::seed_from_u64(profile.seed),
            held: HeldPackets::new(),
            slack_ns: if coarse { SLACK_NS } else { 0 },
            link: Link::new(profile),
            inner,
            now: Time::ZERO,
            counters: PortCounters::default(),
        }
    }

    /// The port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    fn admit(&mut self, now: Time, key: &FlowKey, tos: u8, sealed_id: u16, frame: Vec<u8>) {
        let len = frame.len() + IP_UDP_BYTES;
        match self.link.admit(now, len, &mut self.rng) {
            Fate::Lost => self.counters.impair_lost += 1,
            Fate::QueueFull => self.counters.impair_queue_full += 1,
            Fate::Arrives { at, duplicate, corrupt_bit, reordered } => {
                self.counters.impair_reordered += u64::from(reordered);
                let mut held = Held { at, key: *key, tos, sealed_id, frame };
                if let Some(bit) = corrupt_bit {
                    held.flip_bit(bit);
                    self.counters.impair_corrupted += 1;
                }
                if duplicate {
                    self.counters.impair_duplicated += 1;
                    self.hold(held.clone());
                }
                self.hold(held);
            }
        }
    }

    fn hold(&mut self, held: Held) {
        if !self.held.push(held) {
            self.counters.impair_queue_full += 1;
        }
    }

    /// Sends on what is due.
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
                let lateness = now.nanos_since(held.at);
                let max = &mut self.counters.impair_max_lateness_ns;
                *max = lateness.max(*max);
                self.outbox.push(&held.key, held.tos, held.sealed_id, &held.frame);
            }
            if self.outbox.is_empty() {
                return Ok(());
            }
            self.outbox.send(now, &mut self.inner)?;
        }
    }

    /// When enough is due to be worth a call.
    fn next_release(&self) -> Option<Time> {
        let due = || self.held.next_due().map(|due| due.plus_nanos(self.slack_ns));
        self.outbox.retry_at(self.now).or_else(due)
    }
}

impl<P: Port> Port for Impair<P> {
    fn caps(&self) -> PortCaps {
        self.inner.caps()
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
        if self.slack_ns == 0 {
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

    fn fds(&self) -> PortFds {
        self.inner.fds()
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.inner.counters();
        let ours = &self.counters;
        all.impair_lost += ours.impair_lost;
        all.impair_queue_full += ours.impair_queue_full;
        all.impair_duplicated += ours.impair_duplicated;
        all.impair_corrupted += ours.impair_corrupted;
        all.impair_reordered += ours.impair_reordered;
        all.impair_max_lateness_ns = all.impair_max_lateness_ns.max(ours.impair_max_lateness_ns);
        all
    }

    fn faults(&self) -> Option<&Faults> {
        self.inner.faults()
    }
}
