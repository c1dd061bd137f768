//! Services that this process listened for until a moment ago.
//!
//! Some programs (perftest with `-R`) close their listener and open another one, while the peer's
//! next request is already in flight. A request that arrives in between waits for the new listener.
//! Such programs may even close and reopen the device in between, so the services are remembered
//! for the next device on that address.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_cm::ServiceId;
use bowline_cm::mad::MAD_LEN;
use bowline_nic::Time;

/// How long a service may have no listener. perftest sleeps for a second between two listeners, at
/// both ends. Peers wait much longer before they ask again.
pub(crate) const LINGER: Duration = Duration::from_millis(1500);
/// Maximum number of services and requests that are remembered. Further requests are answered at
/// once.
const MAX_SERVICES: usize = 64;
const MAX_HELD: usize = 64;

/// Services of devices that this process has closed: address, service and time.
static CLOSED: Mutex<Vec<(SocketAddr, ServiceId, Instant)>> = Mutex::new(Vec::new());

/// Remembers a service of a device that is being closed.
pub(crate) fn remember(at: SocketAddr, service: ServiceId) {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    closed.retain(|(.., when)| when.elapsed() < LINGER);
    if closed.len() < MAX_SERVICES {
        closed.push((at, service, Instant::now()));
    }
}

/// The services of a device that was closed at this address a moment ago.
pub(crate) fn recall(here: SocketAddr) -> Vec<ServiceId> {
    let mut closed = CLOSED.lock().unwrap_or_else(PoisonError::into_inner);
    let (ours, others) = closed.drain(..).partition(|(at, ..)| *at == here);
    *closed = others;
    let ours: Vec<(SocketAddr, ServiceId, Instant)> = ours;
    let fresh = ours.into_iter().filter(|(.., when)| when.elapsed() < LINGER);
    fresh.map(|(_, service, _)| service).collect()
}

/// A message and its sender.
pub(crate) type Held = (IpAddr, [u8; MAD_LEN]);

/// Services without a listener, and the requests for them.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    until: BTreeMap<ServiceId, Time>,
    held: Vec<(ServiceId, Held)>,
}

impl Linger {
    /// Records that a service has lost its listener. Returns `false` if there are too many.
    pub(crate) fn begin(&mut self, now: Time, service: ServiceId) -> bool {
        let has_room = self.until.len() < MAX_SERVICES;
        if has_room {
            self.until.insert(service, now.plus_nanos(LINGER.as_nanos() as u64));
        }
        has_room
    }

    /// All lingering services.
    pub(crate) fn services(&self) -> impl Iterator<Item = ServiceId> + '_ {
        self.until.keys().copied()
    }

    /// Holds a request for a lingering service. Returns `false` if the request must be answered
    /// now.
    pub(crate) fn hold(&mut self, service: ServiceId, request: Held) -> bool {
        let holds = self.until.contains_key(&service) && self.held.len() < MAX_HELD;
        if holds {
            self.held.push((service, request));
        }
        holds
    }

    /// Ends the lingering of a service. Returns the requests that were held for it.
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

    /// When the next service will have lingered for long enough.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.until.values().min().copied()
    }
}
