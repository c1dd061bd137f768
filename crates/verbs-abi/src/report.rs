//! What is left to do when a program ends: close its devices properly, and report what they did.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};

use bowline_io::{Lane, control};
use bowline_rails::Rail;

use crate::context::Context;
use crate::{env, failover, fork, log};

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
        && let Ok(lane) = ctx.lane()
    {
        books.closed.extend(account(ctx, lane));
        if let Some(rails) = &ctx.rails {
            let name = failover::backup_name(ctx.device);
            books.closed.extend(control::account(&name, rails.lane(Rail::Backup)));
        }
    }
}

/// What a live device answers to a line.
pub(crate) fn answer(ctx: &Context, line: &str) -> String {
    let Ok(lane) = ctx.lane() else { return String::new() };
    match line {
        "counters" => account(ctx, lane).unwrap_or_default(),
        _ => control::answer(&ctx.device.name, lane, line),
    }
}

/// An account of a device, and of its forward error correction and failover if it has any.
fn account(ctx: &Context, lane: &Lane) -> Option<String> {
    let mut account = control::account(&ctx.device.name, lane)?;
    let mut add = |name: &str, value: &str| {
        if account.pop().is_some() {
            account.push_str(&format!(",\"{name}\":{value}}}"));
        }
    };
    if let Some(fec) = &ctx.fec {
        let counters = fec.counters();
        let fields: Vec<String> =
            counters.iter().map(|(name, _, n)| format!("\"{name}\":{n}")).collect();
        add("fec", &format!("{{{}}}", fields.join(",")));
    }
    if let Some(rails) = &ctx.rails {
        add("failover", &rails.account().to_json());
    }
    Some(account)
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
