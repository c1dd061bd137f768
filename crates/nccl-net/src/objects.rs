//! The handles that NCCL holds: numbers that look like pointers. Handles that NCCL passes back are
//! looked up and never dereferenced, so a stale or wrong handle is an error.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::comm::{Receiver, Sender};
use crate::setup::Listening;
use crate::status::Trouble;

/// A request's number occupies this many bits below the number of its object.
const REQUEST_BITS: u32 = 10;
/// How long a connection may go undriven while NCCL polls only others.
const DRIVE: Duration = Duration::from_millis(1);

/// An object with a number.
pub(crate) enum Object {
    Listen(Mutex<Listening>),
    Send(Mutex<Sender>),
    Recv(Mutex<Receiver>),
}

impl Object {
    fn name(&self) -> &'static str {
        match self {
            Object::Listen(_) => "a listener",
            Object::Send(_) => "a send connection",
            Object::Recv(_) => "a receive connection",
        }
    }
}

struct Table {
    /// The next number. Numbers are not reused.
    next: usize,
    objects: BTreeMap<usize, Arc<Object>>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { next: 1, objects: BTreeMap::new() });

/// Assigns a number to an object.
pub(crate) fn add(object: Object) -> *mut c_void {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let number = table.next;
    table.next += 1;
    table.objects.insert(number, Arc::new(object));
    pointer(number << REQUEST_BITS)
}

/// The object behind a handle.
pub(crate) fn get(handle: *mut c_void) -> Result<Arc<Object>, Trouble> {
    let number = handle.addr() >> REQUEST_BITS;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let found = table.objects.get(&number).cloned();
    found.ok_or_else(|| {
        Trouble::argument(format!("invalid handle {handle:?}: not a connection, or already closed"))
    })
}

/// Removes an object from the table. A call in progress in another thread still has it.
pub(crate) fn take(handle: *mut c_void) -> Result<Arc<Object>, Trouble> {
    let object = get(handle)?;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.objects.remove(&(handle.addr() >> REQUEST_BITS));
    Ok(object)
}

/// Drives all connections, at most once per [`DRIVE`]. A caller that waits for one request depends
/// on the others too, because some transports repair, or send long messages piece by piece, only
/// when they are polled.
pub(crate) fn drive_all() {
    static DRIVEN: Mutex<Option<Instant>> = Mutex::new(None);
    // Another thread is doing it.
    let Ok(mut driven) = DRIVEN.try_lock() else { return };
    if driven.is_some_and(|last| last.elapsed() < DRIVE) {
        return;
    }
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let objects: Vec<Arc<Object>> = table.objects.values().cloned().collect();
    drop(table);
    for object in &objects {
        // A thread that holds a connection drives it.
        match &**object {
            Object::Send(sender) => sender.try_lock().into_iter().for_each(|mut s| s.drive()),
            Object::Recv(receiver) => receiver.try_lock().into_iter().for_each(|mut r| r.drive()),
            Object::Listen(_) => {}
        }
    }
    *driven = Some(Instant::now());
}

/// The handle of a request of the object behind `handle`.
pub(crate) fn request(handle: *mut c_void, index: usize) -> *mut c_void {
    debug_assert!(index + 1 < 1 << REQUEST_BITS);
    pointer(handle.addr() | (index + 1))
}

/// The number of a request.
pub(crate) fn request_index(request: *mut c_void) -> Result<usize, Trouble> {
    let index = request.addr() & ((1 << REQUEST_BITS) - 1);
    index.checked_sub(1).ok_or_else(|| Trouble::argument(format!("invalid request {request:?}")))
}

/// A number as a pointer for NCCL.
pub(crate) fn pointer(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

/// The error for a handle of the wrong kind.
pub(crate) fn wrong_kind(object: &Object, wanted: &str) -> Trouble {
    Trouble::argument(format!("expected {wanted}, got {}", object.name()))
}

/// Locks the data of one connection. If a panic has left it half-changed, every later lock fails.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Trouble> {
    mutex.lock().map_err(|_| {
        Trouble::new(crate::abi::INTERNAL_ERROR, "an earlier call on this connection failed inside")
    })
}
