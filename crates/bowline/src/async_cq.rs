//! Waiting for completions in an async task.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use bowline_io::EventChannel;
use bowline_nic::Completion;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{CompletionExt, Cq, Error};

/// A completion queue as seen by tasks of a tokio runtime.
///
/// While it exists, wait for the queue only through it: notifications reach one listener.
///
/// ```no_run
/// # async fn example(cq: bowline::Cq) -> Result<(), bowline::Error> {
/// use bowline::AsyncCq;
///
/// let mut cq = AsyncCq::new(cq)?;
/// let completion = cq.next().await?;
/// println!("request {} is done", completion.wr_id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    ready: AsyncFd<Notifications>,
}

#[derive(Debug)]
struct Notifications(Arc<EventChannel<u64>>);

impl AsRawFd for Notifications {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsyncCq {
    /// Registers the queue with the runtime that calls it.
    ///
    /// # Panics
    /// Outside of a tokio runtime with IO enabled, like all of tokio's IO types.
    pub fn new(cq: Cq) -> Result<AsyncCq, Error> {
        let notifications = Notifications(Arc::clone(cq.channel()));
        #[expect(deprecated, reason = "its successor wants `AsFd`, which channels do not have yet")]
        let ready = AsyncFd::with_interest(notifications, Interest::READABLE)
            .map_err(|e| Error::system("register a completion queue with the runtime", e))?;
        Ok(AsyncCq { cq, ready })
    }

    /// Takes completions, waiting until there is at least one.
    ///
    /// Dropping the future loses nothing: completions that were not returned stay in the queue.
    pub async fn wait(&mut self, out: &mut [Completion]) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            // Armed before polling: a completion after the poll raises a notification.
            self.cq.arm()?;
            let count = self.cq.take(out)?;
            if count > 0 {
                return Ok(count);
            }
            let mut ready = self
                .ready
                .readable()
                .await
                .map_err(|e| Error::system("wait for a completion queue", e))?;
            while self.ready.get_ref().0.try_next()?.is_some() {}
            ready.clear_ready();
        }
    }

    /// The next completion; a failed request is an error.
    pub async fn next(&mut self) -> Result<Completion, Error> {
        let mut out = [Completion::default()];
        self.wait(&mut out).await?;
        Ok(out[0].ok()?)
    }

    /// The queue itself.
    pub fn get_ref(&self) -> &Cq {
        &self.cq
    }
}
