//! Maps a provider's object to our data about it, in a few instructions.
//!
//! The part of an object's data that the data path needs is its *seat*: 128 bytes in a table, at an
//! index derived from the object's address. If several objects map to the same index, later ones
//! take another, which takes longer to find. A seat is freed when its owner is dropped, not when
//! the object is destroyed, because a thread that still holds the owner may still lock it.

use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};

use crate::gate::Gate;

/// Number of seats in a table. Usually there are far fewer objects of a kind.
const SEATS: usize = 1024;
/// Size of a seat in bytes. Providers' objects are at least as large.
const SEAT_BYTES: usize = 128;
/// Number of alternative indices for an object, besides the one derived from its address.
const NEIGHBOURS: usize = 3;

/// The part of an object's data that the data path needs.
pub(crate) trait Seat: Sync + Sized + 'static {
    /// All our data about the object.
    type Owner: 'static;
    /// A seat without an object.
    const EMPTY: Self;

    fn gate(&self) -> &Gate;
    fn owner(&self) -> &AtomicPtr<Self::Owner>;
    fn of(owner: &Self::Owner) -> &Self;
}

/// Objects by the address of the provider's object.
pub(crate) struct Table<S: Seat> {
    seats: [S; SEATS],
    /// The address of the seats, negated: this form takes the fewest instructions on the data path.
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

    /// Must be called before [`Table::seat`].
    pub(crate) fn prepare(&'static self) {
        self.prepared.call_once(|| {
            let base = core::hint::black_box(self.seats.as_ptr().expose_provenance());
            // SAFETY: written once, here, before anything reads it.
            unsafe { self.negated.get().write(base.wrapping_neg()) };
        });
    }

    fn rest(&self) -> MutexGuard<'_, Rest<S>> {
        let rest = self
            .rest
            .get_or_init(|| Mutex::new(Rest { owners: HashMap::new(), claimed: [false; SEATS] }));
        rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seat at the index derived from an object's address. It may belong to another object.
    ///
    /// # Safety
    /// The table is prepared.
    #[inline(always)]
    pub(crate) unsafe fn seat<O>(&self, object: *mut O) -> &S {
        let offset = object as usize & ((SEATS - 1) * SEAT_BYTES);
        // SAFETY: `prepare` has stored the address of the seats, and the offset is within them.
        unsafe {
            let seat = offset.wrapping_sub(*self.negated.get());
            &*core::ptr::with_exposed_provenance::<S>(seat)
        }
    }

    /// The possible indices for an object, the best one first.
    fn places(object: usize) -> impl Iterator<Item = usize> {
        let first = object / SEAT_BYTES % SEATS;
        (0..=NEIGHBOURS).map(move |other| first ^ other)
    }

    /// Claims a seat for an object.
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

    /// Makes the object findable.
    pub(crate) fn insert<O>(&self, object: *mut O, owner: Arc<S::Owner>) {
        let seat = S::of(&owner);
        seat.owner().store(Arc::as_ptr(&owner).cast_mut(), Ordering::Release);
        seat.gate().lock().open(object as usize);
        self.rest().owners.insert(object as usize, owner);
    }

    /// Removes an object, before the provider destroys its own.
    pub(crate) fn remove<O>(&self, object: *mut O) -> Option<Arc<S::Owner>> {
        let owner = self.rest().owners.remove(&(object as usize))?;
        S::of(&owner).gate().lock().retire();
        Some(owner)
    }

    /// Our data about an object. The caller guarantees that it stays alive.
    ///
    /// # Safety
    /// The object is not destroyed before the result is last used. The manual pages of libibverbs
    /// require that of every program.
    pub(crate) unsafe fn find<O>(&self, object: *mut O) -> Option<&S::Owner> {
        let object = object as usize;
        let near = Self::places(object)
            .map(|place| &self.seats[place])
            .find(|seat| seat.gate().is_of(object))
            .map(|seat| seat.owner().load(Ordering::Acquire).cast_const());
        let owner = near.or_else(|| self.rest().owners.get(&object).map(Arc::as_ptr))?;
        // SAFETY: the table keeps it until it is removed, which the caller rules out.
        unsafe { owner.as_ref() }
    }

    /// Our data about an object, kept alive by a reference count.
    pub(crate) fn hold<O>(&self, object: *mut O) -> Option<Arc<S::Owner>> {
        self.rest().owners.get(&(object as usize)).cloned()
    }
}

/// An owned seat.
pub(crate) struct Held<S: Seat> {
    seat: NonNull<S>,
    /// Its index in the table; `None` if it was allocated separately.
    place: Option<usize>,
    table: &'static Table<S>,
}

// SAFETY: a seat is shared between threads, and any of them may drop it.
unsafe impl<S: Seat> Send for Held<S> {}
// SAFETY: as above.
unsafe impl<S: Seat> Sync for Held<S> {}

impl<S: Seat> Deref for Held<S> {
    type Target = S;

    fn deref(&self) -> &S {
        // SAFETY: part of the table, or allocated until this is dropped.
        unsafe { self.seat.as_ref() }
    }
}

impl<S: Seat> Drop for Held<S> {
    fn drop(&mut self) {
        let Some(place) = self.place else {
            // SAFETY: it was allocated as a box, and nothing else has it.
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
