//! A timing wheel for the near future, with one slot per nanosecond.

use bowline_nic::Time;

/// Nanoseconds that the wheel reaches ahead: a few packets on a fast link and the delay of a cable.
/// Small enough for a core's L1 cache.
const SLOTS: usize = 8192;
const WORDS: usize = SLOTS / 64;
/// No place.
const NONE: u32 = u32::MAX;

/// Entries by time; those due at one instant in insertion order.
///
/// Every entry lies between the time of the last `pop` or `advance` and `SLOTS` nanoseconds later,
/// so a slot holds the entries of one instant.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    now: u64,
    /// When the first is due; `u64::MAX` if there is none.
    first: u64,
    /// The last entry of each slot's ring.
    lasts: Box<[u32; SLOTS]>,
    /// Non-empty slots, as bits, and the non-zero words of these.
    used: [u64; WORDS],
    used_words: u128,
    places: Vec<Place<T>>,
    /// Head of the free list.
    free: u32,
}

#[derive(Clone, Copy, Debug)]
struct Place<T> {
    what: T,
    /// The next entry of its slot, which for the last is the first; or the next free one.
    next: u32,
}

impl<T> Default for Wheel<T> {
    fn default() -> Wheel<T> {
        Wheel {
            now: 0,
            first: u64::MAX,
            lasts: Box::new([NONE; SLOTS]),
            used: [0; WORDS],
            used_words: 0,
            places: Vec::new(),
            free: NONE,
        }
    }
}

#[inline]
fn slot_of(at: u64) -> usize {
    at as usize % SLOTS
}

impl<T: Copy> Wheel<T> {
    /// When the first is due; [`Time::NEVER`] if there is none.
    #[inline]
    pub(crate) fn first(&self) -> Time {
        Time::from_nanos(self.first)
    }

    /// Inserts an entry; returns `false` if its time is out of reach.
    #[inline]
    pub(crate) fn insert(&mut self, at: Time, what: T) -> bool {
        let at = at.as_nanos();
        // Past times wrap around to far ahead.
        if at.wrapping_sub(self.now) >= SLOTS as u64 {
            return false;
        }
        let place = self.place(what);
        let slot = slot_of(at);
        match self.lasts[slot] {
            NONE => {
                self.places[place as usize].next = place;
                self.used[slot / 64] |= 1 << (slot % 64);
                self.used_words |= 1 << (slot / 64);
                self.first = self.first.min(at);
            }
            last => {
                self.places[place as usize].next = self.places[last as usize].next;
                self.places[last as usize].next = place;
            }
        }
        self.lasts[slot] = place;
        true
    }

    #[inline]
    fn place(&mut self, what: T) -> u32 {
        let index = self.free;
        match self.places.get_mut(index as usize) {
            Some(place) => {
                self.free = place.next;
                place.what = what;
                index
            }
            None => {
                self.places.push(Place { what, next: NONE });
                (self.places.len() - 1) as u32
            }
        }
    }

    /// Removes the first entry.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let slot = slot_of(self.first);
        let last = self.lasts[slot];
        let index = self.places.get(last as usize)?.next;
        let place = self.places[index as usize];
        self.now = self.first;
        self.places[index as usize].next = self.free;
        self.free = index;
        if index == last {
            self.empty(slot);
        } else {
            self.places[last as usize].next = place.next;
        }
        Some(place.what)
    }

    /// The slot of the current time has become empty.
    #[inline]
    fn empty(&mut self, slot: usize) {
        self.lasts[slot] = NONE;
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.used_words &= !(1 << (slot / 64));
        }
        self.first = self.find_first(slot);
    }

    /// Promises that nothing earlier than `now` will be inserted, nor is here.
    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now.as_nanos());
    }

    /// When the first entry after `slot` is due; `slot` is the current, empty one.
    #[inline]
    fn find_first(&self, slot: usize) -> u64 {
        if self.used_words == 0 {
            return u64::MAX;
        }
        let rest = self.used[slot / 64] >> (slot % 64);
        if rest != 0 {
            return self.now + u64::from(rest.trailing_zeros());
        }
        // Words from the next one on, once around to this one.
        let turn = (slot / 64 + 1) as u32 % WORDS as u32;
        let ahead = self.used_words.rotate_right(turn).trailing_zeros();
        let word = (turn + ahead) as usize % WORDS;
        let found = word * 64 + self.used[word].trailing_zeros() as usize;
        self.now + slot_of((found + SLOTS - slot) as u64) as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::SimRng;

    #[test]
    fn what_is_in_reach_comes_by_time_and_then_in_order() {
        let rng = &mut SimRng::new(2, 0);
        let mut wheel = Wheel::default();
        let mut model: Vec<(Time, u64)> = Vec::new();
        let mut now = Time::ZERO;
        for number in 0..50_000 {
            let at = now.plus_nanos(rng.pick(&[0, 1, 70, 4_000, 8_191]) & rng.bits());
            assert!(wheel.insert(at, number));
            model.push((at, number));
            assert!(!wheel.insert(now.plus_nanos(SLOTS as u64), 0), "out of reach");
            if rng.percent(48) {
                let first = *model.iter().min().expect("something is in it");
                model.retain(|m| *m != first);
                assert_eq!((wheel.first(), wheel.pop()), (first.0, Some(first.1)));
                now = first.0;
            }
            if model.is_empty() && rng.percent(10) {
                now = now.plus_nanos(rng.below(100_000));
                wheel.advance(now);
            }
            if model.len() > 40 {
                for (at, number) in std::mem::take(&mut model).into_iter().collect::<BTreeSet<_>>()
                {
                    assert_eq!((wheel.first(), wheel.pop()), (at, Some(number)));
                    now = at;
                }
                assert_eq!((wheel.first(), wheel.pop()), (Time::NEVER, None));
            }
        }
    }
}
