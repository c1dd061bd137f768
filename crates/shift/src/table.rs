//! From a provider's object to what we know of it, in a few instructions.
//!
//! A direct-mapped cache over a table that is locked. Entries of the cache are pairs of words that
//! are written under the table's lock; a reader checks the key after the value.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Entries of the cache: objects of one kind are far fewer, as a rule.
const SLOTS: usize = 1024;

struct Slot<T> {
    key: AtomicUsize,
    value: AtomicPtr<T>,
}

/// Objects by the address of the provider's own.
pub(crate) struct Table<T> {
    cache: [Slot<T>; SLOTS],
    all: OnceLock<Mutex<HashMap<usize, Arc<T>>>>,
}

/// Objects of a provider are allocated one by one, and larger than this.
fn slot_of(key: usize) -> usize {
    (key >> 4) % SLOTS
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table {
            cache: [const {
                Slot { key: AtomicUsize::new(0), value: AtomicPtr::new(core::ptr::null_mut()) }
            }; SLOTS],
            all: OnceLock::new(),
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<usize, Arc<T>>> {
        self.all.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert<O>(&self, object: *mut O, value: Arc<T>) {
        self.all().insert(object as usize, value);
    }

    /// Takes an object out, before the provider destroys its own.
    pub(crate) fn remove<O>(&self, object: *mut O) -> Option<Arc<T>> {
        let mut all = self.all();
        let slot = &self.cache[slot_of(object as usize)];
        if slot.key.load(Ordering::Relaxed) == object as usize {
            slot.key.store(0, Ordering::Release);
        }
        all.remove(&(object as usize))
    }

    /// What is known of an object, kept alive by the caller's promise.
    ///
    /// # Safety
    /// Nobody destroys the object before the result is used for the last time: what the manual
    /// pages of libibverbs ask of every program.
    #[inline(always)]
    pub(crate) unsafe fn get<O>(&self, object: *mut O) -> Option<&T> {
        let slot = &self.cache[slot_of(object as usize)];
        if slot.key.load(Ordering::Acquire) == object as usize {
            // SAFETY: the key was stored after the value, which lives until the object is removed.
            return Some(unsafe { &*slot.value.load(Ordering::Relaxed) });
        }
        // SAFETY: the caller's promise.
        unsafe { self.find(object as usize) }
    }

    #[cold]
    #[inline(never)]
    unsafe fn find(&self, key: usize) -> Option<&T> {
        let all = self.all();
        let value = Arc::as_ptr(all.get(&key)?);
        let slot = &self.cache[slot_of(key)];
        // Objects that share a slot stay in the locked table once the slot is taken: a reader must
        // never see one's key with the other's value.
        if slot.key.load(Ordering::Relaxed) == 0 {
            slot.value.store(value.cast_mut(), Ordering::Relaxed);
            slot.key.store(key, Ordering::Release);
        }
        // SAFETY: the table holds it until it is removed, which the caller rules out.
        unsafe { value.as_ref() }
    }

    /// What is known of an object, for longer.
    pub(crate) fn hold<O>(&self, object: *mut O) -> Option<Arc<T>> {
        self.all().get(&(object as usize)).cloned()
    }
}
