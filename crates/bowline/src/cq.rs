//! Completion queues.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_device as device;
use bowline_io::EventChannel;
use bowline_nic::{Completion, CqId};

use crate::{CompletionExt, Error};

/// Notifications kept: one is enough to wake a waiter, which then polls.
const NOTIFICATIONS: usize = 4;

/// Where completed work requests are reported.
///
/// Three ways to wait, from fastest to most frugal: [`poll`](Cq::poll) in a loop, which drives the
/// device on the caller's core; [`wait`](Cq::wait), which sleeps; and, with the feature `tokio`,
/// `AsyncCq`, which lets other tasks run.
#[derive(Clone)]
pub struct Cq {
    pub(crate) inner: Arc<CqInner>,
}

pub(crate) struct CqInner {
    pub(crate) core: Arc<device::Cq>,
    channel: Arc<EventChannel<u64>>,
    turn: Turn,
}

impl Cq {
    pub(crate) fn new(device: &Arc<device::Device>, depth: u32) -> Result<Cq, Error> {
        let channel = EventChannel::new(NOTIFICATIONS)
            .map_err(|e| Error::system("make a notification channel", e))?;
        let channel = Arc::new(channel);
        let core = device::Cq::create(device, depth, Some((Arc::clone(&channel), 0)))?;
        let inner = CqInner { core: Arc::new(core), channel, turn: Turn::default() };
        Ok(Cq { inner: Arc::new(inner) })
    }

    /// Takes completions, and drives the device meanwhile; returns how many were taken.
    ///
    /// Each has its own status: see [`CompletionExt::ok`].
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, Error> {
        Ok(self.inner.core.poll_completions(out)?)
    }

    /// Takes completions, sleeping until there is one; 0 if none came within `timeout`.
    ///
    /// Several threads may wait; each completion goes to one of them.
    pub fn wait(&self, out: &mut [Completion], timeout: Duration) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        // A sleeper leaves the driving to the device's own thread, which packets wake.
        let count = self.take(out)?;
        if count > 0 {
            return Ok(count);
        }
        // A timeout beyond the end of the clock never expires.
        let deadline = Instant::now().checked_add(timeout);
        // One thread at a time listens: we would miss a notification that another one took.
        let Some(_turn) = self.inner.turn.take(deadline) else {
            return Ok(0);
        };
        loop {
            // Armed before polling: a completion after the poll raises a notification.
            self.arm()?;
            let count = self.take(out)?;
            if count > 0 {
                return Ok(count);
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(0);
            }
            // If the program polled until now, the device's own thread relies on that.
            self.inner.core.device().stop_polling();
            // The wake-up may be due to an old notification: the queue itself decides.
            self.inner.channel.wait(left)?;
        }
    }

    /// The next completion, sleeping until there is one.
    ///
    /// A failed request is an error, and so is none within `timeout`.
    pub fn next(&self, timeout: Duration) -> Result<Completion, Error> {
        let mut out = [Completion::default()];
        match self.wait(&mut out, timeout)? {
            0 => Err(Error::Timeout(timeout)),
            _ => Ok(out[0].ok()?),
        }
    }

    /// Asks for one notification, at the next completion that failed or whose sender asked for it
    /// ([`SendFlags::SOLICITED`](crate::SendFlags::SOLICITED)), for [`notified`](Cq::notified).
    pub fn arm_solicited(&self) -> Result<(), Error> {
        // Notifications of earlier requests do not count.
        while self.inner.channel.try_next()?.is_some() {}
        Ok(self.inner.core.arm(true)?)
    }

    /// Whether the notification has come, waiting for it up to `timeout`. A verbs device may report
    /// a completion before it notifies.
    pub fn notified(&self, timeout: Duration) -> Result<bool, Error> {
        Ok(self.inner.channel.wait(Some(timeout))?.is_some())
    }

    /// Its identifier, as [`Event::CqOverflow`](crate::Event::CqOverflow) names it.
    pub fn id(&self) -> CqId {
        self.inner.core.id()
    }

    /// Asks for a notification at the next completion.
    pub(crate) fn arm(&self) -> Result<(), Error> {
        Ok(self.inner.core.arm(false)?)
    }

    /// Takes completions without driving the device.
    pub(crate) fn take(&self, out: &mut [Completion]) -> Result<usize, Error> {
        Ok(self.inner.core.take(out)?)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn channel(&self) -> &Arc<EventChannel<u64>> {
        &self.inner.channel
    }
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cq({:?} of {})", self.id(), self.inner.core.device().addr())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // The queue pairs that use it hold it, so it is unused by now; and a device that has ended
        // has nothing to remove.
        let _ = self.core.destroy();
    }
}

/// Lets one thread at a time listen for notifications.
#[derive(Default)]
struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Turn {
    /// Waits for the turn, `None` if it did not come before `deadline`.
    fn take(&self, deadline: Option<Instant>) -> Option<TurnGuard<'_>> {
        // Nothing that can panic runs under the lock.
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            taken = match deadline {
                None => self.free.wait(taken).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let waited = self.free.wait_timeout(taken, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *taken = true;
        Some(TurnGuard(self))
    }
}

struct TurnGuard<'a>(&'a Turn);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}
