//! Work at exit: closes devices properly, and reports their counters.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bowline_io::{Lane, spawn_background};
use bowline_nic::Counters;

use crate::context::Context;
use crate::device::Device;
use crate::guard::guard;
use crate::{env, fork, log};

/// Open devices, and the counters of closed ones.
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
        log::prepare();
        *probe() = Some(Box::new([0; PROBE_BYTES]));
        // Without the thread or the handler, the next process on the address cleans up.
        if spawn_background("bowline-exit", close_when_asked).is_ok() {
            // SAFETY: `at_exit` may run whenever the process ends.
            let _ = unsafe { libc::atexit(at_exit) };
        }
    });
    let mut books = books();
    books.open.retain(|ctx| ctx.strong_count() > 0);
    books.open.push(Arc::downgrade(ctx));
}

/// What a device has done in this process since it was opened.
pub(crate) fn counters_of(device: &Device) -> Counters {
    let open: Vec<Arc<Context>> = books().open.iter().filter_map(Weak::upgrade).collect();
    let mut total = Counters::default();
    for ctx in open.iter().filter(|ctx| std::ptr::eq(ctx.device, device)) {
        if let Ok((seen, _)) =
            ctx.core().map_err(drop).and_then(|core| core.counters().map_err(drop))
        {
            total.merge(&seen);
        }
    }
    total
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

/// Progress of the thread that closes the devices of an ending program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// The program is running.
    Idle,
    /// It is asked to close, and waits for the engines' locks.
    Waiting,
    /// It has held every lock once.
    Going,
    Done,
}

static PROGRESS: (Mutex<Closing>, Condvar) = (Mutex::new(Closing::Idle), Condvar::new());

/// More than the allocator's per-thread cache keeps when it is freed.
const PROBE_BYTES: usize = 8192;

/// Memory of the thread that opened the first device. Freeing it takes the allocator lock that this
/// thread holds while it allocates.
fn probe() -> MutexGuard<'static, Option<Box<[u8; PROBE_BYTES]>>> {
    static PROBE: Mutex<Option<Box<[u8; PROBE_BYTES]>>> = Mutex::new(None);
    PROBE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long to wait for locks. They are held for a round of an engine; if one is held longer, its
/// holder is the thread that ends the program.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// How long closing may take from there: a slow store, a busy machine.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Has a separate thread close the devices, and waits for it within bounds.
///
/// A program may call `exit` in a signal handler. If the signal has interrupted a verb, the thread
/// that ends the program holds that verb's locks, and they are never released. If it has
/// interrupted `malloc`, the same is true of the allocator's: so this allocates nothing, and the
/// thread exists already. In these cases the process ends without notifying its peers, as if it
/// were killed.
extern "C" fn at_exit() {
    if fork::epoch() != 0 {
        // A child that ends leaves its parent's devices alone; its own die with it.
        return;
    }
    advance(Closing::Waiting);
    let closed =
        wait_while(Closing::Waiting, LOCK_PATIENCE) && wait_while(Closing::Going, CLOSE_PATIENCE);
    if !closed {
        log::warn(
            "the program exited inside a verb or malloc: its devices were not closed cleanly",
        );
    }
}

/// Whether the program is ending and its devices could not be closed: some lock is never released.
pub(crate) fn is_stuck() -> bool {
    let at = *PROGRESS.0.lock().unwrap_or_else(PoisonError::into_inner);
    matches!(at, Closing::Waiting | Closing::Going)
}

fn advance(to: Closing) {
    *PROGRESS.0.lock().unwrap_or_else(PoisonError::into_inner) = to;
    PROGRESS.1.notify_all();
}

/// Waits until closing has passed a step; returns whether that happened in time.
fn wait_while(step: Closing, limit: Duration) -> bool {
    let at = PROGRESS.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = PROGRESS.1.wait_timeout_while(at, limit, |at| *at == step);
    *waited.unwrap_or_else(PoisonError::into_inner).0 != step
}

/// The thread that closes devices.
fn close_when_asked() {
    let at = PROGRESS.0.lock().unwrap_or_else(PoisonError::into_inner);
    let asked = PROGRESS.1.wait_while(at, |at| *at == Closing::Idle);
    drop(asked);
    guard((), || close_all(advance));
}

/// Closes all devices, and writes the report. `tell` hears how far that has come.
fn close_all(tell: impl Fn(Closing)) {
    // A program may end with other threads still running; none of them holds this for long.
    let open: Vec<Arc<Context>> = books().open.iter().filter_map(Weak::upgrade).collect();
    for ctx in &open {
        // Only waits for the locks: a lane that has died has none.
        if let Ok(core) = ctx.core() {
            let lanes = core.lanes().iter().chain(core.backup_lanes());
            lanes.for_each(|lane: &Arc<Lane>| _ = lane.counters());
            let _ = core.failover_account();
        }
    }
    *probe() = None;
    tell(Closing::Going);
    for ctx in &open {
        closing(ctx);
        ctx.shut_down();
    }
    if let Some(path) = env::report()
        && let Err(error) = append(&path, &books().closed)
    {
        log::warn(&format!("BOWLINE_REPORT: {}: {error}", path.display()));
    }
    tell(Closing::Done);
}

/// Adds a line for every device that was opened. In one write: several processes may share the
/// file.
fn append(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let mut text = lines.join("\n");
    text.push('\n');
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
