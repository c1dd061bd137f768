//! Log messages of a device. Each front end that embeds a device handles them in its own way.

use std::fmt;
use std::sync::Arc;

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Somebody should act on it.
    Warning,
    /// Good to know.
    Info,
}

type Sink = dyn Fn(Severity, &str) + Send + Sync;

/// Receives messages from any thread.
#[derive(Clone)]
pub struct Log(Arc<Sink>);

impl Log {
    /// Passes every message to `sink`.
    pub fn new(sink: impl Fn(Severity, &str) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// Drops every message, because a library does not write to a program's terminal.
    pub fn silent() -> Log {
        Log::new(|_, _| {})
    }

    /// Logs something that somebody should act on.
    pub fn warn(&self, message: &str) {
        (self.0)(Severity::Warning, message);
    }

    /// Logs something that is good to know.
    pub fn info(&self, message: &str) {
        (self.0)(Severity::Info, message);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}
