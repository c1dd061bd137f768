//! Which bytes of a message a QP carries when several QPs carry it together.

use crate::send::Source;

/// The place of a QP among those that carry messages together.
///
/// A QP lives on one NIC, and so in one lane. QPs on several lanes carry one message together: each
/// takes its share of the groups, with schemes, parity and control messages of its own, and
/// [`Join`](crate::Join) reports when all shares are done. Lanes then need nothing from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Its index.
    pub index: u32,
    /// The number of QPs.
    pub of: u32,
}

impl Stripe {
    /// A QP that carries whole messages.
    pub const WHOLE: Stripe = Stripe { index: 0, of: 1 };

    /// Its share of message `id`. The first group goes to another QP each time, so that messages of
    /// one group use all lanes too.
    pub(super) fn share(self, id: u64, unit: u64) -> Share {
        let of = u64::from(self.of);
        Share { unit, of, turn: (u64::from(self.index) + of - id % of) % of }
    }
}

/// One QP's share of one message: every `of`-th unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes of a full group's data.
    unit: u64,
    of: u64,
    /// The first unit.
    turn: u64,
}

impl Share {
    /// Bytes of the share, for a message of `total` bytes.
    pub(super) fn len(&self, total: u64) -> u64 {
        let (full, rest) = (total / self.unit, total % self.unit);
        let (rounds, last) = (full / self.of, full % self.of);
        let units = rounds + u64::from(self.turn < last);
        units * self.unit + if self.turn == last { rest } else { 0 }
    }

    /// Offset in the message of a byte of the share.
    fn offset(&self, at: u64) -> u64 {
        (at / self.unit * self.of + self.turn) * self.unit + at % self.unit
    }
}

/// The memory of a message, as seen by a QP that carries a share of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) base: Source,
    pub(super) share: Share,
}

impl Memory {
    /// Where the share's bytes from `at` on are; they are contiguous up to the end of a group.
    pub(super) fn at(&self, at: u64) -> Source {
        Source { addr: self.base.addr + self.share.offset(at), ..self.base }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_cover_a_message_exactly_once(
            total in 0u64..5_000, unit in 1u64..300, of in 1u32..6, id in 0u64..20,
        ) {
            let mut covered = vec![0; total as usize];
            for index in 0..of {
                let share = Stripe { index, of }.share(id, unit);
                for at in 0..share.len(total) {
                    covered[share.offset(at) as usize] += 1;
                }
            }
            prop_assert!(covered.iter().all(|count| *count == 1));
        }

        #[test]
        fn a_share_is_contiguous_within_a_unit(
            unit in 1u64..300, of in 1u32..6, id in 0u64..20, group in 0u64..10,
        ) {
            for index in 0..of {
                let share = Stripe { index, of }.share(id, unit);
                let first = share.offset(group * unit);
                for at in 0..unit {
                    prop_assert_eq!(share.offset(group * unit + at), first + at);
                }
            }
        }
    }

    #[test]
    fn short_messages_take_turns() {
        let holder = |id| (0..3).position(|i| Stripe { index: i, of: 3 }.share(id, 10).len(7) > 0);
        assert_eq!((0..4).map(holder).collect::<Vec<_>>(), [0, 1, 2, 0].map(Some));
    }
}
