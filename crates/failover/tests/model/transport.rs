//! RC in a few lines: one PSN per packet, cumulative acknowledgements, duplicates recognised by
//! their PSN.

use crate::scope::{Kind, Scope};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Requester {
    /// Requests below this number are completed.
    pub(crate) done: u8,
    /// The next request to send.
    pub(crate) cursor: u8,
    /// Requests below this number have been sent on this transport.
    pub(crate) started: u8,
    /// The transport's first request, and its PSN.
    first: u8,
    first_psn: u8,
    /// Bitmap of the requests that the peer has counted. They are sent as empty writes, to keep the
    /// order.
    counted: u8,
}

impl Requester {
    /// The PSN of a request's first packet.
    pub(crate) fn psn(&self, scope: &Scope, requests: &[Kind], number: u8) -> u8 {
        let before = (self.first..number).map(|before| self.packets(requests, before)).sum();
        scope.advance(self.first_psn, before)
    }

    pub(crate) fn packets(&self, requests: &[Kind], number: u8) -> u8 {
        if self.is_counted(number) { 1 } else { requests[usize::from(number)].packets() }
    }

    pub(crate) fn is_counted(&self, number: u8) -> bool {
        self.counted & (1 << number) != 0
    }

    /// Whether everything sent has been answered.
    pub(crate) fn is_drained(&self) -> bool {
        self.done == self.started
    }

    pub(crate) fn has_atomic_in_flight(&self, requests: &[Kind]) -> bool {
        requests[self.done.into()..self.started.into()].contains(&Kind::FetchAdd)
    }

    /// The request with this PSN was answered, and the ones before it have arrived.
    pub(crate) fn acknowledge(&mut self, scope: &Scope, requests: &[Kind], psn: u8) {
        let after = scope.advance(psn, 1);
        let mut sent = self.done..self.started;
        let ends_here = |number: &u8| self.psn(scope, requests, number + 1) == after;
        let Some(answered) = sent.find(ends_here) else {
            return;
        };
        while self.done <= answered {
            if self.done < answered && requests[usize::from(self.done)].wants_response() {
                return;
            }
            self.done += 1;
            self.cursor = self.cursor.max(self.done);
        }
    }

    /// Everything unacknowledged will be sent again.
    pub(crate) fn go_back(&mut self) {
        self.cursor = self.done;
    }

    /// Starts a new transport with this PSN.
    pub(crate) fn start_anew(&mut self, psn: u8) {
        self.first = self.done;
        self.cursor = self.done;
        self.started = self.done;
        self.first_psn = psn;
    }

    /// Marks the requests that the peer has executed, by the number of two-sided messages that it
    /// received. Returns whether it marked any.
    pub(crate) fn mark(&mut self, requests: &[Kind], received: u8, reads_too: bool) -> bool {
        let before = self.counted;
        let two_sided = (0..requests.len()).filter(|&number| requests[number].is_two_sided());
        let Some(last) = two_sided.take(received.into()).last() else {
            return false;
        };
        for (number, kind) in requests.iter().enumerate().take(last + 1).skip(self.done.into()) {
            if reads_too || !kind.wants_response() {
                self.counted |= 1 << number;
            }
        }
        self.counted != before
    }
}

/// How a responder classifies a request's PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The expected one.
    New,
    /// Already executed on this transport: atomics are on record.
    Repeated,
    /// Older than this transport: nothing is known about it.
    Ghost,
    /// An earlier one is missing.
    Early,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Responder {
    pub(crate) expected: u8,
    /// The first PSN of the transport.
    start: u8,
    /// The first half of a message has arrived.
    pub(crate) half: bool,
}

impl Responder {
    pub(crate) fn judge(&self, scope: &Scope, psn: u8) -> Arrival {
        if psn == self.expected {
            Arrival::New
        } else if !scope.is_behind(psn, self.expected) {
            Arrival::Early
        } else if scope.ahead(psn, self.start) < scope.ahead(self.expected, self.start) {
            Arrival::Repeated
        } else {
            Arrival::Ghost
        }
    }

    pub(crate) fn start_anew(&mut self, psn: u8) {
        self.expected = psn;
        self.forget();
    }

    /// Forgets everything on record.
    pub(crate) fn forget(&mut self) {
        self.start = self.expected;
    }
}
