//! Models of competing traffic: TCP with CUBIC (RFC 9438) and with BBR's first version, as in
//! Linux. Every packet is acknowledged, losses are detected with the next acknowledgement, and
//! there is always more to send.

use super::path::{Flow, Next, Told};
use crate::time::Time;

const INITIAL_WINDOW: f64 = 10.0;
const RTO_NS: u64 = 400_000_000;

pub(super) struct Cubic {
    window: f64,
    threshold: f64,
    sent: u64,
    next_ack: u64,
    in_flight: u64,
    /// Losses up to here belong to one event.
    recover: u64,
    w_max: f64,
    epoch: Option<(Time, f64, f64)>,
    min_rtt_ns: u64,
    /// HyStart: the shortest round trip of this round, and where it ends.
    round: (u64, u64),
    /// Reno's window, to be no slower.
    reno: f64,
    heard: Time,
    end: Time,
}

impl Cubic {
    /// One that has nothing more to send from then on.
    pub(super) fn until(self, end: Time) -> Cubic {
        Cubic { end, ..self }
    }

    pub(super) fn new() -> Cubic {
        Cubic {
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            sent: 0,
            next_ack: 0,
            in_flight: 0,
            recover: 0,
            w_max: 0.0,
            epoch: None,
            min_rtt_ns: u64::MAX,
            round: (u64::MAX, 0),
            reno: 0.0,
            heard: Time::ZERO,
            end: Time::NEVER,
        }
    }

    fn on_loss(&mut self) {
        if self.next_ack < self.recover {
            return;
        }
        self.recover = self.sent;
        self.w_max = if self.window < self.w_max { self.window * 0.85 } else { self.window };
        self.window = (self.window * 0.7).max(2.0);
        self.threshold = self.window;
        self.epoch = None;
    }

    fn grow(&mut self, now: Time, rtt_ns: u64) {
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let (start, k, origin) = *self.epoch.get_or_insert_with(|| {
            self.reno = self.window;
            let k = ((self.w_max - self.window).max(0.0) / 0.4).cbrt();
            (now, k, self.w_max.max(self.window))
        });
        let t = (now.nanos_since(start) + rtt_ns) as f64 / 1e9 - k;
        let target = origin + 0.4 * t * t * t;
        self.reno += 3.0 * 0.3 / 1.7 / self.window;
        let target = target.max(self.reno).min(self.window * 1.5);
        if target > self.window {
            self.window += (target - self.window) / self.window;
        }
    }
}

impl Flow for Cubic {
    fn next(&mut self, now: Time) -> Next {
        if now >= self.end {
            return Next::Wait(Time::NEVER);
        }
        if self.in_flight as f64 >= self.window {
            if now.nanos_since(self.heard) < RTO_NS {
                return Next::Wait(self.heard.plus_nanos(RTO_NS));
            }
            self.heard = now;
            self.in_flight = 0;
            self.threshold = self.window / 2.0;
            self.window = 2.0;
        }
        self.in_flight += 1;
        self.sent += 1;
        Next::Data
    }

    fn told(&mut self, now: Time, told: Told) {
        let Told::Ack { number, sent } = told else { return };
        self.heard = now;
        let rtt_ns = now.nanos_since(sent);
        self.min_rtt_ns = self.min_rtt_ns.min(rtt_ns);
        let lost = number - self.next_ack;
        self.in_flight = self.in_flight.saturating_sub(lost + 1);
        if lost > 0 {
            self.on_loss();
        }
        self.next_ack = number + 1;
        if number >= self.round.1 {
            self.round = (u64::MAX, self.sent);
        }
        self.round.0 = self.round.0.min(rtt_ns);
        let slack = (self.min_rtt_ns / 8).clamp(4_000_000, 16_000_000);
        if self.window < self.threshold
            && number + 20 > self.round.1
            && self.round.0 > self.min_rtt_ns + slack
        {
            self.threshold = self.window;
        }
        if number >= self.recover {
            self.grow(now, rtt_ns);
        }
    }

    fn acks(&self) -> bool {
        true
    }
}

pub(super) struct Bbr1 {
    sent: u64,
    next_ack: u64,
    in_flight: u64,
    next_packet: Time,
    delivered: u64,
    /// For each packet in flight: delivered before it, and when that was.
    records: std::collections::VecDeque<(u64, Time)>,
    delivered_at: Time,
    rounds: u64,
    round_end: u64,
    rates: std::collections::VecDeque<(u64, f64)>,
    min_rtt: (u64, Time),
    full: (f64, u32),
    phase: Bbr1Phase,
    cycle_start: Time,
}

#[derive(Clone, Copy, PartialEq)]
enum Bbr1Phase {
    Startup,
    Drain,
    Probe(usize),
    Rtt(Time),
}

impl Bbr1 {
    pub(super) fn new(start: Time) -> Bbr1 {
        Bbr1 {
            sent: 0,
            next_ack: 0,
            in_flight: 0,
            next_packet: start,
            delivered: 0,
            records: std::collections::VecDeque::new(),
            delivered_at: start,
            rounds: 0,
            round_end: 0,
            rates: std::collections::VecDeque::new(),
            min_rtt: (u64::MAX, start),
            full: (0.0, 0),
            phase: Bbr1Phase::Startup,
            cycle_start: start,
        }
    }

    /// Packets per nanosecond.
    fn rate(&self) -> f64 {
        self.rates.front().map_or(10.0 / 1e6, |(_, rate)| *rate)
    }

    fn bdp(&self) -> f64 {
        if self.min_rtt.0 == u64::MAX { 10.0 } else { self.rate() * self.min_rtt.0 as f64 }
    }

    fn gains(&self) -> (f64, f64) {
        const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        match self.phase {
            Bbr1Phase::Startup => (2.885, 2.885),
            Bbr1Phase::Drain => (1.0 / 2.885, 2.885),
            Bbr1Phase::Probe(index) => (CYCLE[index], 2.0),
            Bbr1Phase::Rtt(_) => (1.0, 0.0),
        }
    }

    fn advance(&mut self, now: Time, new_round: bool) {
        let min_rtt = self.min_rtt.0;
        match self.phase {
            Bbr1Phase::Startup if new_round => {
                if self.rate() >= self.full.0 * 1.25 {
                    self.full = (self.rate(), 0);
                } else {
                    self.full.1 += 1;
                    if self.full.1 >= 3 {
                        self.phase = Bbr1Phase::Drain;
                    }
                }
            }
            Bbr1Phase::Drain if self.in_flight as f64 <= self.bdp() => {
                (self.phase, self.cycle_start) = (Bbr1Phase::Probe(2), now);
            }
            Bbr1Phase::Probe(index) => {
                let elapsed = now.nanos_since(self.cycle_start) > min_rtt;
                let is_over = match index {
                    0 => elapsed && self.in_flight as f64 >= self.bdp() * 1.25,
                    1 => elapsed || self.in_flight as f64 <= self.bdp(),
                    _ => elapsed,
                };
                if is_over {
                    (self.phase, self.cycle_start) = (Bbr1Phase::Probe((index + 1) % 8), now);
                }
            }
            Bbr1Phase::Rtt(end) if now >= end => {
                self.min_rtt.1 = now;
                (self.phase, self.cycle_start) = (Bbr1Phase::Probe(2), now);
            }
            _ => {}
        }
    }
}

impl Flow for Bbr1 {
    fn next(&mut self, now: Time) -> Next {
        let (pacing, gain) = self.gains();
        let window = (gain * self.bdp()).max(4.0);
        if self.in_flight as f64 >= window {
            if now.nanos_since(self.delivered_at) < RTO_NS {
                return Next::Wait(self.delivered_at.plus_nanos(RTO_NS));
            }
            self.delivered_at = now;
            self.in_flight = 0;
        }
        if self.next_packet > now {
            return Next::Wait(self.next_packet);
        }
        let gap = 1.0 / (self.rate() * pacing * 0.99);
        self.next_packet = self.next_packet.max(now).plus_nanos(gap as u64);
        if self.in_flight == 0 {
            self.delivered_at = now;
        }
        self.records.push_back((self.delivered, self.delivered_at));
        self.in_flight += 1;
        self.sent += 1;
        Next::Data
    }

    fn told(&mut self, now: Time, told: Told) {
        let Told::Ack { number, sent } = told else { return };
        let lost = number - self.next_ack;
        self.records.drain(..lost as usize);
        let (before, at) = self.records.pop_front().expect("it was in flight");
        self.in_flight = self.in_flight.saturating_sub(lost + 1);
        self.next_ack = number + 1;
        self.delivered += 1;
        self.delivered_at = now;
        let rtt_ns = now.nanos_since(sent);
        let expired = now.nanos_since(self.min_rtt.1) > 10_000_000_000;
        if rtt_ns <= self.min_rtt.0 || expired {
            if expired && !matches!(self.phase, Bbr1Phase::Rtt(_)) {
                self.phase = Bbr1Phase::Rtt(now.plus_nanos(200_000_000 + rtt_ns));
            }
            self.min_rtt = (rtt_ns, now);
        }
        let new_round = number >= self.round_end;
        if new_round {
            self.round_end = self.sent;
            self.rounds += 1;
        }
        let rate = (self.delivered - before) as f64 / now.nanos_since(at).max(1) as f64;
        while self.rates.back().is_some_and(|(_, kept)| *kept <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.rounds, rate));
        while self.rates.front().is_some_and(|(round, _)| round + 10 < self.rounds) {
            self.rates.pop_front();
        }
        self.advance(now, new_round);
    }

    fn acks(&self) -> bool {
        true
    }
}
