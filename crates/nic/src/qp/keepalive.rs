//! Finding out that the peer of a connection at rest is gone.
//!
//! A requester with packets in flight hears of a dead peer by its retries. One that has nothing to
//! send hears nothing, for ever. A QP that is watched looks at its connection once an interval. If
//! the peer has said nothing since the last look, the QP sends a probe: an empty WRITE with the PSN
//! before its next one. A responder takes that for a duplicate, which it acknowledges again and
//! does not carry out (IBTA 9.7.5.1.5). So a probe takes no PSN, no place on the send queue, no
//! receive and no right to write, and a NIC of any make answers it.

use super::{Aside, Cx, Qp};
use crate::time::Time;
use crate::transport::Signs;
use crate::types::QpState;

/// How a connection is watched, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    /// When to look.
    at: Time,
    interval_ns: u64,
    /// What was known of the peer at the last look.
    signs: Signs,
    /// Probes since the peer was last heard of.
    probes: u8,
}

impl Keepalive {
    /// Looks once in `interval_ns` from now on.
    pub(crate) fn every(interval_ns: u64, now: Time) -> Keepalive {
        let at = now.plus_nanos(interval_ns);
        Keepalive { at, interval_ns, signs: Signs::default(), probes: 0 }
    }

    /// The same watch, begun anew: of a connection that has moved.
    pub(crate) fn anew(&self, now: Time) -> Keepalive {
        Keepalive::every(self.interval_ns, now)
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Time {
        self.at
    }
}

impl Qp {
    /// Looks after the peer, if it is time to.
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
        // What is in flight has a timer of its own. Without one (timeout 0) nothing ever fails.
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
            // Should it be held and not fail, it is watched again when it goes on.
            *watch = watch.anew(now);
            cx.counters.keepalive_failures += 1;
            core.give_up_path();
            return self.finish_call(cx);
        }
        watch.probes += 1;
        // As patient as with a request, and an interval in all at least: a peer whose process is
        // starved for a moment is not dead.
        let timeout_ns = 4096 << core.attrs.timeout.min(31);
        let round_trip_ns = self.transport.round_trip_ns().unwrap_or(0);
        let share_ns = watch.interval_ns / u64::from(tries);
        watch.at = now.plus_nanos(share_ns.max(timeout_ns).max(2 * round_trip_ns));
        core.asides.insert(Aside::PROBE);
    }
}
