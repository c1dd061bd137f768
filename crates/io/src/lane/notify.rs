//! Listeners for a lane's events.

use std::fmt;
use std::sync::Arc;

use bowline_nic::Event;

use super::EventChannel;

/// Receives a lane's events, with the engine's lock held: it must be quick, and must not call the
/// lane.
pub trait EventSink: Send + Sync {
    /// Something happened.
    fn event(&self, event: Event);

    /// The lane has ended: no more events will come.
    fn closed(&self);
}

impl EventSink for EventChannel<Event> {
    fn event(&self, event: Event) {
        self.push(event);
    }

    fn closed(&self) {
        self.close();
    }
}

type Gate = dyn Fn() -> bool + Send + Sync;

/// Where to send completion notifications: a channel, and a token. Several queues, even of several
/// lanes, may share a channel.
#[derive(Clone)]
pub struct CqNotify {
    pub(super) channel: Arc<EventChannel<u64>>,
    token: u64,
    /// Asked for each notification whether to send it.
    gate: Option<Arc<Gate>>,
}

impl CqNotify {
    /// Sends `token` to `channel`.
    pub fn new(channel: Arc<EventChannel<u64>>, token: u64) -> CqNotify {
        CqNotify { channel, token, gate: None }
    }

    /// Notifies only if `gate` agrees: if several lanes are armed for one event, only the first one
    /// notifies.
    pub fn gated(self, gate: impl Fn() -> bool + Send + Sync + 'static) -> CqNotify {
        CqNotify { gate: Some(Arc::new(gate)), ..self }
    }

    /// Notifies, if the gate agrees.
    pub fn raise(&self) {
        if self.gate.as_ref().is_none_or(|gate| gate()) {
            self.channel.push(self.token);
        }
    }
}

impl fmt::Debug for CqNotify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqNotify(token {:#x})", self.token)
    }
}
