//! Operations that are going on.

use std::sync::Arc;
use std::time::Duration;

use bowline_collective::{OpId, Report};

use super::{Shared, Tensor, lock};
use crate::Error;

/// A collective operation that is going on.
///
/// It goes on whether somebody waits or not. Its tensors must not be touched before it is over;
/// their memory is held until then, also when this is dropped.
#[must_use = "an operation is over when `wait` says so"]
pub struct Work {
    shared: Arc<Shared>,
    id: OpId,
    tensors: Option<[Option<Tensor>; 2]>,
}

/// Memory that is to stay for now.
pub(super) struct Held {
    pub(super) id: OpId,
    _tensors: [Option<Tensor>; 2],
}

impl Work {
    pub(super) fn new(shared: &Arc<Shared>, id: OpId, tensors: [Option<Tensor>; 2]) -> Work {
        Work { shared: Arc::clone(shared), id, tensors: Some(tensors) }
    }

    /// Waits until it is over.
    ///
    /// # Errors
    /// That a rank has failed, and which, after the time limit of the communicator at the latest.
    pub fn wait(self) -> Result<(), Error> {
        self.wait_report().map(drop)
    }

    /// Waits until it is over; how it has ended, and what is missing if something may be.
    ///
    /// # Errors
    /// As [`wait`](Work::wait).
    pub fn wait_report(mut self) -> Result<Report, Error> {
        loop {
            if let Some(report) = self.end_within(Duration::MAX)? {
                return Ok(report);
            }
        }
    }

    /// Waits until it is over, but no longer than `timeout`; gives it back if it is not.
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Option<Work>, Error> {
        Ok(self.end_within(timeout)?.is_none().then_some(self))
    }

    /// Waits until it is over, but no longer than `timeout`: how it has ended, or it again if it
    /// has not.
    ///
    /// # Errors
    /// As [`wait`](Work::wait).
    pub fn wait_report_timeout(mut self, timeout: Duration) -> Result<Result<Report, Work>, Error> {
        Ok(self.end_within(timeout)?.ok_or(self))
    }

    /// How it has ended, if it does within this time.
    fn end_within(&mut self, timeout: Duration) -> Result<Option<Report>, Error> {
        match self.shared.member.wait(self.id, timeout)? {
            None => Ok(None),
            Some(Ok(report)) => {
                self.tensors = None;
                Ok(Some(report))
            }
            Some(Err(failure)) => Err(failure.into()),
        }
    }

    /// Whether it is over, for better or worse: [`wait`](Work::wait) returns at once then. Drives
    /// the device meanwhile.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.shared.member.poll()?;
        Ok(self.shared.member.is_over(self.id))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(tensors) = self.tensors.take() {
            lock(&self.shared.held).push(Held { id: self.id, _tensors: tensors });
        }
    }
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Work({})", self.id.0)
    }
}
