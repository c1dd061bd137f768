//! The model of a link: no clock, no IO.

use bowline_nic::Time;
use rand::Rng;

use super::profile::{LinkProfile, Loss};

/// How much longer than the others a reordered packet takes, at least.
const REORDER_HOLD_NS: u64 = 200_000;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Lost on the way.
    Lost,
    /// Dropped at once: the queue is full.
    QueueFull,
    /// It arrives.
    Arrives {
        /// When.
        at: Time,
        /// Twice.
        duplicate: bool,
        /// With this bit wrong, counted from the first of the packet.
        corrupt_bit: Option<usize>,
        /// After packets that came later.
        reordered: bool,
    },
}

/// One direction of a link. Time and randomness are arguments.
#[derive(Clone, Debug)]
pub struct Link {
    profile: LinkProfile,
    /// When the transmitter has sent all that it took.
    free_at: Time,
    /// When the last packet that was not reordered arrives.
    last_arrival: Time,
    is_bad: bool,
}

impl Link {
    /// An idle link.
    pub fn new(profile: LinkProfile) -> Link {
        Link { profile, free_at: Time::ZERO, last_arrival: Time::ZERO, is_bad: false }
    }

    /// What the link does.
    pub fn profile(&self) -> &LinkProfile {
        &self.profile
    }

    /// Takes a packet of `len` bytes, headers included, at `now`.
    pub fn admit(&mut self, now: Time, len: usize, rng: &mut impl Rng) -> Fate {
        let start = self.free_at.max(now);
        if let Some(rate) = self.profile.rate_bps {
            if self.queued_bytes(now) + len as u64 > self.profile.queue_limit_bytes {
                return Fate::QueueFull;
            }
            let transmit_ns = len as u128 * 8_000_000_000 / u128::from(rate);
            self.free_at = start.plus_nanos(u64::try_from(transmit_ns).unwrap_or(u64::MAX));
        } else {
            self.free_at = start;
        }
        // A lost packet has taken its time on the link like any other.
        if self.is_lost(rng) {
            return Fate::Lost;
        }
        let reordered = chance(self.profile.reorder, rng);
        let on_time = self.free_at.plus_nanos(self.delay_ns(rng)).max(self.last_arrival);
        let at = if reordered {
            on_time.plus_nanos(REORDER_HOLD_NS.max(nanos(self.profile.jitter)))
        } else {
            self.last_arrival = on_time;
            on_time
        };
        let corrupt_bit =
            chance(self.profile.corrupt, rng).then(|| (rng.next_u64() % (len as u64 * 8)) as usize);
        Fate::Arrives { at, duplicate: chance(self.profile.duplicate, rng), corrupt_bit, reordered }
    }

    /// When the transmitter will have sent all that it took.
    pub fn free_at(&self) -> Time {
        self.free_at
    }

    /// Bytes that wait for transmission at `now`, as seen by a packet that comes then.
    pub fn queued_bytes(&self, now: Time) -> u64 {
        let waiting_ns = self.free_at.nanos_since(now);
        let bytes = u128::from(waiting_ns) * u128::from(self.profile.rate_bps.unwrap_or(0));
        // As much as passes in the time that is left.
        u64::try_from(bytes / 8_000_000_000).unwrap_or(u64::MAX / 2)
    }

    fn is_lost(&mut self, rng: &mut impl Rng) -> bool {
        match self.profile.loss {
            Loss::None => false,
            Loss::Iid(p) => chance(p, rng),
            Loss::GilbertElliott { good_to_bad, bad_to_good, loss_bad, loss_good } => {
                let change = if self.is_bad { bad_to_good } else { good_to_bad };
                self.is_bad ^= chance(change, rng);
                chance(if self.is_bad { loss_bad } else { loss_good }, rng)
            }
        }
    }

    fn delay_ns(&self, rng: &mut impl Rng) -> u64 {
        let (delay, jitter) = (nanos(self.profile.delay), nanos(self.profile.jitter));
        if jitter == 0 {
            return delay;
        }
        let spread = rng.next_u64() % (2 * jitter + 1);
        (delay + spread).saturating_sub(jitter)
    }
}

fn chance(p: f64, rng: &mut impl Rng) -> bool {
    // Drawing nothing for what cannot happen keeps a seed's course when an option is left out.
    p > 0.0 && ((rng.next_u64() >> 11) as f64) < p * (1_u64 << 53) as f64
}

fn nanos(duration: std::time::Duration) -> u64 {
    // Above a century no sum of two overflows.
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 4)
}
