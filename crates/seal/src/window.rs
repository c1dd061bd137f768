//! The anti-replay window (RFC 4303, section 3.4.3; the ring is RFC 6479's).

const WORD_BITS: u64 = 64;
const WORDS: u64 = 64;
/// How far behind the highest counter a packet may be: the ring without the word that is being
/// filled.
pub(crate) const WINDOW: u64 = (WORDS - 1) * WORD_BITS;

/// Counters that have been accepted.
#[derive(Clone)]
pub(crate) struct ReplayWindow {
    /// One more than the highest.
    next: u64,
    /// Bit `counter % 64` of word `counter / 64 % WORDS`.
    words: Box<[u64; WORDS as usize]>,
}

impl ReplayWindow {
    pub(crate) fn new() -> ReplayWindow {
        ReplayWindow { next: 0, words: Box::new([0; WORDS as usize]) }
    }

    /// Whether a packet with this counter may be new.
    #[inline]
    pub(crate) fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            return true;
        }
        let (word, bit) = place(counter);
        self.next - counter <= WINDOW && self.words[word] & bit == 0
    }

    /// Accepts a new counter. Only for a packet whose tag was right: a forged one could move the
    /// window past all real ones.
    #[inline]
    pub(crate) fn take(&mut self, counter: u64) {
        if counter >= self.next {
            let (from, to) = (self.next.div_ceil(WORD_BITS), counter / WORD_BITS);
            for number in from..=to.min(from.saturating_add(WORDS - 1)) {
                self.words[(number % WORDS) as usize] = 0;
            }
            self.next = counter + 1;
        }
        let (word, bit) = place(counter);
        self.words[word] |= bit;
    }
}

#[inline]
fn place(counter: u64) -> (usize, u64) {
    ((counter / WORD_BITS % WORDS) as usize, 1 << (counter % WORD_BITS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with a set of everything that has arrived.
        #[test]
        fn a_counter_is_new_once(
            steps in proptest::collection::vec((0..5_u8, 0..9_000_u64), 1..400),
        ) {
            let (mut window, mut seen, mut high) = (ReplayWindow::new(), BTreeSet::new(), 0_u64);
            for (kind, distance) in steps {
                let counter = match kind {
                    0 => high + 1,
                    1 => high + distance,
                    2 => high.saturating_sub(distance % 70),
                    _ => high.saturating_sub(distance),
                };
                let is_recent = seen.last().is_none_or(|last| counter + WINDOW > *last);
                prop_assert_eq!(window.is_new(counter), is_recent && !seen.contains(&counter));
                if window.is_new(counter) {
                    window.take(counter);
                    seen.insert(counter);
                    high = high.max(counter);
                    prop_assert!(!window.is_new(counter));
                }
            }
        }
    }
}
