//! Events of all lanes, in one channel.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bowline_failover::Rail;
use bowline_failover::mirror::{Layout, Names, Place};
use bowline_io::{EventChannel, EventSink};
use bowline_nic::Event;
use bowline_wire::Qpn;

use crate::connections::ConnectionEvent;

/// Events kept; further ones are counted and lost.
pub(crate) const MAX_EVENTS: usize = 4096;

/// Hands the events of one engine to the program, about the objects that it knows.
pub(crate) struct EngineEvents {
    pub(crate) at: Place,
    pub(crate) layout: Layout,
    pub(crate) names: Arc<RwLock<Names>>,
    pub(crate) events: Arc<EventChannel<Event>>,
    pub(crate) peers: Arc<LostPeers>,
}

/// Who hears of peers that are gone, instead of the program: the connection manager, if there is
/// one.
#[derive(Default)]
pub(crate) struct LostPeers {
    told: Mutex<Option<Arc<EventChannel<ConnectionEvent>>>>,
}

impl LostPeers {
    /// Tells `channel` from now on.
    pub(crate) fn tell(&self, channel: Option<Arc<EventChannel<ConnectionEvent>>>) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = channel;
    }

    /// A peer is gone; `false` if nobody wants to be told.
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
        // Held for look-ups only, so nobody waits here for an engine.
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = names.translate(self.layout, self.at, event) {
            self.events.push(event);
        }
    }

    /// A device whose own engine has ended is broken. Without a backup's it goes on.
    fn closed(&self) {
        if self.at.rail == Rail::Default {
            self.events.closed();
        }
    }
}
