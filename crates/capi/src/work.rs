//! Operations in progress, for C programs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::{Mr, Report, Work};

use crate::memory::object;
use crate::{BOWLINE_E_INTERNAL, BOWLINE_E_TIMEOUT, Trouble, guard};

/// A collective operation in progress. It makes progress whether or not a thread waits for it, and
/// uses its memory until it has ended.
pub struct bowline_work {
    state: Mutex<State>,
}

enum State {
    Running(Running),
    Over(Outcome),
}

type Outcome = Result<Arc<Report>, Trouble>;

struct Running {
    work: Option<Work>,
    regions: Vec<Mr>,
}

impl Running {
    /// Waits at most `limit`. `None` if the operation has not ended by then.
    fn wait(&mut self, limit: Duration) -> Option<Outcome> {
        let Some(work) = self.work.take() else {
            let text = "a wait for this operation has panicked before";
            return Some(Err(Trouble::new(BOWLINE_E_INTERNAL, text)));
        };
        let waited = match limit {
            // `is_done` drives the device once; waiting for no time would not.
            Duration::ZERO => work.is_done().and_then(|done| match done {
                true => work.wait_report_timeout(limit),
                false => Ok(Err(work)),
            }),
            _ => work.wait_report_timeout(limit),
        };
        match waited {
            Ok(Err(work)) => {
                self.work = Some(work);
                None
            }
            Ok(Ok(report)) => Some(Ok(Arc::new(report))),
            Err(error) => Some(Err(error.into())),
        }
    }
}

impl Drop for Running {
    /// Returns the memory to the program. Work requests of a failed operation may still name it,
    /// and must not find it.
    fn drop(&mut self) {
        for region in &self.regions {
            // A device that has ended touches no memory.
            let _ = region.deregister();
        }
    }
}

impl bowline_work {
    pub(crate) fn new(work: Work, regions: Vec<Mr>) -> bowline_work {
        let running = Running { work: Some(work), regions };
        bowline_work { state: Mutex::new(State::Running(running)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its result, if it ends within `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> Option<Outcome> {
        let mut state = self.lock();
        if let State::Running(running) = &mut *state {
            let result = running.wait(limit)?;
            *state = State::Over(result);
        }
        match &*state {
            State::Over(result) => Some(result.clone()),
            State::Running(_) => None,
        }
    }

    /// Waits for its result.
    pub(crate) fn wait_long(&self) -> Outcome {
        loop {
            if let Some(result) = self.wait(Duration::MAX) {
                return result;
            }
        }
    }
}

/// Waits until an operation has ended, and returns whether it succeeded. May be called again.
///
/// # Safety
/// `work` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_wait(work: *const bowline_work) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        unsafe { object(work, "the work") }?.wait_long().map(drop)
    })
}

/// How an operation with a deadline or a permitted loss ended at this rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_report {
    /// Bytes that should have been received from other ranks; 0 for an operation without bounds.
    pub expected_bytes: u64,
    /// How many of them are missing.
    pub missing_bytes: u64,
    /// Bytes that were lost and then retransmitted.
    pub repaired_bytes: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
    /// When it would have stopped waiting, in nanoseconds; 0 if it had no deadline.
    pub deadline_ns: u64,
    /// Number of missing ranges: see `bowline_work_missing`.
    pub ranges: usize,
    /// 1 if more ranges are missing than that, and 0 otherwise.
    pub is_cut: i32,
    /// 1 if the data was sent in encoded form, and 0 otherwise. Then ranges refer to the encoded
    /// data.
    pub is_encoded: i32,
}

/// A range of the output that lacks the contribution of a rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_missing {
    /// The rank.
    pub rank: u32,
    /// The first byte of the range.
    pub start: usize,
    /// The byte after the range.
    pub end: usize,
}

/// Waits until an operation has ended, and reports how. May be called again.
///
/// # Safety
/// `work` has not been freed; `report` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_report(
    work: *const bowline_work,
    report: *mut bowline_report,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let ended = unsafe { object(work, "the work") }?.wait_long()?;
        if report.is_null() {
            return Err(Trouble::caller("the report is NULL: give a place for it"));
        }
        let said = bowline_report {
            expected_bytes: ended.expected_bytes,
            missing_bytes: ended.missing_bytes,
            repaired_bytes: ended.repaired_bytes,
            elapsed_ns: ended.elapsed_ns,
            deadline_ns: ended.deadline_ns.unwrap_or(0),
            ranges: ended.missing.len(),
            is_cut: ended.is_cut.into(),
            is_encoded: ended.encoded.is_some().into(),
        };
        // SAFETY: upheld by the caller.
        unsafe { report.write(said) };
        Ok(())
    })
}

/// Waits until an operation has ended, and writes its missing ranges, at most `max`.
///
/// # Safety
/// `work` has not been freed; `max` elements of `ranges` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_missing(
    work: *const bowline_work,
    ranges: *mut bowline_missing,
    max: usize,
) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let ended = unsafe { object(work, "the work") }?.wait_long()?;
        if ranges.is_null() && max > 0 {
            return Err(Trouble::caller("the ranges are NULL: give a place for them"));
        }
        for (index, missing) in ended.missing.iter().take(max).enumerate() {
            let (rank, start, end) = (missing.rank, missing.range.start, missing.range.end);
            // SAFETY: there are `max` of them.
            unsafe { ranges.add(index).write(bowline_missing { rank, start, end }) };
        }
        Ok(())
    })
}

/// Waits at most `seconds`; 0 only checks. Returns BOWLINE_E_TIMEOUT if the operation has not ended
/// by then.
///
/// # Safety
/// `work` has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_wait_for(work: *const bowline_work, seconds: f64) -> i32 {
    guard(|| {
        // SAFETY: upheld by the caller.
        let work = unsafe { object(work, "the work") }?;
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let outcome = work.wait(limit).unwrap_or_else(|| {
            let text = format!("the operation has not completed within {seconds} s");
            Err(Trouble::new(BOWLINE_E_TIMEOUT, text))
        });
        outcome.map(drop)
    })
}

/// Frees the handle of an operation. Waits for the operation to end; then the program may use its
/// memory again. NULL is ignored.
///
/// # Safety
/// `work` is NULL or has not been freed, and no thread waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_free(work: *mut bowline_work) {
    if work.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: it was created by `give`, and the caller no longer uses it.
        let work = unsafe { Box::from_raw(work) };
        // `bowline_work_wait` reports whether it failed.
        let _ = work.wait_long();
        Ok(())
    });
}
