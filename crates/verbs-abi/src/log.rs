//! Messages to standard error, in libibverbs' style: few, and each on one line.

use std::io::Write;
use std::sync::{Mutex, OnceLock, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("BOWLINE_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("error") => Level::Error,
        Ok("info") => Level::Info,
        Ok("debug") => Level::Debug,
        _ => Level::Warn,
    })
}

/// Reads the log settings, so that logging allocates nothing.
pub(crate) fn prepare() {
    level();
}

fn write(at: Level, label: &str, message: &str) {
    if at <= level() {
        // If standard error is closed, the message is lost.
        let _ = writeln!(std::io::stderr(), "bowline: {label}: {message}");
    }
}

pub(crate) fn error(message: &str) {
    write(Level::Error, "error", message);
}

pub(crate) fn warn(message: &str) {
    write(Level::Warn, "warning", message);
}

/// Logs a warning the first time only.
pub(crate) fn warn_once(message: &str) {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if !said.iter().any(|before| before == message) {
        said.push(message.to_owned());
        warn(message);
    }
}

pub(crate) fn info(message: &str) {
    write(Level::Info, "info", message);
}

pub(crate) fn debug(message: impl FnOnce() -> String) {
    if Level::Debug <= level() {
        write(Level::Debug, "debug", &message());
    }
}
