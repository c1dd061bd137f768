//! Detecting that the peer of an idle connection is gone.
//!
//! A requester with packets in flight detects a dead peer by its retries. One with nothing to send
//! would never notice. A watched QP checks its connection once per interval. If the peer has been
//! silent since the last check, the QP sends a probe: an empty WRITE with the PSN before its next
//! one. A responder takes that for a duplicate, which it acknowledges again and does not carry out
//! (IBTA 9.7.5.1.5). So a probe needs no PSN, no place on the send queue, no receive and no write
//! permission, and a NIC of any make answers it.

use super::{Aside, Cx, Qp};
use crate::time::Time;
use crate::transport::Signs;
use crate::types::QpState;

/// Schedule and progress of the watch on a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    /// Time of the next check.
    at: Time,
    interval_ns: u64,
    /// What was known of the peer at the last check.
    signs: Signs,
    /// Probes since the peer was last heard from.
    probes: u8,
}

impl Keepalive {
    /// Checks once per `interval_ns` from now on.
    pub(crate) fn every(interval_ns: u64, now: Time) -> Keepalive {
        let at = now.plus_nanos(interval_ns);
        Keepalive { at, interval_ns, signs: Signs::default(), probes: 0 }
    }

    /// The same watch, restarted: for a connection that has moved.
    pub(crate) fn anew(&self, now: Time) -> Keepalive {
        Keepalive::every(self.interval_ns, now)
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Time {
        self.at
    }
}

impl Qp {
    /// Checks on the peer, if that is due.
    #[cold]
    pub(crate) fn keep_alive(&mut self, cx: &mut Cx<'_>) {
        let now = cx.now;
        let core = &mut self.core;
        let Some(watch) = self.keepalive.as_deref_mut().filter(|watch| watch.at <= now) else {
            return;
        };
        if core.state == QpState::Err {
            self.keepalive = None;
            return;
        }
        // Packets in flight have a timer of their own. Without one (timeout 0) nothing ever fails.
        let rests = core.state == QpState::Rts
            && core.attrs.timeout != 0
            && self.transport.is_drained(core);
        let signs = self.transport.signs();
        if !rests || signs != watch.signs {
            *watch = Keepalive { signs, ..watch.anew(now) };
            return;
        }
        let tries = core.attrs.retry_count + 1;
        if watch.probes >= tries {
            // If it is suspended instead of failing, the watch restarts when it resumes.
            *watch = watch.anew(now);
            cx.counters.keepalive_failures += 1;
            core.give_up_path();
            return self.finish_call(cx);
        }
        watch.probes += 1;
        // As patient as with a request, and for at least one interval in all: a peer whose process
        // is starved for a moment is not dead.
        let timeout_ns = 4096 << core.attrs.timeout.min(31);
        let round_trip_ns = self.transport.round_trip_ns().unwrap_or(0);
        let share_ns = watch.interval_ns / u64::from(tries);
        watch.at = now.plus_nanos(share_ns.max(timeout_ns).max(2 * round_trip_ns));
        core.asides.insert(Aside::PROBE);
    }
}
