//! Where messages come from and go to.

use std::ops::Range;

use crate::spec::{Buffers, Spec};

/// More than any cache of a core, and than the L3 of most machines.
pub(crate) const COLD_BYTES: usize = 512 << 20;

/// Places in a buffer, one after the other and from the start again.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    len: usize,
    next: usize,
}

impl Places {
    /// Places in as much memory as the measurement asks for.
    pub(crate) fn new(spec: &Spec) -> Places {
        let len = match spec.buffers {
            Buffers::Hot => spec.size,
            Buffers::Cold => COLD_BYTES.max(spec.size),
        };
        Places { len, next: 0 }
    }

    /// Bytes of the buffer.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The place of the next `bytes`.
    pub(crate) fn take(&mut self, bytes: usize) -> Range<usize> {
        if self.next + bytes > self.len {
            self.next = 0;
        }
        let place = self.next..self.next + bytes;
        self.next = place.end;
        place
    }

    /// The next place of at most `bytes`, where a stream may be cut anywhere.
    pub(crate) fn peek(&mut self, bytes: usize) -> Range<usize> {
        if self.next == self.len {
            self.next = 0;
        }
        self.next..(self.next + bytes).min(self.len)
    }

    /// So much of what was peeked at has been filled.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.next += bytes;
    }
}

/// A buffer whose pages are there, so that no fault is measured.
pub(crate) fn allocate(places: &Places) -> Vec<u8> {
    vec![0x5a; places.len()]
}

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn places_go_round_and_never_past_the_end() {
        let mut places = Places { len: 10, next: 0 };
        let taken: Vec<_> = (0..4).map(|_| places.take(4)).collect();
        assert_eq!(taken, [0..4, 4..8, 0..4, 4..8]);
        assert_eq!(places.peek(4), 8..10);
        places.advance(2);
        assert_eq!(places.peek(4), 0..4);
    }
}
