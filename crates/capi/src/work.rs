//! Operations that are going on, for C programs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::{Mr, Report, Work};

use crate::memory::object;
use crate::{BOWLINE_E_INTERNAL, BOWLINE_E_TIMEOUT, Trouble, guard};

/// A collective operation that is going on. It goes on whether somebody waits or not; its memory is
/// the operation's until it is over.
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
    /// Waits no longer than `limit`. `None` if that is not enough.
    fn wait(&mut self, limit: Duration) -> Option<Outcome> {
        let Some(work) = self.work.take() else {
            let text = "a wait for this operation has panicked before";
            return Some(Err(Trouble::new(BOWLINE_E_INTERNAL, text)));
        };
        let waited = match limit {
            // A look drives the device once; a wait of no time would not.
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
    /// The memory is the program's again: work requests of a failed operation may still name it,
    /// and must not find it.
    fn drop(&mut self) {
        for region in &self.regions {
            // A device that has ended touches nothing.
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

    /// Its result, if it is over within `limit`.
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

    /// Its result.
    pub(crate) fn wait_long(&self) -> Outcome {
        loop {
            if let Some(result) = self.wait(Duration::MAX) {
                return result;
            }
        }
    }
}

/// Waits until an operation is over, and says whether it has succeeded. It may be asked again.
///
/// # Safety
/// `work` is one that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_wait(work: *const bowline_work) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { object(work, "the work") }?.wait_long().map(drop)
    })
}

/// How an operation with a deadline or a share that may be missing has ended at this rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_report {
    /// Bytes that should have been received over XP. 0 if it has travelled otherwise.
    pub expected_bytes: u64,
    /// Those of them that are missing.
    pub missing_bytes: u64,
    /// Bytes that were lost and fetched again.
    pub repaired_bytes: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
    /// When it would have stopped to wait, in nanoseconds; 0 if it had no deadline.
    pub deadline_ns: u64,
    /// Ranges that are missing: see `bowline_work_missing`.
    pub ranges: usize,
    /// 1 if there are more than those, and 0 otherwise.
    pub is_cut: i32,
}

/// A range of the output that lacks what a rank should have contributed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bowline_missing {
    /// The rank.
    pub rank: u32,
    /// Its first byte.
    pub start: usize,
    /// The byte behind it.
    pub end: usize,
}

/// Waits until an operation is over, and says how it has ended. It may be asked again.
///
/// # Safety
/// `work` is one that has not been freed; `report` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_report(
    work: *const bowline_work,
    report: *mut bowline_report,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
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
        };
        // SAFETY: the caller's promise.
        unsafe { report.write(said) };
        Ok(())
    })
}

/// Waits until an operation is over, and writes which ranges are missing, `max` at most.
///
/// # Safety
/// `work` is one that has not been freed; `max` elements of `ranges` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_missing(
    work: *const bowline_work,
    ranges: *mut bowline_missing,
    max: usize,
) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
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

/// Waits no longer than `seconds`: 0 to look. Returns BOWLINE_E_TIMEOUT if the operation is not
/// over then.
///
/// # Safety
/// `work` is one that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_wait_for(work: *const bowline_work, seconds: f64) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let work = unsafe { object(work, "the work") }?;
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let outcome = work.wait(limit).unwrap_or_else(|| {
            let text = format!("the operation is not over after {seconds} s");
            Err(Trouble::new(BOWLINE_E_TIMEOUT, text))
        });
        outcome.map(drop)
    })
}

/// Frees the handle of an operation. Waits for it if it is not over: its memory is the program's
/// afterwards. NULL is nothing.
///
/// # Safety
/// `work` is NULL or one that has not been freed, and nobody waits for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_free(work: *mut bowline_work) {
    if work.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: it was made by `give`, and the caller has no other use of it.
        let work = unsafe { Box::from_raw(work) };
        // Whether it has failed was for `bowline_work_wait` to say.
        let _ = work.wait_long();
        Ok(())
    });
}
