//! Operations that are going on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline::Mr;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::error::Trouble;
use crate::interrupt::SLICE;

/// A collective operation that is going on. It goes on whether somebody waits or not, and keeps the
/// objects whose memory it uses until it is over.
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
    Over(Outcome),
}

type Outcome = Result<Arc<bowline::Report>, Trouble>;

impl Work {
    pub(crate) fn new(work: bowline::Work, regions: Vec<Mr>) -> Work {
        let state = State { phase: Phase::Idle(work), regions };
        Work { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its result, if it is over within `limit`. Any number of threads may ask.
    fn wait_for(&self, limit: Duration) -> Option<Outcome> {
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
            Duration::ZERO if !work.is_done()? => Ok(Err(work)),
            _ => work.wait_report_timeout(limit),
        };
        let waited = catch_unwind(AssertUnwindSafe(wait));
        let phase = match waited {
            Ok(Ok(Err(work))) => Phase::Idle(work),
            Ok(Ok(Ok(report))) => Phase::Over(Ok(Arc::new(report))),
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
            // The memory is the program's again: work requests of a failed operation may still name
            // it, and must not find it. A device that has ended touches nothing.
            let _ = region.deregister();
        }
    }

    /// Waits until it is over. Without the GIL, and signals are looked at.
    pub(crate) fn wait_long(&self, py: Python<'_>) -> PyResult<Arc<bowline::Report>> {
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
        let Some(seconds) = timeout else { return self.wait_long(py).map(drop) };
        let limit = Duration::try_from_secs_f64(seconds)
            .map_err(|_| Trouble::invalid(format!("timeout {seconds}: seconds, e.g. 2.5")))?;
        let started = Instant::now();
        loop {
            let left = limit.saturating_sub(started.elapsed()).min(SLICE);
            if let Some(result) = py.detach(|| self.wait_for(left)) {
                result?;
                return Ok(());
            }
            py.check_signals()?;
            if started.elapsed() >= limit {
                let text = format!("the operation is not over after {seconds} s, and goes on");
                return Err(PyTimeoutError::new_err(text));
            }
        }
    }

    /// Waits until it is over; how it has ended.
    fn report(&self, py: Python<'_>) -> PyResult<Report> {
        Ok(Report::new(&*self.wait_long(py)?))
    }

    /// Whether it is over, for better or worse.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.wait_for(Duration::ZERO)).is_some()
    }
}

/// How an operation has ended at this rank.
#[pyclass(frozen, get_all, module = "bowline")]
pub(crate) struct Report {
    expected_bytes: u64,
    missing_bytes: u64,
    repaired_bytes: u64,
    elapsed: f64,
    deadline: Option<f64>,
    missing: Vec<(u32, usize, usize)>,
    is_cut: bool,
    is_encoded: bool,
}

impl Report {
    fn new(report: &bowline::Report) -> Report {
        let seconds = |ns: u64| ns as f64 / 1e9;
        let missing = report.missing.iter().map(|m| (m.rank, m.range.start, m.range.end));
        Report {
            expected_bytes: report.expected_bytes,
            missing_bytes: report.missing_bytes,
            repaired_bytes: report.repaired_bytes,
            elapsed: seconds(report.elapsed_ns),
            deadline: report.deadline_ns.map(seconds),
            missing: missing.collect(),
            is_cut: report.is_cut,
            is_encoded: report.encoded.is_some(),
        }
    }
}
