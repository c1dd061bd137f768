//! Handles Ctrl-C, for commands that print something before they exit.

use std::process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::Duration;

use bowline_wan::{Signals, Woken};

/// The signal that asked the process to exit; 0 if none did.
static ASKED: AtomicI32 = AtomicI32::new(0);
/// How long a command may take to exit cleanly.
const PATIENCE: Duration = Duration::from_secs(2);

/// Watches for SIGINT, SIGTERM and SIGHUP. A command polls [`asked`] and exits cleanly. A command
/// that does not exit in time, or receives a second signal, is terminated. Call this before
/// starting threads.
pub(crate) fn watch() {
    let Ok(signals) = Signals::take_over() else { return };
    thread::spawn(move || {
        let mut left = None::<Duration>;
        loop {
            const STEP: Duration = Duration::from_millis(100);
            match (signals.wait(left.map_or(PATIENCE, |_| STEP)), left) {
                (Woken::End(signal), None) => {
                    ASKED.store(signal, Ordering::Release);
                    left = Some(PATIENCE);
                }
                (Woken::End(signal), Some(_)) => process::exit(128 + signal),
                (Woken::Look, Some(rest)) => match rest.checked_sub(STEP) {
                    Some(rest) => left = Some(rest),
                    None => process::exit(128 + ASKED.load(Ordering::Acquire)),
                },
                (Woken::Look, None) => {}
            }
        }
    });
}

/// The signal that asked the process to exit, if any.
pub(crate) fn asked() -> Option<i32> {
    Some(ASKED.load(Ordering::Acquire)).filter(|signal| *signal != 0)
}
