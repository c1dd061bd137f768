//! Messages to standard error, one line each.

use std::io::Write;
use std::sync::OnceLock;

use bowline_device::{Log, Severity};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Off,
    Warning,
    Info,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("BOWLINE_LOG").as_deref() {
        Ok("off" | "error") => Level::Off,
        Ok("info" | "debug") => Level::Info,
        _ => Level::Warning,
    })
}

/// The log of this library.
pub(crate) fn log() -> Log {
    Log::new(|severity, message| {
        let (at, label) = match severity {
            Severity::Warning => (Level::Warning, "warning"),
            Severity::Info => (Level::Info, "info"),
        };
        if at <= level() {
            // If standard error is closed, nobody can be told.
            let _ = writeln!(std::io::stderr(), "bowline: {label}: {message}");
        }
    })
}
