//! Why a check failed.

use std::fmt;

/// The result of a check, or of a step of one.
pub type Outcome<T = ()> = Result<T, Failure>;

/// What was expected, and what happened instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    /// Describes what went wrong.
    pub fn new(what: impl Into<String>) -> Failure {
        Failure(what.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<bowline::Error> for Failure {
    fn from(error: bowline::Error) -> Failure {
        Failure(error.to_string())
    }
}

/// Fails unless two values are equal.
pub(crate) fn same<T: PartialEq + fmt::Debug>(what: &str, got: T, want: T) -> Outcome {
    if got == want {
        return Ok(());
    }
    Err(Failure(format!("{what}: {got:?} instead of {want:?}")))
}

/// Fails unless the bytes are equal, and says where they first differ.
pub(crate) fn same_bytes(what: &str, got: &[u8], want: &[u8]) -> Outcome {
    if got == want {
        return Ok(());
    }
    if got.len() != want.len() {
        return Err(Failure(format!("{what}: {} bytes instead of {}", got.len(), want.len())));
    }
    let at = got.iter().zip(want).position(|(a, b)| a != b).unwrap_or(0);
    let wrong = got.iter().zip(want).filter(|(a, b)| a != b).count();
    let (a, b) = (got[at], want[at]);
    Err(Failure(format!("{what}: {wrong} wrong bytes, the first at {at}: {a:#04x}, not {b:#04x}")))
}
