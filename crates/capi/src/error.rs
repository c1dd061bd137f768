//! Errors, as C programs see them.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bowline::{CollectiveFailure, Error, Fault};

/// Success.
pub const BOWLINE_OK: i32 = 0;
/// An invalid argument, or a call in the wrong order.
pub const BOWLINE_E_CALLER: i32 = 1;
/// The other end refused, broke the protocol, or has left.
pub const BOWLINE_E_PEER: i32 = 2;
/// A problem on this machine: a limit, a permission, an address in use.
pub const BOWLINE_E_RESOURCE: i32 = 3;
/// No answer from the other end within the time allowed.
pub const BOWLINE_E_PATH: i32 = 4;
/// Not completed within the given time. The operation continues.
pub const BOWLINE_E_TIMEOUT: i32 = 5;
/// A bug in Bowline.
pub const BOWLINE_E_INTERNAL: i32 = 6;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) status: i32,
    message: CString,
    rank: Option<u32>,
}

impl Trouble {
    pub(crate) fn new(status: i32, message: impl Into<String>) -> Trouble {
        let text = message.into().replace('\0', "\\0");
        Trouble { status, message: CString::new(text).unwrap_or_default(), rank: None }
    }

    pub(crate) fn caller(message: impl Into<String>) -> Trouble {
        Trouble::new(BOWLINE_E_CALLER, message)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let status = match error.fault() {
            Fault::Caller => BOWLINE_E_CALLER,
            Fault::Peer => BOWLINE_E_PEER,
            Fault::Resource => BOWLINE_E_RESOURCE,
            Fault::Path => BOWLINE_E_PATH,
            _ => BOWLINE_E_INTERNAL,
        };
        let rank = match error {
            Error::Collective(CollectiveFailure { rank, .. }) => Some(rank),
            _ => None,
        };
        Trouble { rank, ..Trouble::new(status, error.to_string()) }
    }
}

thread_local! {
    static LAST: RefCell<Option<Trouble>> = const { RefCell::new(None) };
}

/// Runs the body of a call. Errors become a status and are kept for the thread to query; panics are
/// caught here.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Trouble>) -> i32 {
    // State that a panic leaves half-changed belongs to a call that has failed for good.
    let done = catch_unwind(AssertUnwindSafe(body));
    let trouble = match done {
        Ok(Ok(())) => return BOWLINE_OK,
        Ok(Err(trouble)) => trouble,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Trouble::new(BOWLINE_E_INTERNAL, format!("a bug in Bowline: {text}"))
        }
    };
    let status = trouble.status;
    // A thread that is ending will not query the error.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(trouble));
    status
}

/// Why the last failed call of this thread failed. The text is valid until the next failure of this
/// thread; it is empty if no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn bowline_error_message() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ref().map(|last| last.message.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The rank that caused the last failed call of this thread to fail; -1 if no rank did.
#[unsafe(no_mangle)]
pub extern "C" fn bowline_error_rank() -> i64 {
    let rank = LAST.try_with(|last| last.borrow().as_ref().and_then(|last| last.rank));
    rank.ok().flatten().map_or(-1, i64::from)
}

/// The version, e.g. `0.1.0`.
#[unsafe(no_mangle)]
pub extern "C" fn bowline_version() -> *const c_char {
    const VERSION: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
        concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes(),
    ) {
        Ok(text) => text,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline::Cause;
    use std::ffi::CStr;

    fn message() -> String {
        // SAFETY: the text is valid until this thread's next failure.
        unsafe { CStr::from_ptr(bowline_error_message()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn panics_and_errors_become_a_status() {
        assert_eq!((message(), bowline_error_rank()), (String::new(), -1));
        assert_eq!(guard(|| panic!("{} of 3", 2)), BOWLINE_E_INTERNAL);
        assert_eq!(message(), "a bug in Bowline: 2 of 3");
        let failure = CollectiveFailure { rank: 7, cause: Cause::Unreachable };
        assert_eq!(guard(|| Err(Error::from(failure).into())), BOWLINE_E_PATH);
        assert_eq!(bowline_error_rank(), 7);
        assert!(message().starts_with("rank 7 does not answer"));
        assert_eq!(guard(|| Err(Trouble::caller("a\0b"))), BOWLINE_E_CALLER);
        assert_eq!((message(), bowline_error_rank()), ("a\\0b".to_owned(), -1));
        assert_eq!(guard(|| Ok(())), BOWLINE_OK);
        assert_eq!(message(), "a\\0b", "success forgets nothing");
    }
}
