//! Whether the interface below a lane has a carrier.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bowline_nic::Time;

use crate::fault::LinkState;
use crate::sys::InterfaceQuery;

/// How long an answer from the kernel stays valid.
const FRESH_NS: u64 = 2_000_000;

/// The interface that has a lane's address.
pub(super) struct Carrier {
    interface: InterfaceQuery,
    is_down: AtomicBool,
    /// When to ask the kernel again, in nanoseconds of the lane's clock.
    ask_at: AtomicU64,
}

impl Carrier {
    /// The interface with address `addr`; `None` if there is none or its state cannot be read.
    pub(super) fn of(addr: IpAddr) -> Option<Carrier> {
        let interface = InterfaceQuery::of(addr).ok()??;
        Some(Carrier { interface, is_down: AtomicBool::new(false), ask_at: AtomicU64::new(0) })
    }

    /// Discards the cached state.
    pub(super) fn forget(&self) {
        self.ask_at.store(0, Ordering::Relaxed);
    }

    /// The interface's state, recent or cached for a moment. A removed interface is down.
    pub(super) fn state(&self, now: Time) -> LinkState {
        if now.as_nanos() >= self.ask_at.load(Ordering::Relaxed) {
            self.ask_at.store(now.as_nanos() + FRESH_NS, Ordering::Relaxed);
            self.is_down.store(!self.interface.is_running().unwrap_or(false), Ordering::Relaxed);
        }
        if self.is_down.load(Ordering::Relaxed) { LinkState::Down } else { LinkState::Up }
    }
}
