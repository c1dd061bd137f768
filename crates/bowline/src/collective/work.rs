//! Collective operations in progress.

use std::sync::Arc;
use std::time::Duration;

use bowline_collective::{OpId, Report};

use super::{Shared, Tensor, lock};
use crate::Error;

/// A collective operation in progress.
///
/// It progresses whether or not anybody waits. Its tensors must not be touched before it is over;
/// their memory is held until then, even if this is dropped.
#[must_use = "an operation is over when `wait` says so"]
pub struct Work {
    shared: Arc<Shared>,
    id: OpId,
    tensors: Option<[Option<Tensor>; 2]>,
}

/// Memory that is held for now.
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
    /// If a rank has failed, naming it, after the communicator's time limit at the latest.
    pub fn wait(self) -> Result<(), Error> {
        self.wait_report().map(drop)
    }

    /// Waits until it is over; returns how it ended, and what is missing if losses are allowed.
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

    /// Waits until it is over, at most for `timeout`; returns it if it is not.
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Option<Work>, Error> {
        Ok(self.end_within(timeout)?.is_none().then_some(self))
    }

    /// Waits until it is over, at most for `timeout`: returns how it ended, or the operation itself
    /// if it has not.
    ///
    /// # Errors
    /// As [`wait`](Work::wait).
    pub fn wait_report_timeout(mut self, timeout: Duration) -> Result<Result<Report, Work>, Error> {
        Ok(self.end_within(timeout)?.ok_or(self))
    }

    /// How it ended, if it does within this time.
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

    /// Whether it is over, successfully or not: [`wait`](Work::wait) then returns at once. Drives
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
