//! The report at exit, written to the file that `BOWLINE_REPORT` names.

use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

use crate::session;

static CLOSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Called when a device is opened: its report is written when the program ends.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    if std::env::var_os("BOWLINE_REPORT").is_some() {
        ONCE.call_once(|| {
            // SAFETY: `at_exit` may run whenever the process ends. If the handler cannot be
            // registered, there is no report.
            let _ = unsafe { libc::atexit(at_exit) };
        });
    }
}

/// Adds the report of a closed device.
pub(crate) fn add(line: String) {
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

extern "C" fn at_exit() {
    let written = std::panic::catch_unwind(|| {
        session::all().iter().for_each(|session| add(session.report()));
        write(&CLOSED.lock().unwrap_or_else(PoisonError::into_inner))
    });
    if let Ok(Err(error)) = written {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(std::io::stderr(), "bowline: warning: BOWLINE_REPORT: {error}");
    }
}

/// Appends a line for every device, in one write because several processes may share the file.
fn write(lines: &[String]) -> std::io::Result<()> {
    let Some(path) = std::env::var_os("BOWLINE_REPORT") else { return Ok(()) };
    let mut text = lines.join("\n");
    text.push('\n');
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
