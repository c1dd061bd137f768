//! Event queues that an application can wait on, from a thread or by a descriptor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::{EventFd, PollFd, poll};

/// A bounded queue of events with a descriptor that is readable while it is not empty.
///
/// A blocking caller uses [`wait`](EventChannel::wait); an event loop watches the descriptor and
/// calls [`try_next`](EventChannel::try_next) until it gives `None`. When the channel is full,
/// further events are counted and lost.
#[derive(Debug)]
pub struct EventChannel<T> {
    queue: Mutex<Queue<T>>,
    ready: EventFd,
    capacity: usize,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Queue<T> {
    events: VecDeque<T>,
    closed: bool,
}

/// The lane behind a channel has ended: no more events will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lane has ended: no event will come any more")]
pub struct ChannelClosed;

impl<T> EventChannel<T> {
    /// A channel for at most `capacity` events at a time.
    pub fn new(capacity: usize) -> io::Result<EventChannel<T>> {
        Ok(EventChannel {
            queue: Mutex::new(Queue { events: VecDeque::new(), closed: false }),
            ready: EventFd::semaphore()?,
            capacity,
            lost: AtomicU64::new(0),
        })
    }

    /// The next event, if there is one now. Events queued before the end are still delivered.
    pub fn try_next(&self) -> Result<Option<T>, ChannelClosed> {
        let mut queue = self.lock();
        match queue.events.pop_front() {
            Some(event) => {
                if queue.events.is_empty() {
                    self.ready.take();
                }
                Ok(Some(event))
            }
            None if queue.closed => Err(ChannelClosed),
            None => Ok(None),
        }
    }

    /// The next event, waiting for it up to `timeout`; `None` also when `beside` is readable.
    pub fn wait_beside(
        &self,
        beside: &impl AsRawFd,
        timeout: Duration,
    ) -> Result<Option<T>, ChannelClosed> {
        if let Some(event) = self.try_next()? {
            return Ok(Some(event));
        }
        let fds = [self.ready.as_raw_fd(), beside.as_raw_fd()];
        if poll(&mut fds.map(PollFd::readable), Some(timeout)).is_err() {
            // As below.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.try_next()
    }

    /// The next event, waiting for it up to `timeout`, or for ever.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<T>, ChannelClosed> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) && timeout.is_some() {
                return Ok(None);
            }
            if poll(&mut [PollFd::readable(self.ready.as_raw_fd())], left).is_err() {
                // Only a kernel out of memory refuses to sleep; look again a little later.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Removes the events that `keep` rejects: their subject is gone.
    pub fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut queue = self.lock();
        let any = !queue.events.is_empty();
        queue.events.retain(&mut keep);
        if any && queue.events.is_empty() {
            self.ready.take();
        }
    }

    /// Events lost because the channel was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Adds an event; a full channel counts it and loses it.
    pub fn push(&self, event: T) {
        let mut queue = self.lock();
        if queue.events.len() >= self.capacity {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Raise once for all queued events: a system call costs more than an event.
        if queue.events.is_empty() {
            self.ready.raise();
        }
        queue.events.push_back(event);
    }

    /// Closes the channel: waiters get an error once the queue is empty.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.closed = true;
            // Never lowered again, so that every present and future waiter wakes.
            self.ready.raise();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        // No code that can panic runs under this lock, so a poisoned queue is still whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> AsRawFd for EventChannel<T> {
    /// Readable while there is an event, or once the lane has ended.
    fn as_raw_fd(&self) -> RawFd {
        self.ready.as_raw_fd()
    }
}
