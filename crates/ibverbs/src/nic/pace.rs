//! Requests held back, as a rate controller says.

use std::collections::VecDeque;

use bowline_nic::{
    Feedback, Payload, RateController, SendFlags, SendOp, SendWr, Sent, Sge, Time, UdDest,
};

/// Who was late may send what was missed in this time at once: a thread that sleeps wakes up late
/// by tens of microseconds, and by milliseconds on a busy machine.
const CATCH_UP_NS: u64 = 4_000_000;

/// A rate controller, and what it holds back.
#[derive(Debug)]
pub(super) struct Pace {
    controller: Box<dyn RateController>,
    held: VecDeque<Held>,
    /// When the next request may go.
    next: Time,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Held {
    wr_id: u64,
    op: SendOp,
    sges: Vec<Sge>,
    flags: SendFlags,
    ud: Option<UdDest>,
}

impl Held {
    pub(super) fn new(wr: &SendWr<'_>, sges: &[Sge]) -> Held {
        let SendWr { wr_id, op, flags, ud, .. } = *wr;
        Held { wr_id, op, sges: sges.to_vec(), flags, ud }
    }

    pub(super) fn request(&self) -> SendWr<'_> {
        let payload = Payload::Sges(&self.sges);
        SendWr { payload, flags: self.flags, ud: self.ud, ..SendWr::new(self.wr_id, self.op, &[]) }
    }
}

impl Pace {
    pub(super) fn new(controller: Box<dyn RateController>) -> Pace {
        Pace { controller, held: VecDeque::new(), next: Time::ZERO }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn into_held(self) -> VecDeque<Held> {
        self.held
    }

    pub(super) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    pub(super) fn put_back(&mut self, held: Held) {
        self.held.push_front(held);
    }

    pub(super) fn hear(&mut self, now: Time, feedback: &Feedback) {
        feedback.tell(&mut *self.controller, now);
    }

    /// Whether a request may go now.
    pub(super) fn allows(&mut self, now: Time) -> bool {
        match self.controller.pacing_rate_bps(now) {
            None => true,
            Some(0) => false,
            Some(_) => self.next <= now,
        }
    }

    /// The oldest request, if it may go now.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Held> {
        if self.held.is_empty() || !self.allows(now) {
            return None;
        }
        self.held.pop_front()
    }

    /// When the oldest request may go; `None` if there is none, or only the controller can say.
    pub(super) fn due(&mut self, now: Time) -> Option<Time> {
        if self.held.is_empty() {
            return None;
        }
        match self.controller.pacing_rate_bps(now) {
            None => Some(now),
            Some(0) => None,
            Some(_) => Some(self.next.max(now)),
        }
    }

    /// A request of so many bytes has left.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        if let Some(bps @ 1..) = self.controller.pacing_rate_bps(now) {
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(CATCH_UP_NS));
            let takes_ns = (u128::from(bytes) * 8_000_000_000 / u128::from(bps)) as u64;
            self.next = self.next.max(earliest).plus_nanos(takes_ns);
        }
        let app_limited = self.held.is_empty();
        self.controller.on_sent(now, &Sent { bytes, in_flight_bytes: None, app_limited });
    }
}

#[cfg(test)]
mod tests {
    use bowline_nic::{ControlledConnection, ControllerFactory, FixedRate, Mtu, QpType};

    use super::*;

    fn pace(bits_per_sec: u64) -> Pace {
        let connection = ControlledConnection::new(QpType::Ud.descriptor(), Mtu::B1024);
        Pace::new(FixedRate { bits_per_sec }.build(Time::ZERO, &connection))
    }

    #[test]
    fn requests_leave_at_the_rate_and_what_was_missed_is_made_up_for() {
        let mut pace = pace(8_000_000);
        let (mut now, mut sent) = (Time::from_millis(10), 0);
        for wr_id in 0..1_000 {
            pace.hold(Held::new(&SendWr::new(wr_id, SendOp::Send, &[]), &[]));
        }
        let start = now;
        while now.nanos_since(start) < 100_000_000 {
            while let Some(held) = pace.take_due(now) {
                assert_eq!(held.request().wr_id, sent);
                pace.sent(now, 1_000);
                sent += 1;
            }
            let due = pace.due(now).expect("more is held");
            assert!(due > now, "nothing is due twice");
            // Late by a fifth of a millisecond each time.
            now = due.plus_nanos(200_000);
        }
        assert!((100..=105).contains(&sent), "{sent} requests in 100 ms, at one a millisecond");
    }
}
