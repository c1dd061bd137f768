//! Operations that are going on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline::Mr;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::error::Trouble;
use crate::interrupt::SLICE;

/// A collective operation that is going on. It goes on whether somebody waits or not, and keeps the objects
/// whose memory it uses until it is over.
#[pyclass(frozen, module = "bowline")]
pub(crate) struct Work {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    phase: Phase,
    regions: Vec<Mr>,
}

enum Phase {
    /// Nobody waits.
    Idle(bowline::Work),
    /// A thread waits and drives the device.
    Driven,
    Over(Result<(), Trouble>),
}

impl Work {
    pub(crate) fn new(work: bowline::Work, regions: Vec<Mr>) -> Work {
        let state = State { phase: Phase::Idle(work), regions };
        Work { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its result, if it is over within `limit`. Any number of threads may ask.
    fn wait_for(&self, limit: Duration) -> Option<Result<(), Trouble>> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.phase, Phase::Driven) {
            Phase::Over(result) => {
                state.phase = Phase::Over(result.clone());
                return Some(result);
            }
            Phase::Driven => {
                let waited = self.changed.wait_timeout(state, limit);
                let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                return match &state.phase {
                    Phase::Over(result) => Some(result.clone()),
                    _ => None,
                };
            }
            Phase::Idle(work) => {
                drop(state);
                self.drive(work, limit);
            }
        }
        match &self.lock().phase {
            Phase::Over(result) => Some(result.clone()),
            _ => None,
        }
    }

    fn drive(&self, work: bowline::Work, limit: Duration) {
        let wait = || match limit {
            // A look drives the device once; a wait of no time would not.
            Duration::ZERO if !work.is_done()? => Ok(Some(work)),
            _ => work.wait_timeout(limit),
        };
        let waited = catch_unwind(AssertUnwindSafe(wait));
        let phase = match waited {
            Ok(Ok(Some(work))) => Phase::Idle(work),
            Ok(Ok(None)) => Phase::Over(Ok(())),
            Ok(Err(error)) => Phase::Over(Err(Trouble::from(error))),
            Err(_) => Phase::Over(Err(Trouble::internal("a wait has panicked"))),
        };
        let mut state = self.lock();
        let regions = match &phase {
            Phase::Over(_) => std::mem::take(&mut state.regions),
            _ => Vec::new(),
        };
        state.phase = phase;
        self.changed.notify_all();
        drop(state);
        for region in regions {
            // The memory is the program's again: work requests of a failed operation may still name it, and must
            // not find it. A device that has ended touches nothing.
            let _ = region.deregister();
        }
    }

    /// Waits until it is over. Without the GIL, and signals are looked at.
    pub(crate) fn wait_long(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            if let Some(result) = py.detach(|| self.wait_for(SLICE)) {
                return Ok(result?);
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Work {
    /// Waits until it is over, but no longer than `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let Some(seconds) = timeout else { return self.wait_long(py) };
        let limit = Duration::try_from_secs_f64(seconds)
            .map_err(|_| Trouble::invalid(format!("timeout {seconds}: seconds, e.g. 2.5")))?;
        let started = Instant::now();
        loop {
            let left = limit.saturating_sub(started.elapsed()).min(SLICE);
            if let Some(result) = py.detach(|| self.wait_for(left)) {
                return Ok(result?);
            }
            py.check_signals()?;
            if started.elapsed() >= limit {
                let text = format!("the operation is not over after {seconds} s, and goes on");
                return Err(PyTimeoutError::new_err(text));
            }
        }
    }

    /// Whether it is over, for better or worse.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.wait_for(Duration::ZERO)).is_some()
    }
}
