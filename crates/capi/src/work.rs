//! Operations that are going on, for C programs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline::{Mr, Work};

use crate::memory::object;
use crate::{BOWLINE_E_INTERNAL, BOWLINE_E_TIMEOUT, Trouble, guard};

/// A collective operation that is going on. It goes on whether somebody waits or not; its memory is the
/// operation's until it is over.
pub struct bowline_work {
    state: Mutex<State>,
}

enum State {
    Running(Running),
    Over(Result<(), Trouble>),
}

struct Running {
    work: Option<Work>,
    regions: Vec<Mr>,
}

impl Running {
    /// Waits no longer than `limit`. `None` if that is not enough.
    fn wait(&mut self, limit: Duration) -> Option<Result<(), Trouble>> {
        let Some(work) = self.work.take() else {
            let text = "a wait for this operation has panicked before";
            return Some(Err(Trouble::new(BOWLINE_E_INTERNAL, text)));
        };
        let waited = match limit {
            // A look drives the device once; a wait of no time would not.
            Duration::ZERO => work.is_done().and_then(|done| match done {
                true => work.wait_timeout(limit),
                false => Ok(Some(work)),
            }),
            _ => work.wait_timeout(limit),
        };
        match waited {
            Ok(Some(work)) => {
                self.work = Some(work);
                None
            }
            Ok(None) => Some(Ok(())),
            Err(error) => Some(Err(error.into())),
        }
    }
}

impl Drop for Running {
    /// The memory is the program's again: work requests of a failed operation may still name it, and must not
    /// find it.
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
    pub(crate) fn wait(&self, limit: Duration) -> Option<Result<(), Trouble>> {
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
    pub(crate) fn wait_long(&self) -> Result<(), Trouble> {
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
        unsafe { object(work, "the work") }?.wait_long()
    })
}

/// Waits no longer than `seconds`: 0 to look. Returns BOWLINE_E_TIMEOUT if the operation is not over then.
///
/// # Safety
/// `work` is one that has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_work_wait_for(work: *const bowline_work, seconds: f64) -> i32 {
    guard(|| {
        // SAFETY: the caller's promise.
        let work = unsafe { object(work, "the work") }?;
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        work.wait(limit).unwrap_or_else(|| {
            let text = format!("the operation is not over after {seconds} s");
            Err(Trouble::new(BOWLINE_E_TIMEOUT, text))
        })
    })
}

/// Frees the handle of an operation. Waits for it if it is not over: its memory is the program's afterwards.
/// NULL is nothing.
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
