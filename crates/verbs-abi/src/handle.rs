//! Objects behind the pointers that programs hold.
//!
//! An object is one allocation: first the structure that the header declares, which the program
//! reads and writes as it likes, then this library's own part. References are only ever made to the
//! second part. All live objects are listed, so that a control verb can detect a stale or wrong
//! pointer; the data path checks for null only, like every provider.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::errno::Errno;

/// A structure of the header that precedes an object of ours.
pub(crate) trait Public: Sized {
    /// What follows it.
    type Inner;
    /// Which kind of object it is.
    const KIND: Kind;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Pd,
    Td,
    Mr,
    Mw,
    Dm,
    Dmah,
    Buf,
    Channel,
    Cq,
    Srq,
    Xrcd,
    Ah,
    Qp,
    CmChannel,
    CmId,
}

/// One allocation: the public part, and our own.
#[repr(C)]
pub(crate) struct Object<C: Public> {
    public: C,
    inner: C::Inner,
}

fn live() -> MutexGuard<'static, HashMap<usize, Kind>> {
    static LIVE: OnceLock<Mutex<HashMap<usize, Kind>>> = OnceLock::new();
    LIVE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list's lock, while this process forks.
struct Held(UnsafeCell<Option<MutexGuard<'static, HashMap<usize, Kind>>>>);

// SAFETY: used only between `hold_for_fork` and `release_after_fork`, which the C library calls in
// one thread, and by one fork at a time.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Takes the list's lock before a fork, so that a child does not inherit it locked by a thread that
/// it lacks.
pub(crate) fn hold_for_fork() {
    let guard = live();
    // SAFETY: whoever has the list's lock is the only one to be here.
    unsafe { *HELD.0.get() = Some(guard) };
}

/// Releases the list's lock after a fork, in parent and child.
pub(crate) fn release_after_fork() {
    // SAFETY: the lock is still held, by this thread.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// Makes an object and returns its pointer.
pub(crate) fn create<C: Public>(public: C, inner: C::Inner) -> *mut C {
    let object = Box::into_raw(Box::new(Object { public, inner }));
    live().insert(object as usize, C::KIND);
    object.cast()
}

/// The object behind a pointer, if there is one of this kind.
pub(crate) fn find<'a, C: Public>(pointer: *mut C) -> Result<&'a C::Inner, Errno> {
    if live().get(&(pointer as usize)) != Some(&C::KIND) {
        return Err(Errno::INVAL);
    }
    // SAFETY: a listed pointer is that of a live object of this kind. Whoever destroys it in
    // another thread at the same time breaks the rules of the verbs.
    unsafe { inner(pointer) }
}

/// The pointer of a live object of this kind that `is_it` accepts. It must not call verbs: the list
/// is locked.
pub(crate) fn search<C: Public>(is_it: impl Fn(&C::Inner) -> bool) -> Option<*mut C> {
    let live = live();
    let pointers = live.iter().filter(|(_, kind)| **kind == C::KIND).map(|(at, _)| *at as *mut C);
    let mut found = pointers.filter(|pointer| {
        // SAFETY: a listed pointer is that of a live object of this kind, and the list's lock keeps
        // it so.
        unsafe { inner(*pointer) }.is_ok_and(&is_it)
    });
    found.next()
}

/// The object behind a non-null pointer, without checking the list.
///
/// # Safety
/// A pointer that is not null must be one that [`create`] gave for this kind of object, not
/// destroyed yet.
#[inline]
pub(crate) unsafe fn inner<'a, C: Public>(pointer: *mut C) -> Result<&'a C::Inner, Errno> {
    if pointer.is_null() {
        return Err(Errno::INVAL);
    }
    let object = pointer.cast::<Object<C>>();
    // SAFETY: by the contract above; the reference covers our own part only, which the program
    // does not write to.
    Ok(unsafe { &(*object).inner })
}

/// Destroys an object: its pointer becomes invalid.
pub(crate) fn destroy<C: Public>(pointer: *mut C) -> Result<(), Errno> {
    {
        let mut live = live();
        if live.get(&(pointer as usize)) != Some(&C::KIND) {
            return Err(Errno::INVAL);
        }
        live.remove(&(pointer as usize));
    }
    // SAFETY: it was listed until just now, so `create` boxed it and nobody has freed it.
    drop(unsafe { Box::from_raw(pointer.cast::<Object<C>>()) });
    Ok(())
}
