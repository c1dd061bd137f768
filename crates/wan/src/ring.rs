//! A ring of bytes: packets of any length, each contiguous, freed in order of arrival.

/// The longest that one read of a device gives: a superpacket and its header.
pub(crate) const MAX_READ: usize = (1 << 16) + 64;

const PAGE_BYTES: usize = 4096;

/// Bytes from `head` to `tail` are in use; a packet that would wrap starts at the front instead.
pub(crate) struct Ring {
    bytes: Box<[u8]>,
    head: usize,
    tail: usize,
    /// Equal `head` and `tail` mean full or empty.
    is_empty: bool,
}

impl Ring {
    /// A ring of this many bytes.
    pub(crate) fn new(capacity: usize) -> Ring {
        let mut bytes = vec![0; capacity.max(2 * MAX_READ)].into_boxed_slice();
        // The first touch of memory costs more than its use: packets would leave late until all of
        // it has been touched.
        for page in bytes.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
        }
        Ring { bytes, head: 0, tail: 0, is_empty: true }
    }

    /// Where to put the next packet; `None` if the longest would not fit.
    pub(crate) fn space(&mut self) -> Option<(usize, &mut [u8])> {
        let start = self.next_start()?;
        Some((start, &mut self.bytes[start..start + MAX_READ]))
    }

    fn next_start(&self) -> Option<usize> {
        if self.is_empty {
            return Some(0);
        }
        if self.tail > self.head {
            return if self.tail + MAX_READ <= self.bytes.len() {
                Some(self.tail)
            } else {
                (MAX_READ <= self.head).then_some(0)
            };
        }
        (self.tail + MAX_READ <= self.head).then_some(self.tail)
    }

    /// Keeps the first `len` bytes of the space that starts at `start`.
    pub(crate) fn keep(&mut self, start: usize, len: usize) {
        if self.is_empty {
            self.head = start;
            self.is_empty = false;
        }
        self.tail = start + len;
    }

    /// Frees everything before `head`, the start of the oldest packet that is kept; `None` if none
    /// is.
    pub(crate) fn free_until(&mut self, head: Option<usize>) {
        match head {
            Some(head) => self.head = head,
            None => {
                self.is_empty = true;
                self.head = 0;
                self.tail = 0;
            }
        }
    }

    pub(crate) fn slice(&self, start: usize, len: usize) -> &[u8] {
        &self.bytes[start..start + len]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is added and freed, packets keep their bytes and never overlap.
        #[test]
        fn packets_keep_their_bytes(
            steps in prop::collection::vec((1..MAX_READ, 0..3_usize), 1..200),
        ) {
            let mut ring = Ring::new(5 * MAX_READ);
            let mut held: VecDeque<(usize, usize, u8)> = VecDeque::new();
            for (number, (len, frees)) in steps.into_iter().enumerate() {
                let mark = number as u8;
                if let Some((start, space)) = ring.space() {
                    space[..len].fill(mark);
                    ring.keep(start, len);
                    held.push_back((start, len, mark));
                } else {
                    prop_assert!(!held.is_empty(), "an empty ring has room");
                }
                for _ in 0..frees {
                    held.pop_front();
                    ring.free_until(held.front().map(|h| h.0));
                }
                for (start, len, mark) in &held {
                    prop_assert!(ring.slice(*start, *len).iter().all(|b| b == mark));
                }
            }
        }
    }
}
