//! Watching the peers of idle connections.

use bowline_wire::Qpn;

use super::Nic;
use crate::error::ControlError;
use crate::qp::Keepalive;
use crate::time::Time;
use crate::types::QpType;

impl Nic {
    /// Starts or stops watching the peer of a reliable connection. A peer that has been silent for
    /// `interval_ns` is probed, as often as a request would be retried. If it does not answer, the
    /// QP fails as if a request had exhausted its retries, and raises
    /// [`Event::PeerLost`](crate::Event::PeerLost). A watched QP raises it too if a request of its
    /// own goes unanswered.
    ///
    /// The peer is declared lost at most two intervals, plus one more or the time of all retries,
    /// whichever is longer, after it was last heard from. A reset ends the watch.
    pub fn watch_peer(
        &mut self,
        now: Time,
        qpn: Qpn,
        interval_ns: Option<u64>,
    ) -> Result<(), ControlError> {
        let missing = ControlError::NotFound { what: "queue pair" };
        let slot = self.slot(qpn).ok_or(missing)?;
        let qp = self.qps[slot as usize].as_deref_mut().ok_or(missing)?;
        if qp.core.init.qp_type != QpType::Rc {
            let why = "only the peer of a reliable connection (RC) can be watched";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        qp.keepalive = match interval_ns {
            Some(0) => {
                let why = "a peer is not watched all the time: use e.g. 4 s";
                return Err(ControlError::Invalid { what: "interval", why });
            }
            Some(interval_ns) => Some(Box::new(Keepalive::every(interval_ns, now))),
            None => None,
        };
        self.after(slot);
        Ok(())
    }
}
