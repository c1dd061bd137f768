//! Errors, as NCCL sees them.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bowline::{Error, Fault};

use crate::{abi, log};

/// Why a call failed: an NCCL result code, and a message for its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) status: c_int,
    /// Empty if the message has been logged already.
    pub(crate) message: String,
}

impl Trouble {
    pub(crate) fn new(status: c_int, message: impl Into<String>) -> Trouble {
        Trouble { status, message: message.into() }
    }

    /// An invalid argument.
    pub(crate) fn argument(message: impl Into<String>) -> Trouble {
        Trouble::new(abi::INVALID_ARGUMENT, message)
    }

    /// A call that the plug-in does not support.
    pub(crate) fn usage(message: impl Into<String>) -> Trouble {
        Trouble::new(abi::INVALID_USAGE, message)
    }

    /// The other end broke the protocol, or has left.
    pub(crate) fn remote(message: impl Into<String>) -> Trouble {
        Trouble::new(abi::REMOTE_ERROR, message)
    }

    /// A problem on this machine.
    pub(crate) fn system(message: impl Into<String>) -> Trouble {
        Trouble::new(abi::SYSTEM_ERROR, message)
    }

    /// The same without its message, which has been logged by now.
    pub(crate) fn told(&self) -> Trouble {
        Trouble::new(self.status, String::new())
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let status = match error.fault() {
            Fault::Peer | Fault::Path => abi::REMOTE_ERROR,
            Fault::Resource => abi::SYSTEM_ERROR,
            _ => abi::INTERNAL_ERROR,
        };
        Trouble::new(status, error.to_string())
    }
}

/// Runs the body of a call. An error becomes a result code and a line in NCCL's log; panics are
/// caught here.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), Trouble>) -> c_int {
    // State that a panic leaves half-changed belongs to a connection that has failed for good.
    let trouble = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return abi::SUCCESS,
        Ok(Err(trouble)) => trouble,
        Err(_) => Trouble::new(abi::INTERNAL_ERROR, "a call failed inside Bowline, which is a bug"),
    };
    if !trouble.message.is_empty() {
        log::warn(&trouble.message);
    }
    trouble.status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_errors_become_a_result() {
        assert_eq!(guard(|| Ok(())), abi::SUCCESS);
        assert_eq!(guard(|| panic!("two of three")), abi::INTERNAL_ERROR);
        assert_eq!(guard(|| Err(Trouble::remote("gone"))), abi::REMOTE_ERROR);
        let timeout = Error::Timeout(std::time::Duration::from_secs(1));
        assert_eq!(Trouble::from(timeout).status, abi::REMOTE_ERROR);
        let range = Error::OutOfRange { start: 0, end: 2, len: 1 };
        assert_eq!(Trouble::from(range).status, abi::INTERNAL_ERROR);
    }
}
