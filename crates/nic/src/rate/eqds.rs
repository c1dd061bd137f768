//! Receiver-driven credit against incast: Olteanu et al., "An edge-queued datagram service for all
//! datacenter traffic", NSDI 2022, sections 3.1 and 3.2, the parts that concern hosts.
//!
//! [`EqdsParams`] makes the sender's half. A connection starts with one ungranted window, so that
//! short messages need not wait; the rest is sent against credit. [`Grantor`] is the receiver's
//! half.

use std::collections::VecDeque;

use super::{ControlledConnection, ControllerFactory, Lost, RateController, Sent};
use crate::time::Time;

/// The sender's half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EqdsParams {
    /// What may be sent before any credit has come: one bandwidth-delay product at most.
    pub initial_bytes: u64,
    /// Upper bound of unused credit; a receiver that grants more has lost count.
    pub max_credit_bytes: u64,
    /// The pacer spreads packets at this rate while there is credit.
    pub line_rate_bps: u64,
}

impl EqdsParams {
    /// For a line of this rate.
    pub fn new(line_rate_bps: u64) -> EqdsParams {
        EqdsParams { initial_bytes: 16 << 10, max_credit_bytes: 16 << 20, line_rate_bps }
    }
}

impl ControllerFactory for EqdsParams {
    fn build(&self, _now: Time, _connection: &ControlledConnection) -> Box<dyn RateController> {
        Box::new(Eqds { params: self.clone(), credit: self.initial_bytes as i64 })
    }
}

#[derive(Debug)]
struct Eqds {
    params: EqdsParams,
    /// Negative when the last packet was larger than what was left: the next grants pay for it.
    credit: i64,
}

impl RateController for Eqds {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        Some(if self.credit > 0 { self.params.line_rate_bps.max(1) } else { 0 })
    }

    fn turn_bytes(&self) -> Option<u64> {
        Some(u64::try_from(self.credit).unwrap_or(0))
    }

    fn wants_feedback(&self) -> bool {
        true
    }

    fn on_sent(&mut self, _now: Time, sent: &Sent) {
        let bytes = i64::try_from(sent.bytes).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_sub(bytes);
    }

    fn on_lost(&mut self, _now: Time, lost: &Lost) {
        // Grants do not arrive, or nobody makes any: one packet per timeout is the least rate.
        if lost.timeout {
            self.credit = self.credit.max(1);
        }
    }

    fn on_credit(&mut self, _now: Time, bytes: u64) {
        let most = i64::try_from(self.params.max_credit_bytes).unwrap_or(i64::MAX);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(bytes).min(most);
    }
}

/// The receiver's half: shares its link rate among the senders that want to send to it.
///
/// Senders announce how much they have to send ([`want`](Grantor::want)), and take turns in getting
/// credit ([`next`](Grantor::next)), a quantum each, at slightly less than the link rate.
#[derive(Clone, Debug)]
pub struct Grantor {
    quantum_bytes: u64,
    /// Nanoseconds that a quantum takes.
    quantum_ns: u64,
    /// What each sender still wants, by number, and whether it is in `turns`.
    wanted: Vec<(u64, bool)>,
    /// Senders that want something, in order.
    turns: VecDeque<usize>,
    next_at: Time,
}

impl Grantor {
    /// For a link of this rate, with credit in quanta of this many bytes.
    pub fn new(link_bps: u64, quantum_bytes: u64) -> Grantor {
        let quantum_ns = u128::from(quantum_bytes) * 8_000_000_000 / u128::from(link_bps.max(1));
        Grantor {
            quantum_bytes: quantum_bytes.max(1),
            quantum_ns: u64::try_from(quantum_ns).unwrap_or(u64::MAX).max(1),
            wanted: Vec::new(),
            turns: VecDeque::new(),
            next_at: Time::ZERO,
        }
    }

    /// A sender has this many more bytes to send.
    pub fn want(&mut self, sender: usize, bytes: u64) {
        let wanted = self.wanted.get(sender).map_or(0, |(wanted, _)| *wanted);
        self.set_want(sender, wanted.saturating_add(bytes));
    }

    /// A sender has this many bytes to send, replacing any earlier announcement.
    pub fn set_want(&mut self, sender: usize, bytes: u64) {
        if sender >= self.wanted.len() {
            if bytes == 0 {
                return;
            }
            self.wanted.resize(sender + 1, (0, false));
        }
        let (wanted, has_turn) = &mut self.wanted[sender];
        *wanted = bytes;
        if bytes > 0 && !core::mem::replace(has_turn, true) {
            self.turns.push_back(sender);
        }
    }

    /// Whose turn it is, and how much it may send; `None` if the next grant is not due, or nobody
    /// wants any.
    pub fn next(&mut self, now: Time) -> Option<(usize, u64)> {
        if now < self.next_at {
            return None;
        }
        let (sender, bytes) = loop {
            let sender = self.turns.pop_front()?;
            let (wanted, has_turn) = &mut self.wanted[sender];
            let bytes = (*wanted).min(self.quantum_bytes);
            *wanted -= bytes;
            *has_turn = *wanted > 0;
            if *has_turn {
                self.turns.push_back(sender);
            }
            // It may want nothing any more.
            if bytes > 0 {
                break (sender, bytes);
            }
        };
        // Time in which nobody wanted anything is not made up for: that would cause a burst.
        let from =
            self.next_at.max(Time::from_nanos(now.as_nanos().saturating_sub(self.quantum_ns)));
        self.next_at = from.plus_nanos(self.quantum_ns);
        Some((sender, bytes))
    }

    /// When to ask again; `None` if nobody wants anything.
    pub fn next_at(&self) -> Option<Time> {
        (!self.turns.is_empty()).then_some(self.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Mtu, QpType};

    #[test]
    fn a_sender_stops_without_credit_and_pays_for_what_it_overdrew() {
        let connection = ControlledConnection::new(QpType::Uc.descriptor(), Mtu::B4096);
        let mut eqds = EqdsParams::new(100_000_000_000).build(Time::ZERO, &connection);
        assert!(eqds.pacing_rate_bps(Time::ZERO).unwrap() > 0);
        let sent = Sent { bytes: 24 << 10, in_flight_bytes: None, app_limited: false };
        eqds.on_sent(Time::ZERO, &sent);
        assert_eq!(eqds.pacing_rate_bps(Time::ZERO), Some(0));
        eqds.on_credit(Time::ZERO, 8 << 10);
        assert_eq!(eqds.pacing_rate_bps(Time::ZERO), Some(0), "it had sent so much too much");
        eqds.on_credit(Time::ZERO, 1);
        assert!(eqds.pacing_rate_bps(Time::ZERO).unwrap() > 0);
        // A receiver that grants without end does not make it lose count.
        (0..10).for_each(|_| eqds.on_credit(Time::ZERO, u64::MAX));
        assert!(eqds.pacing_rate_bps(Time::ZERO).unwrap() > 0);
    }

    #[test]
    fn credit_goes_round_at_the_rate_of_the_link() {
        let mut grantor = Grantor::new(8_000_000_000, 1_000);
        assert_eq!(grantor.next(Time::ZERO), None);
        for sender in 0..3 {
            grantor.want(sender, 2_500);
        }
        let mut granted = [0; 3];
        let mut now = Time::from_nanos(5_000);
        let start = now;
        while let Some(at) = grantor.next_at() {
            now = now.max(at);
            let (sender, bytes) = grantor.next(now).expect("its time has come");
            granted[sender] += bytes;
            let spread = granted.iter().max().unwrap() - granted.iter().min().unwrap();
            assert!(spread <= 1_000, "{granted:?}");
        }
        assert_eq!(granted, [2_500; 3]);
        // A microsecond each, but for the first.
        assert!((7_000..=9_000).contains(&now.nanos_since(start)), "{now}");
    }
}
