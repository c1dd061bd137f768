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

/// Streams of a seed from here on are for marking.
const MARKING_STREAMS: u64 = 1 << 63;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Dropped at once: the queue is full.
    QueueFull,
    /// Lost in transit.
    Lost,
    /// It arrives.
    Arrives(Arrival),
}

/// How a packet arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// Arrival of a duplicate, if there is one.
    pub copy_at: Option<Time>,
    /// With these bytes changed.
    pub damage: Option<Damage>,
    /// After packets that came later. Packets for which this is false arrive in the order in which
    /// the link took them.
    pub is_reordered: bool,
    /// With a mark: congestion experienced.
    pub is_marked: bool,
}

/// One direction of a cable: a queue with tail drop and ECN marking, a rate, a delay, and faults.
///
/// A packet is represented by its length alone ([`admit`](Link::admit)), and time is an argument
/// that does not go backwards. The faults of the n-th transmitted packet depend only on the seed,
/// the stream and n: not on time, nor on packets that the full queue dropped.
#[derive(Clone, Debug)]
pub struct Link {
    transmitter: Transmitter,
    /// When the last packet that was not reordered arrives.
    last_arrival: Time,
    stats: LinkStats,
    /// There are faults, or the link is down: only then does a packet take the slow path.
    is_faulty: bool,
    is_up: bool,
    config: LinkConfig,
    faulty: Box<Faulty>,
    /// Marking depends on time through the queue, so it has its own draws.
    mark_rng: Option<Box<ChaCha8Rng>>,
}

/// State that only links with faults use.
#[derive(Clone, Debug)]
struct Faulty {
    faults: Faults,
    loss: LossState,
    rng: ChaCha8Rng,
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
        let (faults, loss) = (Faults::default(), LossState::default());
        Link {
            transmitter: Transmitter::new(&config),
            last_arrival: Time::ZERO,
            stats: LinkStats::default(),
            is_faulty: false,
            is_up: true,
            mark_rng: config.ecn.map(|_| Box::new(rng(MARKING_STREAMS | stream))),
            config,
            faulty: Box::new(Faulty { faults, loss, rng: rng(stream) }),
        }
    }

    /// An idle link with a profile's faults and seed.
    pub fn from_profile(profile: &LinkProfile, stream: u64) -> Link {
        let mut link = Link::new(profile.config, profile.seed, stream);
        link.set_faults(profile.faults);
        link
    }

    /// Its configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes its configuration from `now` on. Packets already admitted arrive when it said they
    /// would; new ones wait for them at the new rate. Marking that was not configured before has no
    /// draws, and is left out.
    pub fn set_config(&mut self, now: Time, config: LinkConfig) {
        self.transmitter.change(now, &config);
        self.config = config;
    }

    /// Sets its faults from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faulty.faults = faults;
        self.is_faulty = !self.is_up || faults != Faults::default();
    }

    /// Whether it carries anything at all.
    pub fn set_up(&mut self, is_up: bool) {
        self.is_up = is_up;
        self.set_faults(self.faulty.faults);
    }

    /// Its statistics.
    pub fn stats(&self) -> LinkStats {
        LinkStats { queue_peak_bytes: self.transmitter.peak_bytes(), ..self.stats }
    }

    /// When everything admitted will have left.
    pub fn free_at(&self) -> Time {
        self.transmitter.free_at()
    }

    /// Bytes that wait for transmission at `now`, as seen by a packet that comes then.
    pub fn queued_bytes(&self, now: Time) -> u64 {
        self.transmitter.queued_bytes(now)
    }

    /// Admits a packet of `len` bytes, all headers that count included, at `now`. It is marked only
    /// if it can be (`is_ecn_capable`).
    #[inline(always)]
    pub fn admit(&mut self, now: Time, len: usize, is_ecn_capable: bool) -> Fate {
        let departure = self.transmitter.departure(now, len);
        if self.transmitter.is_full(now, &departure) {
            self.stats.queue_drops += 1;
            return Fate::QueueFull;
        }
        let is_marked = is_ecn_capable && self.marks(now, 0);
        self.carry(now, len, departure, is_marked)
    }

    /// Admits a packet however full the queue is, for callers that keep their own queue. Marking
    /// takes the caller's `backlog_bytes` into account besides this link's own queue.
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

    #[inline(always)]
    fn carry(&mut self, now: Time, len: usize, departure: Departure, is_marked: bool) -> Fate {
        // A lost packet takes transmission time like any other.
        let left_at = self.transmitter.take(now, departure);
        self.stats.carried += 1;
        self.stats.carried_bytes += len as u64;
        if self.is_faulty {
            return self.carry_faultily(left_at, is_marked);
        }
        let at = left_at.plus_nanos(self.config.delay_ns).max(self.last_arrival);
        self.last_arrival = at;
        Fate::Arrives(Arrival { at, copy_at: None, damage: None, is_reordered: false, is_marked })
    }

    #[inline(never)]
    fn carry_faultily(&mut self, left_at: Time, is_marked: bool) -> Fate {
        let Faulty { faults, loss, rng } = &mut *self.faulty;
        if loss.loses(&faults.loss, rng) || !self.is_up {
            self.stats.lost += 1;
            return Fate::Lost;
        }
        let is_reordered = faults.reorder.happens(rng);
        let delay_ns = delay_ns(self.config.delay_ns, faults.jitter_ns, rng);
        let mut at = left_at.plus_nanos(delay_ns).max(self.last_arrival);
        if is_reordered {
            self.stats.reordered += 1;
            at = at.plus_nanos(uniform(faults.reorder_ns, rng) + 1);
        } else {
            self.last_arrival = at;
        }
        let damage = faults.corrupt.happens(rng).then(|| {
            self.stats.corrupted += 1;
            Damage { how: faults.corruption, word: rng.next_u64() }
        });
        let copy_at = faults.duplicate.happens(rng).then(|| {
            self.stats.duplicated += 1;
            at.plus_nanos(uniform(faults.reorder_ns.max(1), rng))
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
}

fn delay_ns(delay_ns: u64, jitter_ns: u64, rng: &mut impl Rng) -> u64 {
    // Above a century no sum of two overflows.
    let jitter_ns = jitter_ns.min(u64::MAX / 4);
    if jitter_ns == 0 {
        return delay_ns;
    }
    let spread = uniform(2 * jitter_ns + 1, rng);
    delay_ns.saturating_add(spread).saturating_sub(jitter_ns)
}
