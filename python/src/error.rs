//! Errors as exceptions: the classes of `bowline.errors`.

use bowline::{CollectiveFailure, Error, Fault};
use pyo3::prelude::*;

/// Why something failed, before it becomes an exception.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    class: &'static str,
    message: String,
    /// The rank at fault, and what it did.
    rank: Option<(u32, String)>,
}

impl Trouble {
    fn new(class: &'static str, message: impl Into<String>) -> Trouble {
        Trouble { class, message: message.into(), rank: None }
    }

    /// An argument that cannot work.
    pub(crate) fn invalid(message: impl Into<String>) -> Trouble {
        Trouble::new("InvalidArgument", message)
    }

    /// A bug of ours.
    pub(crate) fn internal(message: &str) -> Trouble {
        Trouble::new("Error", format!("a bug in Bowline: {message}"))
    }

    fn exception(self, py: Python<'_>) -> PyResult<PyErr> {
        let class = py.import("bowline.errors")?.getattr(self.class)?;
        let value = match self.rank {
            Some((rank, cause)) => class.call1((self.message, rank, cause))?,
            None => class.call1((self.message,))?,
        };
        Ok(PyErr::from_value(value))
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let message = error.to_string();
        if let Error::Collective(CollectiveFailure { rank, cause }) = error {
            let rank = Some((rank, format!("{cause:?}").to_lowercase()));
            return Trouble { rank, ..Trouble::new("RankFailed", message) };
        }
        let class = match error.fault() {
            Fault::Caller => "InvalidArgument",
            Fault::Peer => "PeerError",
            Fault::Resource => "ResourceError",
            Fault::Path => "PathError",
            _ => "Error",
        };
        Trouble::new(class, message)
    }
}

impl From<Trouble> for PyErr {
    fn from(trouble: Trouble) -> PyErr {
        Python::attach(|py| trouble.exception(py).unwrap_or_else(|error| error))
    }
}
