//! One direction of a cable.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::LinkConfig;
use crate::faults::{Damage, Faults, uniform};
use crate::loss::LossState;
use crate::profile::LinkProfile;
use crate::stats::LinkStats;
use crate::time::Time;
use crate::transmitter::{Departure, Transmitter};

/// Streams of a seed from here on decide about marking.
const MARKING_STREAMS: u64 = 1 << 63;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dropped at once: the queue is full.
    QueueFull,
    /// Lost on the way.
    Lost,
    /// It arrives.
    Arrives(Arrival),
}

/// How a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// When a copy of it does, if there is one.
    pub copy_at: Option<Time>,
    /// With these bytes changed.
    pub damage: Option<Damage>,
    /// After packets that came later. Packets for which this is false arrive in the order in which the
    /// link took them.
    pub is_reordered: bool,
    /// With a mark: congestion experienced.
    pub is_marked: bool,
}

/// One direction of a cable: a queue with tail drop and ECN marking, a rate, a delay, and faults.
///
/// Packets are given by their length alone ([`admit`](Link::admit)), and time is an argument that does
/// not go backwards. What faults do to the n-th packet that is transmitted depends on the seed, the
/// stream and n, and on nothing else: not on time, nor on the packets that the queue had no room for.
#[derive(Clone, Debug)]
pub struct Link {
    config: LinkConfig,
    faults: Faults,
    is_up: bool,
    loss: LossState,
    rng: ChaCha8Rng,
    /// Marking depends on time by way of the queue, and so has draws of its own.
    mark_rng: Option<Box<ChaCha8Rng>>,
    transmitter: Transmitter,
    /// When the last packet that was not reordered arrives.
    last_arrival: Time,
    stats: LinkStats,
}

impl Link {
    /// An idle link without faults. Links of one seed draw independently if their streams differ;
    /// streams are below 2^63.
    pub fn new(config: LinkConfig, seed: u64, stream: u64) -> Link {
        let rng = |stream| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream);
            rng
        };
        Link {
            transmitter: Transmitter::new(&config),
            mark_rng: config.ecn.map(|_| Box::new(rng(MARKING_STREAMS | stream))),
            rng: rng(stream),
            config,
            faults: Faults::default(),
            is_up: true,
            loss: LossState::default(),
            last_arrival: Time::ZERO,
            stats: LinkStats::default(),
        }
    }

    /// An idle link with a profile's faults and seed.
    pub fn from_profile(profile: &LinkProfile, stream: u64) -> Link {
        let mut link = Link::new(profile.config, profile.seed, stream);
        link.set_faults(profile.faults);
        link
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
    pub fn set_up(&mut self, is_up: bool) {
        self.is_up = is_up;
    }

    /// What it has done.
    pub fn stats(&self) -> LinkStats {
        LinkStats { queue_peak_bytes: self.transmitter.peak_bytes(), ..self.stats }
    }

    /// When all that it took will have left.
    pub fn free_at(&self) -> Time {
        self.transmitter.free_at()
    }

    /// Bytes that wait for transmission at `now`, as seen by a packet that comes then.
    pub fn queued_bytes(&self, now: Time) -> u64 {
        self.transmitter.queued_bytes(now)
    }

    /// Takes a packet of `len` bytes, all headers that count included, at `now`. Only a packet that can
    /// be marked (`is_ecn_capable`) is.
    #[inline]
    pub fn admit(&mut self, now: Time, len: usize, is_ecn_capable: bool) -> Fate {
        let departure = self.transmitter.departure(now, len);
        if self.transmitter.is_full(now, &departure) {
            self.stats.queue_drops += 1;
            return Fate::QueueFull;
        }
        let is_marked = is_ecn_capable && self.marks(now, 0);
        self.carry(now, len, departure, is_marked)
    }

    /// Takes a packet however full the queue is, from one that keeps a queue of its own. Marking sees
    /// the `backlog_bytes` that are there, besides what this link keeps waiting.
    pub fn transmit(
        &mut self,
        now: Time,
        len: usize,
        is_ecn_capable: bool,
        backlog_bytes: u64,
    ) -> Fate {
        let departure = self.transmitter.departure(now, len);
        let is_marked = is_ecn_capable && self.marks(now, backlog_bytes);
        self.carry(now, len, departure, is_marked)
    }

    #[inline]
    fn carry(&mut self, now: Time, len: usize, departure: Departure, is_marked: bool) -> Fate {
        // A lost packet takes its time like any other.
        let left_at = self.transmitter.take(now, departure);
        self.stats.carried += 1;
        self.stats.carried_bytes += len as u64;
        if self.loss.loses(&self.faults.loss, &mut self.rng) || !self.is_up {
            self.stats.lost += 1;
            return Fate::Lost;
        }
        let is_reordered = self.faults.reorder.happens(&mut self.rng);
        let at = self.arrival(left_at, is_reordered);
        let damage = self.faults.corrupt.happens(&mut self.rng).then(|| {
            self.stats.corrupted += 1;
            Damage { how: self.faults.corruption, word: self.rng.next_u64() }
        });
        let copy_at = self.faults.duplicate.happens(&mut self.rng).then(|| {
            self.stats.duplicated += 1;
            at.plus_nanos(uniform(self.faults.reorder_ns.max(1), &mut self.rng))
        });
        Fate::Arrives(Arrival { at, copy_at, damage, is_reordered, is_marked })
    }

    #[inline]
    fn marks(&mut self, now: Time, backlog_bytes: u64) -> bool {
        let (Some(ecn), Some(rng)) = (&self.config.ecn, &mut self.mark_rng) else { return false };
        let queued = self.transmitter.queued_bytes(now).saturating_add(backlog_bytes);
        let is_marked = ecn.probability(queued).happens(rng);
        self.stats.marked += u64::from(is_marked);
        is_marked
    }

    #[inline]
    fn arrival(&mut self, left_at: Time, is_reordered: bool) -> Time {
        let in_order = left_at.plus_nanos(self.delay_ns()).max(self.last_arrival);
        if !is_reordered {
            self.last_arrival = in_order;
            return in_order;
        }
        self.stats.reordered += 1;
        in_order.plus_nanos(uniform(self.faults.reorder_ns, &mut self.rng) + 1)
    }

    #[inline]
    fn delay_ns(&mut self) -> u64 {
        // Above a century no sum of two overflows.
        let jitter_ns = self.faults.jitter_ns.min(u64::MAX / 4);
        if jitter_ns == 0 {
            return self.config.delay_ns;
        }
        let spread = uniform(2 * jitter_ns + 1, &mut self.rng);
        self.config.delay_ns.saturating_add(spread).saturating_sub(jitter_ns)
    }
}
