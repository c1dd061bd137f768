//! From a provider's object to what we know of it, in a few instructions.
//!
//! What the data path needs of an object is its *seat*: 128 bytes in a table, at a place that
//! follows from the object's address. Where several objects want one place, the later ones take
//! another, which takes longer to find. A seat is given back when its owner is dropped, and not
//! when the object is destroyed: whoever still holds the owner may still lock it.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use crate::gate::Gate;

/// Seats of a table: objects of one kind are far fewer, as a rule.
const SEATS: usize = 1024;
/// Bytes of a seat. Objects of a provider are at least as large.
const SEAT_BYTES: usize = 128;
/// Places where an object may be, besides the one that follows from its address.
const NEIGHBOURS: usize = 3;

/// What the data path needs of an object.
pub(crate) trait Seat: Sync + Sized + 'static {
    /// What is known of the object.
    type Owner: 'static;
    /// A seat of no object.
    const EMPTY: Self;

    fn gate(&self) -> &Gate;
    fn owner(&self) -> &AtomicPtr<Self::Owner>;
    fn of(owner: &Self::Owner) -> &Self;
}

/// Objects by the address of the provider's own.
pub(crate) struct Table<S: Seat> {
    seats: [S; SEATS],
    /// Where the seats are, negated: in this form the data path takes the fewest instructions.
    negated: UnsafeCell<usize>,
    prepared: Once,
    rest: OnceLock<Mutex<Rest<S>>>,
}

struct Rest<S: Seat> {
    owners: HashMap<usize, Arc<S::Owner>>,
    claimed: [bool; SEATS],
}

// SAFETY: seats may be shared; `negated` is written once, before it is read.
unsafe impl<S: Seat> Sync for Table<S> where S::Owner: Send + Sync {}

impl<S: Seat> Table<S> {
    pub(crate) const fn new() -> Table<S> {
        const { assert!(size_of::<S>() == SEAT_BYTES) };
        Table {
            seats: [const { S::EMPTY }; SEATS],
            negated: UnsafeCell::new(0),
            prepared: Once::new(),
            rest: OnceLock::new(),
        }
    }

    /// Must come before [`Table::seat`].
    pub(crate) fn prepare(&'static self) {
        self.prepared.call_once(|| {
            let base = core::hint::black_box(self.seats.as_ptr().expose_provenance());
            // SAFETY: it is written here, once, and who reads it comes after.
            unsafe { self.negated.get().write(base.wrapping_neg()) };
        });
    }

    fn rest(&self) -> MutexGuard<'_, Rest<S>> {
        let rest = self
            .rest
            .get_or_init(|| Mutex::new(Rest { owners: HashMap::new(), claimed: [false; SEATS] }));
        rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seat that follows from an object's address, which may be another's.
    ///
    /// # Safety
    /// The table is prepared.
    #[inline(always)]
    pub(crate) unsafe fn seat<O>(&self, object: *mut O) -> &S {
        let offset = object as usize & ((SEATS - 1) * SEAT_BYTES);
        // SAFETY: `prepare` has written where the seats are, and the offset is one of theirs.
        unsafe {
            let seat = offset.wrapping_sub(*self.negated.get());
            &*core::ptr::with_exposed_provenance::<S>(seat)
        }
    }

    /// Places where an object may be, the first of which is the best.
    fn places(object: usize) -> impl Iterator<Item = usize> {
        let first = object / SEAT_BYTES % SEATS;
        (0..=NEIGHBOURS).map(move |other| first ^ other)
    }

    /// A seat for what will be known of an object.
    pub(crate) fn claim<O>(&'static self, object: *mut O) -> Held<S> {
        let mut rest = self.rest();
        let place = Self::places(object as usize).find(|place| !rest.claimed[*place]);
        let seat = match place {
            Some(place) => {
                rest.claimed[place] = true;
                NonNull::from(&self.seats[place])
            }
            None => NonNull::from(Box::leak(Box::new(S::EMPTY))),
        };
        Held { seat, place, table: self }
    }

    /// From now on the object is found.
    pub(crate) fn insert<O>(&self, object: *mut O, owner: Arc<S::Owner>) {
        let seat = S::of(&owner);
        seat.owner().store(Arc::as_ptr(&owner).cast_mut(), Ordering::Release);
        seat.gate().lock().open(object as usize);
        self.rest().owners.insert(object as usize, owner);
    }

    /// Takes an object out, before the provider destroys its own.
    pub(crate) fn remove<O>(&self, object: *mut O) -> Option<Arc<S::Owner>> {
        let owner = self.rest().owners.remove(&(object as usize))?;
        S::of(&owner).gate().lock().retire();
        Some(owner)
    }

    /// What is known of an object, kept alive by the caller's promise.
    ///
    /// # Safety
    /// Nobody destroys the object before the result is used for the last time: what the manual
    /// pages of libibverbs ask of every program.
    pub(crate) unsafe fn find<O>(&self, object: *mut O) -> Option<&S::Owner> {
        let object = object as usize;
        let near = Self::places(object)
            .map(|place| &self.seats[place])
            .find(|seat| seat.gate().is_of(object))
            .map(|seat| seat.owner().load(Ordering::Acquire).cast_const());
        let owner = near.or_else(|| self.rest().owners.get(&object).map(Arc::as_ptr))?;
        // SAFETY: the table holds it until it is removed, which the caller rules out.
        unsafe { owner.as_ref() }
    }

    /// What is known of an object, for longer.
    pub(crate) fn hold<O>(&self, object: *mut O) -> Option<Arc<S::Owner>> {
        self.rest().owners.get(&(object as usize)).cloned()
    }
}

/// A seat that somebody owns.
pub(crate) struct Held<S: Seat> {
    seat: NonNull<S>,
    /// Its place in the table; without one it was allocated.
    place: Option<usize>,
    table: &'static Table<S>,
}

// SAFETY: a seat is shared between threads, and may be dropped by any.
unsafe impl<S: Seat> Send for Held<S> {}
// SAFETY: as above.
unsafe impl<S: Seat> Sync for Held<S> {}

impl<S: Seat> Deref for Held<S> {
    type Target = S;

    fn deref(&self) -> &S {
        // SAFETY: of the table, or allocated until this is dropped.
        unsafe { self.seat.as_ref() }
    }
}

impl<S: Seat> Drop for Held<S> {
    fn drop(&mut self) {
        let Some(place) = self.place else {
            // SAFETY: it was allocated so, and nobody else has it.
            drop(unsafe { Box::from_raw(self.seat.as_ptr()) });
            return;
        };
        let gate = self.gate().lock();
        gate.open(0);
        gate.set_slow(false);
        drop(gate);
        self.table.rest().claimed[place] = false;
    }
}
