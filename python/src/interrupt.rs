//! Waiting such that Ctrl-C works: without the GIL, and with a look at signals now and then.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::Trouble;

/// How long Python waits for a look at its signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Runs `body`, which may take long, in a thread of its own. Where a signal handler raises, that
/// thread is left to end by itself.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens after a signal.
        let _ = sender.send(body());
    });
    loop {
        let (received, back) = py.detach(move || (receiver.recv_timeout(SLICE), receiver));
        receiver = back;
        match received {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Trouble::internal("a thread has panicked").into());
            }
        }
    }
}
