//! Services that this process listened for a moment ago.
//!
//! Some programs (perftest with `-R`) end their listener and make another, while the peer's next
//! request is already on its way. A request that comes in between waits for the new listener. They
//! may even close the device in between, and open it again: what it listened for is remembered for
//! the next one on that address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_cm::ServiceId;
use bowline_cm::mad::MAD_LEN;
use bowline_nic::Time;

/// How long a service may have no listener: perftest sleeps for a second between two, at both ends.
/// Peers wait much longer before they ask again.
pub(crate) const LINGER: Duration = Duration::from_millis(1500);
/// Services and requests that are remembered at most. Those beyond are answered at once.
const MAX_SERVICES: usize = 64;
const MAX_HELD: usize = 64;

/// Services of devices that this process has closed: where, which, and when.
static CLOSED: Mutex<Vec<(SocketAddr, ServiceId, Instant)>> = Mutex::new(Vec::new());

/// Remembers a service of a device that is being closed.
pub(crate) fn remember(at: SocketAddr, service: ServiceId) {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    closed.retain(|(.., when)| when.elapsed() < LINGER);
    if closed.len() < MAX_SERVICES {
        closed.push((at, service, Instant::now()));
    }
}

/// What a device listened for that was closed here a moment ago.
pub(crate) fn recall(here: SocketAddr) -> Vec<ServiceId> {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    let (ours, others) = closed.drain(..).partition(|(at, ..)| *at == here);
    *closed = others;
    let ours: Vec<(SocketAddr, ServiceId, Instant)> = ours;
    let fresh = ours.into_iter().filter(|(.., when)| when.elapsed() < LINGER);
    fresh.map(|(_, service, _)| service).collect()
}

/// A message, and who sent it.
pub(crate) type Held = (IpAddr, [u8; MAD_LEN]);

/// Services without a listener, and the requests for them.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    until: BTreeMap<ServiceId, Time>,
    held: Vec<(ServiceId, Held)>,
}

impl Linger {
    /// A service has lost its listener; `false` if there are too many of those.
    pub(crate) fn begin(&mut self, now: Time, service: ServiceId) -> bool {
        let has_room = self.until.len() < MAX_SERVICES;
        if has_room {
            self.until.insert(service, now.plus_nanos(LINGER.as_nanos() as u64));
        }
        has_room
    }

    /// All services that linger.
    pub(crate) fn services(&self) -> impl Iterator<Item = ServiceId> + '_ {
        self.until.keys().copied()
    }

    /// Keeps a request for a service that lingers; `false` if it is to be answered now.
    pub(crate) fn hold(&mut self, service: ServiceId, request: Held) -> bool {
        let holds = self.until.contains_key(&service) && self.held.len() < MAX_HELD;
        if holds {
            self.held.push((service, request));
        }
        holds
    }

    /// The service lingers no longer; returns what was held for it.
    pub(crate) fn end(&mut self, service: ServiceId) -> Vec<Held> {
        self.until.remove(&service);
        let (ended, held) = self.held.drain(..).partition(|(of, _)| *of == service);
        self.held = held;
        let ended: Vec<(ServiceId, Held)> = ended;
        ended.into_iter().map(|(_, request)| request).collect()
    }

    /// A service that has lingered for long enough.
    pub(crate) fn due(&self, now: Time) -> Option<ServiceId> {
        self.until.iter().find(|(_, until)| **until <= now).map(|(service, _)| *service)
    }

    /// When the next one has.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.until.values().min().copied()
    }
}
