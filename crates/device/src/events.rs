//! Merges the events of all lanes into one channel.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bowline_failover::Rail;
use bowline_failover::mirror::{Layout, Names, Place};
use bowline_io::{EventChannel, EventSink};
use bowline_nic::Event;
use bowline_wire::Qpn;

use crate::connections::ConnectionEvent;

/// Maximum number of events kept; further ones are counted and lost.
pub(crate) const MAX_EVENTS: usize = 4096;

/// Passes the events of one engine to the program, with the objects' names as the program knows
/// them.
pub(crate) struct EngineEvents {
    pub(crate) at: Place,
    pub(crate) layout: Layout,
    pub(crate) names: Arc<RwLock<Names>>,
    pub(crate) events: Arc<EventChannel<Event>>,
    pub(crate) peers: Arc<LostPeers>,
}

/// Who is notified of lost peers instead of the program: the connection manager, if there is one.
#[derive(Default)]
pub(crate) struct LostPeers {
    told: Mutex<Option<Arc<EventChannel<ConnectionEvent>>>>,
}

impl LostPeers {
    /// Sends notifications to `channel` from now on.
    pub(crate) fn tell(&self, channel: Option<Arc<EventChannel<ConnectionEvent>>>) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    /// Reports a lost peer. Returns `false` if nobody wants to know.
    fn lost(&self, qpn: Qpn) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.as_ref().map(|channel| channel.push(ConnectionEvent::PeerLost(qpn))).is_some()
    }
}

impl EventSink for EngineEvents {
    fn event(&self, event: Event) {
        if let Event::PeerLost(qpn) = event
            && self.peers.lost(qpn)
        {
            return;
        }
        // This lock is held only for look-ups, so nobody waits for an engine here.
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = names.translate(self.layout, self.at, event) {
            self.events.push(event);
        }
    }

    /// A device whose own engine has ended is broken. It survives the end of its backup's engine.
    fn closed(&self) {
        if self.at.rail == Rail::Default {
            self.events.closed();
        }
    }
}
