//! The entries of a ring and the position of the next one, shared by sends and receives.

use core::ptr::NonNull;

use super::storage::Storage;

/// The position of the next request; a part of a cursor.
pub(super) struct Spot<E> {
    pub(super) slot: *mut E,
    /// Number of entries from there to the end of the ring, at least one.
    left: u32,
}

impl<E> Spot<E> {
    pub(super) const EMPTY: Spot<E> = Spot { slot: core::ptr::null_mut(), left: 0 };

    /// Advances. Returns whether the end of the ring is reached; the cursor must then be reset to
    /// the start.
    #[inline(always)]
    #[must_use]
    pub(super) fn advance(&mut self) -> bool {
        self.slot = self.slot.wrapping_add(1);
        self.left = self.left.wrapping_sub(1);
        self.left == 0
    }
}

/// The part of a ring that the data path touches.
pub(super) trait Cursor {
    type Entry: Default + Clone;

    fn spot(&self) -> &Spot<Self::Entry>;
    fn spot_mut(&mut self) -> &mut Spot<Self::Entry>;
}

/// The entries of a ring, and how many have been written.
pub(super) struct Track<C: Cursor> {
    pub(super) entries: Storage<C::Entry>,
    cursor: NonNull<C>,
    /// How often the end was reached.
    laps: u64,
}

impl<C: Cursor> Track<C> {
    /// Call `clear` before use: another ring may have used the cursor.
    ///
    /// # Safety
    /// The cursor outlives the ring, and is used only by threads that may use the ring.
    pub(super) unsafe fn new(capacity: u32, cursor: NonNull<C>) -> Track<C> {
        let entries = Storage::new(capacity.max(1) as usize + 1);
        Track { entries, cursor, laps: 0 }
    }

    /// Resets the ring.
    pub(super) fn clear(&mut self) {
        self.laps = 0;
        self.go_to(0);
    }

    pub(super) fn capacity(&self) -> u64 {
        self.entries.len() as u64 - 1
    }

    fn cursor(&self) -> &C {
        // SAFETY: the caller of `new` guarantees it.
        unsafe { self.cursor.as_ref() }
    }

    pub(super) fn cursor_mut(&mut self) -> &mut C {
        // SAFETY: the caller of `new` guarantees it.
        unsafe { self.cursor.as_mut() }
    }

    /// The index of the next request.
    pub(super) fn place(&self) -> usize {
        self.entries.len() - self.cursor().spot().left as usize
    }

    fn go_to(&mut self, place: usize) {
        let (slot, left) = (self.entries.at(place), (self.entries.len() - place) as u32);
        *self.cursor_mut().spot_mut() = Spot { slot, left };
    }

    /// Number of requests so far.
    pub(super) fn tail(&self) -> u64 {
        self.laps * self.entries.len() as u64 + self.place() as u64
    }

    /// Wraps around: the cursor has reached the end.
    pub(super) fn wrap(&mut self) {
        self.laps += 1;
        self.go_to(0);
    }

    pub(super) fn advance(&mut self) {
        if self.cursor_mut().spot_mut().advance() {
            self.wrap();
        }
    }

    /// Steps back to the newest request.
    pub(super) fn step_back(&mut self) {
        let place = self.entries.back(self.place(), 1);
        if place + 1 == self.entries.len() {
            self.laps -= 1;
        }
        self.go_to(place);
    }

    pub(super) fn place_of_number(&self, number: u64) -> usize {
        self.entries.back(self.place(), self.tail() - number)
    }
}
