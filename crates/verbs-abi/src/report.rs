//! What is left to do when a program ends: close its devices properly, and report what they did.

use std::fmt::Write;
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
    if env::report().is_some() {
        books.closed.extend(describe(ctx));
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
        && let Err(error) = std::fs::write(&path, document())
    {
        log::warn(&format!("BOWLINE_REPORT: {}: {error}", path.display()));
    }
}

/// The report: one object, with one entry for every device that was opened.
fn document() -> String {
    let program = std::env::args().next().unwrap_or_default();
    format!(
        "{{\"pid\":{},\"program\":{},\"devices\":[{}]}}\n",
        std::process::id(),
        quote(&program),
        books().closed.join(","),
    )
}

/// One device, if it still answers.
fn describe(ctx: &Context) -> Option<String> {
    let (nic, port) = ctx.lane().ok()?.counters().ok()?;
    Some(format!(
        "{{\"name\":{},\"address\":\"{}\",\"nic\":{},\"port\":{}}}",
        quote(&ctx.device.name),
        ctx.device.addr,
        counters(nic.iter()),
        counters(port.iter()),
    ))
}

fn counters<'a>(all: impl Iterator<Item = (&'a str, &'a str, u64)>) -> String {
    let fields: Vec<String> = all.map(|(name, _, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// A JSON string.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_counters_are_json() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        let all = [("a", "help", 1), ("b", "help", 2)];
        assert_eq!(counters(all.into_iter()), "{\"a\":1,\"b\":2}");
    }
}
