//! Where messages go: the front end that embeds a device has ways of its own.

use std::fmt;
use std::sync::Arc;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody should do something.
    Warning,
    /// Good to know.
    Info,
}

type Sink = dyn Fn(Severity, &str) + Send + Sync;

/// Takes messages, from any thread.
#[derive(Clone)]
pub struct Log(Arc<Sink>);

impl Log {
    /// Hands every message to `sink`.
    pub fn new(sink: impl Fn(Severity, &str) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// Drops every message: a library does not write to a program's terminal.
    pub fn silent() -> Log {
        Log::new(|_, _| {})
    }

    /// Says that somebody should do something.
    pub fn warn(&self, message: &str) {
        (self.0)(Severity::Warning, message);
    }

    /// Says what is good to know.
    pub fn info(&self, message: &str) {
        (self.0)(Severity::Info, message);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}
