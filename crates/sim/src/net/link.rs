//! One direction of a cable: a queue in front of it, a rate, a delay, and faults.

use std::collections::VecDeque;

use bowline_nic::{ECN_CE, ECN_MASK, Time};

use super::fault::{Faults, LossState, corrupt};
use crate::packet::Packet;
use crate::rng::{Prob, SimRng};

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate in bits per second.
    pub bandwidth_bps: u64,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Bytes that wait for the link; what does not fit is dropped.
    pub queue_bytes: u32,
    /// Congestion marking, if there is any.
    pub ecn: Option<Ecn>,
}

impl LinkConfig {
    /// How long a full queue takes to drain.
    pub fn drain_ns(&self) -> u64 {
        let bits = u128::from(self.queue_bytes) * 8;
        (bits * 1_000_000_000 / u128::from(self.bandwidth_bps.max(1))) as u64
    }
}

/// When a queue marks packets that can be marked, by its length at their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn {
    /// Up to here, never.
    pub kmin_bytes: u32,
    /// From here on, always.
    pub kmax_bytes: u32,
    /// Just below `kmax_bytes`; in between the probability grows linearly.
    pub pmax: Prob,
}

impl Ecn {
    fn probability(&self, queued_bytes: u32) -> Prob {
        if queued_bytes <= self.kmin_bytes {
            return Prob::NEVER;
        }
        if queued_bytes >= self.kmax_bytes {
            return Prob::ALWAYS;
        }
        let over = f64::from(queued_bytes - self.kmin_bytes);
        let span = f64::from(self.kmax_bytes - self.kmin_bytes);
        Prob::new(self.pmax.as_f64() * over / span)
    }
}

/// What a link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets carried, copies not counted.
    pub carried: u64,
    /// Wire bytes carried.
    pub carried_bytes: u64,
    /// Dropped: the queue was full.
    pub queue_drops: u64,
    /// Dropped: lost, or the link was down.
    pub lost: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Changed on the way.
    pub corrupted: u64,
    /// Marked: congestion experienced.
    pub marked: u64,
    /// Most bytes that ever waited.
    pub queue_peak_bytes: u32,
}

impl LinkStats {
    /// Adds another link's.
    pub fn merge(&mut self, other: &LinkStats) {
        self.carried += other.carried;
        self.carried_bytes += other.carried_bytes;
        self.queue_drops += other.queue_drops;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
        self.marked += other.marked;
        self.queue_peak_bytes = self.queue_peak_bytes.max(other.queue_peak_bytes);
    }
}

/// What becomes of a packet given to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The queue was full.
    QueueDrop,
    /// Lost on the way.
    Lost,
    /// Arrives, perhaps twice.
    Arrives {
        /// When.
        at: Time,
        /// When its copy does.
        copy_at: Option<Time>,
    },
}

/// One direction of a cable.
#[derive(Debug)]
pub struct Link {
    config: LinkConfig,
    faults: Faults,
    up: bool,
    loss: LossState,
    rng: SimRng,
    /// When the last bit of what is queued has left.
    free_at: Time,
    /// Packets that have not left yet: when they will have, and their wire bytes.
    queue: VecDeque<(Time, u32)>,
    queued_bytes: u32,
    /// Latest arrival of a packet in order: jitter does not reorder.
    last_arrival: Time,
    stats: LinkStats,
}

impl Link {
    /// A link without faults, whose draws come from `rng`.
    pub fn new(config: LinkConfig, rng: SimRng) -> Link {
        Link {
            config,
            faults: Faults::default(),
            up: true,
            loss: LossState::default(),
            rng,
            free_at: Time::ZERO,
            queue: VecDeque::new(),
            queued_bytes: 0,
            last_arrival: Time::ZERO,
            stats: LinkStats::default(),
        }
    }

    /// What it is.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Its faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Whether it carries anything at all.
    pub fn set_up(&mut self, up: bool) {
        self.up = up;
    }

    /// What it has done.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Bytes that wait at `now`.
    pub fn queued_bytes(&mut self, now: Time) -> u32 {
        while let Some((left_at, bytes)) = self.queue.front().copied()
            && left_at <= now
        {
            self.queue.pop_front();
            self.queued_bytes -= bytes;
        }
        self.queued_bytes
    }

    /// Takes a packet; may mark or change it.
    pub fn send(&mut self, now: Time, packet: &mut Packet) -> Fate {
        let bytes = packet.wire_len();
        let queued = self.queued_bytes(now);
        if queued + bytes > self.config.queue_bytes {
            self.stats.queue_drops += 1;
            return Fate::QueueDrop;
        }
        self.mark(queued, packet);
        let left_at = self.enqueue(now, bytes);
        if !self.up || self.loss.loses(&self.faults.loss, &mut self.rng) {
            self.stats.lost += 1;
            return Fate::Lost;
        }
        if self.rng.chance(self.faults.corrupt) {
            self.stats.corrupted += 1;
            corrupt(packet, self.faults.corruption, &mut self.rng);
        }
        let at = self.arrival(left_at);
        let copy_at = self.rng.chance(self.faults.duplicate).then(|| {
            self.stats.duplicated += 1;
            at.plus_nanos(self.rng.below(self.faults.reorder_ns.max(1)))
        });
        Fate::Arrives { at, copy_at }
    }

    fn mark(&mut self, queued: u32, packet: &mut Packet) {
        let Some(ecn) = self.config.ecn else { return };
        let capable = packet.tos & ECN_MASK != 0;
        if capable && self.rng.chance(ecn.probability(queued)) {
            packet.tos |= ECN_CE;
            self.stats.marked += 1;
        }
    }

    fn enqueue(&mut self, now: Time, bytes: u32) -> Time {
        let bits = u128::from(bytes) * 8;
        let nanos = (bits * 1_000_000_000).div_ceil(u128::from(self.config.bandwidth_bps.max(1)));
        self.free_at = self.free_at.max(now).plus_nanos(nanos as u64);
        self.queue.push_back((self.free_at, bytes));
        self.queued_bytes += bytes;
        self.stats.carried += 1;
        self.stats.carried_bytes += u64::from(bytes);
        self.stats.queue_peak_bytes = self.stats.queue_peak_bytes.max(self.queued_bytes);
        self.free_at
    }

    fn arrival(&mut self, left_at: Time) -> Time {
        let mut at = left_at.plus_nanos(self.config.delay_ns);
        if self.faults.jitter_ns > 0 {
            at = at.plus_nanos(self.rng.below(self.faults.jitter_ns));
        }
        if self.rng.chance(self.faults.reorder) {
            self.stats.reordered += 1;
            return at.plus_nanos(self.rng.below(self.faults.reorder_ns.max(1)));
        }
        self.last_arrival = self.last_arrival.max(at);
        self.last_arrival
    }
}
