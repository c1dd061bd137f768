//! A model-based controller for long, shared, unmanaged paths, after BBR: Cardwell et al., "BBR:
//! Congestion-Based Congestion Control", ACM Queue 2016, and draft-ietf-ccwg-bbr.
//! `docs/congestion.md` lists the differences and their reasons.

mod compete;
mod delivery;
mod filter;
mod limits;
mod train;

use self::compete::{Compete, Others};
use self::delivery::{Delivery, RateSample};
use self::filter::{MaxRate, MinRtt, RecentRtt};
use self::limits::{MAX_RTT_NS, bps_of, bytes_in};
use self::train::Train;
use super::{Acked, BURST_NS, ControlledConnection, ControllerFactory, Lost, RateController, Sent};
use crate::time::Time;

/// Startup ends if the rate grew less than this in three rounds, or in one round with a queue.
const STARTUP_GROWTH: f64 = 1.25;
const STARTUP_ROUNDS: u32 = 3;
/// A round trip this much longer than the shortest includes a queue.
const QUEUED: f64 = 1.25;
/// One this close to the shortest includes none.
const UNQUEUED: f64 = 1.05;
/// A path that delivers less than this part of the model's rate, without a queue, was underused.
const IDLE: f64 = 0.9;
/// A round that loses more than this has met a full queue, unless it may be chance: the number of
/// losses varies by the square root of its expectation. With little to send, chance counts for
/// more.
const LOSS_LIMIT: f64 = 0.02;
const LOSS_DEVIATIONS: f64 = 2.0;
const LIMITED_LOSS_DEVIATIONS: f64 = 3.0;
/// Rate factor after such a round, unless it delivered more.
const LOSS_CUT: f64 = 0.7;
/// A path that delivers less than this part of the model's rate, despite a queue, has changed.
const CHANGED: f64 = 0.75;
/// It must do so for this many of the shortest round trips.
const CHANGED_ROUNDS: u64 = 2;
/// A probe that finds this much more shows that a host lacked CPU time, and the path is as it was.
const RECOVERY: f64 = 1.1;
/// A queue of our own drains within this many rounds.
const DRAIN_ROUNDS: u32 = 3;
/// A queue that never fell below this multiple of the shortest round trip is not ours.
const FOREIGN: f64 = 1.25;
const FOREIGN_ROUNDS: u32 = 20;
/// The rate that we had alone fades by this factor per cycle.
const OWN_FADE: f64 = 0.97;
/// A foreign queue is gone when the round trip is this short. Flows that do not yield empty it now
/// and then, for fewer than this many rounds.
const EMPTY: f64 = 1.12;
const EMPTY_ROUNDS: u32 = 8;
/// Unyielding flows are tested again after this time.
const TEST_NS: u64 = 10_000_000_000;
/// Next to them, only a round that loses more than this counts.
const UNYIELDING_LOSS_LIMIT: f64 = 0.4;
const MIN_RTT_NS: u64 = 10_000_000_000;
const COMPETING_MIN_RTT_NS: u64 = 30_000_000_000;
const PROBE_RTT_NS: u64 = 200_000_000;
/// Feedback rarer than this does not come from a busy transport.
const MAX_FEEDBACK_NS: u64 = 10_000_000;
/// Bursts in a round trip, and their greatest length: what other flows of the path wait for one.
const BURSTS_PER_RTT: u64 = 40;
const MAX_BURST_NS: u32 = 500_000;
/// BTH and ICRC, which count towards the rate but not towards acknowledged bytes.
const HEADER_BYTES: f64 = 16.0;

/// Constants of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BbrParams {
    /// In flight before anything is known about the path.
    pub initial_window_bytes: u64,
    /// Assumed round trip until one is measured.
    pub initial_rtt_ns: u64,
    /// Lower bound of the rate.
    pub min_rate_bps: u64,
    /// Upper bound of the rate.
    pub max_rate_bps: u64,
    /// A path with a shorter round trip than this is not controlled: there the hosts are the limit,
    /// and their behaviour looks like a path that fluctuates. 0 controls every path.
    pub shortest_rtt_ns: u64,
}

impl Default for BbrParams {
    fn default() -> BbrParams {
        BbrParams {
            initial_window_bytes: 64 << 10,
            initial_rtt_ns: 10_000_000,
            min_rate_bps: 100_000,
            max_rate_bps: 1_000_000_000_000,
            shortest_rtt_ns: 0,
        }
    }
}

impl ControllerFactory for BbrParams {
    fn build(&self, now: Time, connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Bbr::new(self.clone(), now, connection))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// Faster than the model, to probe for more bandwidth.
    Up,
    /// Slower, to drain the queue that the probe built.
    Down,
    /// At the model's rate, for this many rounds.
    Cruise {
        rounds: u32,
    },
    /// With little in flight, to measure the shortest round trip.
    ProbeRtt,
}

/// The other flows on the path.
#[derive(Clone, Copy, Debug)]
enum Company {
    /// None that keeps a queue.
    None,
    /// Flows that yield when packets are lost.
    Yielding(Compete),
    /// Flows that do not, since this time.
    Unyielding(Time),
}

/// What was observed in a round trip.
#[derive(Clone, Copy, Debug)]
struct Round {
    start: Time,
    delivered: u64,
    lost: u64,
    best_bps: u64,
    min_rtt_ns: u64,
    /// For a while there was nothing to send.
    app_limited: bool,
}

impl Round {
    fn new(start: Time) -> Round {
        let min_rtt_ns = u64::MAX;
        Round { start, delivered: 0, lost: 0, best_bps: 0, min_rtt_ns, app_limited: false }
    }

    /// What to judge the path by. The losses at the end of a message are only found out when the
    /// next one begins, in a round that delivers little: they belong to the round before.
    fn with_earlier(&self, last: &Round) -> Round {
        if !self.app_limited {
            return *self;
        }
        let delivered = self.delivered.saturating_add(last.delivered);
        Round { delivered, lost: self.lost.saturating_add(last.lost), ..*self }
    }

    /// Whether it lost more than `limit` of its packets, which are `packet_bytes` long. The few
    /// packets of a short message, or at the end of a long one, say little: one lost of four is
    /// chance.
    fn is_lossier_than(&self, limit: f64, packet_bytes: f64) -> bool {
        let lost = self.lost as f64 / packet_bytes;
        let expected = (self.lost + self.delivered) as f64 / packet_bytes * limit;
        let chance = match self.app_limited {
            true => 1.0 + LIMITED_LOSS_DEVIATIONS * expected.sqrt(),
            false => LOSS_DEVIATIONS * expected.sqrt(),
        };
        lost > expected + chance
    }
}

#[derive(Debug)]
struct Bbr {
    params: BbrParams,
    /// UDP payload of a packet, and for each byte of payload.
    packet_bytes: f64,
    overhead: f64,
    delivery: Delivery,
    train: Train,
    max_rate: MaxRate,
    min_rtt: MinRtt,
    /// Of this cycle and the last, including the queues of others.
    cycle_rtt: RecentRtt,
    smoothed_rtt_ns: Option<u64>,
    last_rtt_ns: u64,
    /// When the packet was sent that was timed last.
    last_timed: Time,
    /// When feedback last came, and how far apart it comes, smoothed.
    heard: Option<Time>,
    feedback_ns: u64,
    in_flight: u64,
    company: Company,
    /// Rounds in a row in which the queue was never short.
    foreign_rounds: u32,
    /// Rounds in a row in which it was empty.
    empty_rounds: u32,
    /// The highest rate that the path delivered while nobody else kept a queue.
    own_bps: u64,
    /// The longest round trip of this cycle and the last.
    longest_rtt: [u64; 2],
    phase: Phase,
    phase_start: Time,
    phase_rounds: u32,
    round: Round,
    last_round: Round,
    cycles: u32,
    /// The rate that startup has to exceed, and the number of rounds in which it did not.
    full_bps: u64,
    full_rounds: u32,
    /// Bounds that losses have set; probing lifts them.
    rate_bound: u64,
    window_bound: u64,
    /// Since when the path has delivered much less than the model says, and the most it delivered.
    slow: Option<(Time, u64)>,
    /// After such a change the path is probed often, as long as probes find more than before.
    is_recovering: bool,
    probed_from_bps: u64,
}

impl Bbr {
    fn new(params: BbrParams, now: Time, connection: &ControlledConnection) -> Bbr {
        let mtu = f64::from(connection.mtu.bytes());
        Bbr {
            params,
            packet_bytes: mtu + HEADER_BYTES,
            overhead: 1.0 + HEADER_BYTES / mtu,
            delivery: Delivery::new(now),
            train: Train::default(),
            max_rate: MaxRate::default(),
            min_rtt: MinRtt::new(now),
            cycle_rtt: RecentRtt::new(),
            smoothed_rtt_ns: None,
            last_rtt_ns: 0,
            last_timed: now,
            heard: None,
            feedback_ns: 0,
            in_flight: 0,
            company: Company::None,
            foreign_rounds: 0,
            empty_rounds: 0,
            own_bps: 0,
            longest_rtt: [0; 2],
            phase: Phase::Startup,
            phase_start: now,
            phase_rounds: 0,
            round: Round::new(now),
            last_round: Round::new(now),
            cycles: 0,
            full_bps: 0,
            full_rounds: 0,
            rate_bound: u64::MAX,
            window_bound: u64::MAX,
            slow: None,
            is_recovering: false,
            probed_from_bps: 0,
        }
    }

    /// The model's estimate of the bottleneck's rate.
    fn rate_bps(&self) -> u64 {
        let initial = bps_of(self.params.initial_window_bytes, self.params.initial_rtt_ns);
        match (self.max_rate.get(), self.phase) {
            (bps, Phase::Startup) if self.has_confirmed_train() => bps,
            (bps, Phase::Startup) if self.train.is_limited_by_path() => bps.max(self.train.bps()),
            (bps, Phase::Startup) => bps.max(self.train.bps()).max(initial),
            (0, _) => initial,
            (bps, _) => bps.min(self.rate_bound),
        }
    }

    /// Whether the path is known to be too short to be controlled.
    fn is_short(&self) -> bool {
        self.min_rtt.get().is_some_and(|rtt_ns| rtt_ns < self.params.shortest_rtt_ns)
    }

    fn min_rtt_ns(&self) -> u64 {
        self.min_rtt.get().unwrap_or(self.params.initial_rtt_ns)
    }

    /// The bandwidth-delay product: bytes in flight at the model's rate without a queue.
    fn bdp(&self) -> u64 {
        bytes_in(self.rate_bps(), self.min_rtt_ns())
    }

    fn time_feedback(&mut self, now: Time) {
        if let Some(last) = self.heard.replace(now) {
            let gap = now.nanos_since(last).min(MAX_FEEDBACK_NS);
            self.feedback_ns = self.feedback_ns - self.feedback_ns / 8 + gap / 8;
        }
    }

    /// Delivered bytes that count as in flight because feedback is rare: on short paths it comes
    /// less than once per round trip.
    fn unreported(&self) -> u64 {
        let rare_ns = self.feedback_ns.saturating_sub(self.min_rtt_ns() / 4);
        bytes_in(self.rate_bps(), rare_ns)
    }

    fn enter(&mut self, now: Time, phase: Phase) {
        self.phase = phase;
        self.phase_start = now;
        self.phase_rounds = 0;
        if phase == Phase::Up {
            self.cycles += 1;
            let bps = self.max_rate.get();
            self.is_recovering &= bps as f64 > self.probed_from_bps as f64 * RECOVERY;
            self.probed_from_bps = bps;
            self.rate_bound = u64::MAX;
            if !self.is_competing() {
                let faded = (self.own_bps as f64 * OWN_FADE) as u64;
                self.own_bps = faded.max(self.max_rate.get());
            }
            self.cycle_rtt.end_period();
            self.longest_rtt = [0, self.longest_rtt[0]];
        }
    }

    fn enter_cruise(&mut self, now: Time) {
        // Flows that probe in lockstep see each other's queues, so cycle lengths vary.
        let draw = (self.delivery.delivered ^ now.as_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = (draw >> 32) as u32;
        let rounds = match self.company {
            Company::Unyielding(_) => 1 + draw % 3,
            _ => 3 + draw % 5,
        };
        self.enter(now, Phase::Cruise { rounds });
    }

    /// At the end of a round: judges whether others keep a queue that has not been short for long.
    fn judge_company(&mut self, now: Time, round: &Round) {
        let is_foreign = round.min_rtt_ns as f64 > self.min_rtt_ns() as f64 * FOREIGN;
        self.foreign_rounds = if is_foreign { self.foreign_rounds + 1 } else { 0 };
        let is_empty = (round.min_rtt_ns as f64) < self.min_rtt_ns() as f64 * EMPTY;
        self.empty_rounds = if is_empty { self.empty_rounds + 1 } else { 0 };
        match self.company {
            Company::Yielding(_) if is_empty => self.company = Company::None,
            Company::Unyielding(_) if self.empty_rounds >= EMPTY_ROUNDS => {
                self.company = Company::None;
            }
            Company::None if self.foreign_rounds >= FOREIGN_ROUNDS => {
                self.company = Company::Yielding(self.compete());
            }
            Company::Unyielding(since) if now.nanos_since(since) >= TEST_NS => {
                self.company = Company::Yielding(self.compete());
            }
            _ => {}
        }
    }

    /// Starts with what is ours now, or with half of what was ours before others came.
    fn compete(&self) -> Compete {
        let rtt_ns = self.smoothed_rtt_ns.unwrap_or(self.min_rtt_ns());
        Compete::new(bytes_in(self.max_rate.get().max(self.own_bps / 2), rtt_ns))
    }

    fn on_rtt(&mut self, now: Time, rtt_ns: u64) {
        self.last_rtt_ns = rtt_ns;
        self.last_timed = Time::from_nanos(now.as_nanos().saturating_sub(rtt_ns));
        self.min_rtt.update(now, rtt_ns);
        self.cycle_rtt.update(rtt_ns);
        self.longest_rtt[0] = self.longest_rtt[0].max(rtt_ns);
        self.round.min_rtt_ns = self.round.min_rtt_ns.min(rtt_ns);
        let smoothed = self.smoothed_rtt_ns.map_or(rtt_ns, |s| s - s / 8 + rtt_ns / 8);
        self.smoothed_rtt_ns = Some(smoothed);
    }

    fn is_competing(&self) -> bool {
        !matches!(self.company, Company::None)
    }

    fn on_sample(&mut self, now: Time, sample: RateSample, rtt_ns: u64) {
        self.round.best_bps = self.round.best_bps.max(sample.bps);
        if !(sample.app_limited || self.is_idle_path(sample, rtt_ns))
            || sample.bps > self.max_rate.get()
        {
            self.max_rate.update(sample.bps);
        }
        self.look_for_change(now, sample, rtt_ns);
    }

    /// Little was delivered and nothing is queued: the sending host was slow, for lack of CPU time.
    /// A path slower than its sender would have a queue.
    fn is_idle_path(&self, sample: RateSample, rtt_ns: u64) -> bool {
        (sample.bps as f64) < self.max_rate.get() as f64 * IDLE
            && (rtt_ns as f64) < self.min_rtt_ns() as f64 * UNQUEUED
            && self.phase != Phase::Startup
    }

    /// Forgets the rate of a path that has changed.
    fn look_for_change(&mut self, now: Time, sample: RateSample, rtt_ns: u64) {
        let known = self.cycle_rtt.get().unwrap_or(rtt_ns) as f64;
        // Do not blame the path for what was not sent: while a queue drains, less arrives.
        let expected = self.max_rate.get().min(sample.paced_bps) as f64;
        let is_slow = !sample.app_limited
            && !self.is_competing()
            && !matches!(self.phase, Phase::Startup | Phase::ProbeRtt)
            && (sample.bps as f64) < expected * CHANGED
            && rtt_ns as f64 > known * QUEUED;
        if !is_slow {
            self.slow = None;
            return;
        }
        let (since, best) = self.slow.unwrap_or((now, 0));
        let best = best.max(sample.bps);
        self.slow = Some((since, best));
        // A host without CPU time delays what is in flight, and soon catches up.
        if now.nanos_since(since) >= CHANGED_ROUNDS * self.min_rtt_ns() {
            self.max_rate.reset(best);
            self.slow = None;
            (self.is_recovering, self.probed_from_bps) = (true, 0);
            self.enter(now, Phase::Down);
        }
    }

    fn end_round(&mut self, now: Time) {
        let next = Round { app_limited: self.delivery.is_limited(), ..Round::new(now) };
        let round = core::mem::replace(&mut self.round, next);
        self.phase_rounds += 1;
        self.max_rate.end_round();
        if self.phase != Phase::Startup {
            self.judge_company(now, &round);
        }
        let limit = match self.company {
            Company::None => LOSS_LIMIT,
            Company::Yielding(_) => 1.0,
            Company::Unyielding(_) => UNYIELDING_LOSS_LIMIT,
        };
        let judged = round.with_earlier(&self.last_round);
        let is_lossy = judged.is_lossier_than(limit, self.packet_bytes);
        // Losses that were judged together with a round before are not judged again.
        let lost = if is_lossy || round.app_limited { 0 } else { round.lost };
        self.last_round = Round { lost, ..round };
        if is_lossy {
            self.on_full_queue(now, &round);
        } else if self.phase == Phase::Up && self.in_flight > self.window_bound / 10 * 8 {
            self.window_bound = self.window_bound.saturating_add(self.window_bound / 4);
        }
        match self.phase {
            Phase::Startup => self.end_startup_round(now, &round),
            Phase::Cruise { rounds } if self.phase_rounds >= rounds => self.enter(now, Phase::Up),
            Phase::Cruise { .. } if self.is_recovering && !self.had_queue(&round) => {
                self.enter(now, Phase::Up);
            }
            Phase::Up => self.enter(now, Phase::Down),
            _ => {}
        }
    }

    /// Whether there was a queue all the time.
    fn had_queue(&self, round: &Round) -> bool {
        round.min_rtt_ns as f64 > self.min_rtt_ns() as f64 * QUEUED
    }

    fn end_startup_round(&mut self, now: Time, round: &Round) {
        let bps = self.max_rate.get();
        if bps as f64 >= self.full_bps as f64 * STARTUP_GROWTH {
            self.full_bps = bps;
            self.full_rounds = 0;
            return;
        }
        // Short messages do not grow because they are short, not because the path is full.
        if round.app_limited {
            return;
        }
        self.full_rounds += 1;
        if self.had_queue(round) || self.full_rounds >= STARTUP_ROUNDS {
            self.enter(now, Phase::Drain);
        }
    }

    /// A round has lost more packets than chance explains.
    fn on_full_queue(&mut self, now: Time, round: &Round) {
        let rate = (self.rate_bps() as f64 * LOSS_CUT) as u64;
        self.rate_bound = rate.max(round.best_bps);
        let window =
            (self.window().min(self.in_flight.max(round.delivered)) as f64 * LOSS_CUT) as u64;
        // With little to send, little was in flight: the path still carries what the model says.
        let modelled = bytes_in(self.max_rate.get(), self.min_rtt_ns()) as f64 * LOSS_CUT;
        self.window_bound = window.max(round.delivered).max(modelled as u64);
        match self.phase {
            Phase::Startup => self.enter(now, Phase::Drain),
            Phase::Up => self.enter(now, Phase::Down),
            _ => {}
        }
    }

    /// Enters the next phase where that does not wait for the end of a round.
    fn advance(&mut self, now: Time) {
        let is_drained = self.in_flight <= self.bdp() + self.unreported();
        match self.phase {
            Phase::Drain if is_drained => self.enter_cruise(now),
            Phase::Down if is_drained || self.has_drained_enough(now) => self.enter_cruise(now),
            Phase::ProbeRtt if now.nanos_since(self.phase_start) >= PROBE_RTT_NS => {
                let seen = self.cycle_rtt.get().unwrap_or(self.min_rtt_ns());
                self.min_rtt.replace(now, seen);
                self.enter_cruise(now);
            }
            Phase::Down | Phase::Cruise { .. } if self.min_rtt_is_old(now) => {
                self.enter(now, Phase::ProbeRtt);
            }
            _ => {}
        }
    }

    /// Draining a queue that others keep only makes space for them.
    fn has_drained_enough(&self, now: Time) -> bool {
        match self.company {
            Company::None => self.phase_rounds >= DRAIN_ROUNDS,
            _ => now.nanos_since(self.phase_start) >= self.min_rtt_ns(),
        }
    }

    fn min_rtt_is_old(&self, now: Time) -> bool {
        let limit = if self.is_competing() { COMPETING_MIN_RTT_NS } else { MIN_RTT_NS };
        self.min_rtt.age_ns(now) >= limit
    }
}

impl RateController for Bbr {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        if self.is_short() {
            return None;
        }
        let bps = self.pace_bps();
        Some(bps.clamp(self.params.min_rate_bps.max(1), self.params.max_rate_bps.max(1)))
    }

    fn window_bytes(&self) -> Option<u64> {
        (!self.is_short()).then(|| self.window())
    }

    fn burst_ns(&self) -> u32 {
        let part = self.min_rtt.get().unwrap_or(0) / BURSTS_PER_RTT;
        u32::try_from(part).unwrap_or(u32::MAX).clamp(BURST_NS, MAX_BURST_NS)
    }

    fn wants_feedback(&self) -> bool {
        true
    }

    fn on_sent(&mut self, now: Time, sent: &Sent) {
        self.delivery.on_sent(now, sent.app_limited);
        self.train.on_sent(sent.app_limited);
        self.round.app_limited |= sent.app_limited;
        self.in_flight = sent.in_flight_bytes.unwrap_or(self.in_flight);
    }

    fn on_acked(&mut self, now: Time, acked: &Acked) {
        self.in_flight = acked.in_flight_bytes;
        self.time_feedback(now);
        let bytes = (acked.bytes as f64 * self.overhead) as u64;
        self.round.delivered = self.round.delivered.saturating_add(bytes);
        let timed = acked.rtt_ns.map(|rtt_ns| rtt_ns.clamp(1, MAX_RTT_NS));
        if let Some(rtt_ns) = timed {
            self.on_rtt(now, rtt_ns);
        }
        let Some(rtt_ns) = timed.or(self.smoothed_rtt_ns) else {
            self.delivery.add(bytes);
            return;
        };
        let arrival_ns = acked.arrival_ns.unwrap_or(now.as_nanos());
        let pacing_bps = self.pacing_rate_bps(now).unwrap_or(0);
        let sample = self.delivery.on_acked(now, bytes, arrival_ns, rtt_ns, pacing_bps);
        self.train.on_acked(now, arrival_ns, self.delivery.delivered, rtt_ns);
        if let Some(sample) = sample {
            self.on_sample(now, sample, rtt_ns);
        }
        // A round trip has passed when something sent after its start has arrived.
        if now.as_nanos().saturating_sub(rtt_ns) >= self.round.start.as_nanos() {
            self.end_round(now);
        }
        if let Company::Yielding(compete) = &mut self.company {
            compete.on_acked(now, bytes, rtt_ns);
        }
        self.advance(now);
    }

    fn on_lost(&mut self, now: Time, lost: &Lost) {
        self.round.lost = self.round.lost.saturating_add(lost.bytes);
        let rtt_ns = self.smoothed_rtt_ns.unwrap_or(self.params.initial_rtt_ns);
        let longest = self.longest_rtt[0].max(self.longest_rtt[1]);
        // A packet lost while the queue was short was not lost to a full queue.
        let is_full = self.last_rtt_ns.max(rtt_ns) > self.min_rtt_ns() / 2 + longest / 2;
        if let Company::Yielding(compete) = &mut self.company
            && is_full
            && compete.on_lost(now, rtt_ns) == Others::Unresponsive
        {
            let bps = bps_of(compete.before_cut_bytes(), rtt_ns);
            self.max_rate.reset(bps);
            self.company = Company::Unyielding(now);
            (self.rate_bound, self.window_bound) = (u64::MAX, u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
