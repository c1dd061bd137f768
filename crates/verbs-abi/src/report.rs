//! What is left to do when a program ends: close its devices properly, and report what they did.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};

use crate::context::Context;
use crate::{env, fork, log};

/// Devices that are open, and what those that were closed have done.
#[derive(Default)]
struct Books {
    open: Vec<Weak<Context>>,
    closed: Vec<String>,
}

fn books() -> MutexGuard<'static, Books> {
    static BOOKS: OnceLock<Mutex<Books>> = OnceLock::new();
    BOOKS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device was opened.
pub(crate) fn opened(ctx: &Arc<Context>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `at_exit` may run whenever the process ends.
        // Without room for it, the next process on the address cleans up.
        let _ = unsafe { libc::atexit(at_exit) };
    });
    let mut books = books();
    books.open.retain(|ctx| ctx.strong_count() > 0);
    books.open.push(Arc::downgrade(ctx));
}

/// A device is about to be closed.
pub(crate) fn closing(ctx: &Arc<Context>) {
    let mut books = books();
    books.open.retain(|open| !std::ptr::eq(open.as_ptr(), Arc::as_ptr(ctx)));
    if env::report().is_some()
        && let Ok(core) = ctx.core()
    {
        books.closed.extend(core.report());
        books.closed.extend(core.backup_report());
    }
}

extern "C" fn at_exit() {
    if fork::epoch() != 0 {
        // A child that ends leaves its parent's devices alone; its own die with it.
        return;
    }
    // A program may end with other threads still at work; none of them holds this for long.
    let open: Vec<Arc<Context>> = books().open.iter().filter_map(Weak::upgrade).collect();
    for ctx in &open {
        closing(ctx);
        ctx.shut_down();
    }
    if let Some(path) = env::report()
        && let Err(error) = append(&path, &books().closed)
    {
        log::warn(&format!("BOWLINE_REPORT: {}: {error}", path.display()));
    }
}

/// Adds a line for every device that was opened. In one write: several processes may share the file.
fn append(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let mut text = lines.join("\n");
    text.push('\n');
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
