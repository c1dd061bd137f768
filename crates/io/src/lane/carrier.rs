//! Whether the interface below a lane carries anything.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline_nic::Time;

use crate::fault::LinkState;
use crate::sys::InterfaceQuery;

/// How long an answer of the kernel counts.
const FRESH_NS: u64 = 2_000_000;

/// The interface that has a lane's address.
pub(super) struct Carrier {
    interface: InterfaceQuery,
    is_down: AtomicBool,
    /// When the kernel is to be asked again, in nanoseconds of the lane's clock.
    ask_at: AtomicU64,
}

impl Carrier {
    /// The interface that has `addr`; `None` if none has, or nothing can be learnt of it.
    pub(super) fn of(addr: IpAddr) -> Option<Carrier> {
        let interface = InterfaceQuery::of(addr).ok()??;
        Some(Carrier { interface, is_down: AtomicBool::new(false), ask_at: AtomicU64::new(0) })
    }

    /// Forgets what was seen: it may have changed since.
    pub(super) fn forget(&self) {
        self.ask_at.store(0, Ordering::Relaxed);
    }

    /// Its state, as of a moment ago at most. An interface that is gone is down.
    pub(super) fn state(&self, now: Time) -> LinkState {
        if now.as_nanos() >= self.ask_at.load(Ordering::Relaxed) {
            self.ask_at.store(now.as_nanos() + FRESH_NS, Ordering::Relaxed);
            self.is_down.store(!self.interface.is_running().unwrap_or(false), Ordering::Relaxed);
        }
        if self.is_down.load(Ordering::Relaxed) { LinkState::Down } else { LinkState::Up }
    }
}
