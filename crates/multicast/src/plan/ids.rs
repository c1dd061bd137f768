//! Group IDs and member IDs.

use bowline_wire::Qpn;

use crate::table::GROUP_PREFIX;

/// Number of IDs below the prefix.
const COUNT: usize = 1 << 16;

/// The unused QPNs of the reserved prefix at one address, from which group IDs and member IDs are
/// taken.
///
/// A released ID is reused last, so that late packets of an old group do not reach a new one.
#[derive(Clone, Debug)]
pub struct IdPool {
    used: Vec<u64>,
    next: usize,
}

impl Default for IdPool {
    fn default() -> Self {
        IdPool { used: vec![0; COUNT / 64], next: 0 }
    }
}

impl IdPool {
    /// Takes one; `None` if all are in use.
    pub fn take(&mut self) -> Option<Qpn> {
        let mut candidates = (self.next..COUNT).chain(0..self.next);
        let found = candidates.find(|id| self.used[id / 64] >> (id % 64) & 1 == 0)?;
        self.used[found / 64] |= 1 << (found % 64);
        self.next = (found + 1) % COUNT;
        Some(Qpn::new(u32::from(GROUP_PREFIX) << 16 | found as u32))
    }

    /// Releases an ID. IDs with another prefix are ignored.
    pub fn give_back(&mut self, id: Qpn) {
        if id.prefix() == GROUP_PREFIX {
            let id = usize::from(id.low16());
            self.used[id / 64] &= !(1 << (id % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unused_and_come_again_last() {
        let mut pool = IdPool::default();
        let first = pool.take().expect("a new pool has all");
        assert_eq!((first.prefix(), first.low16()), (GROUP_PREFIX, 0));
        pool.give_back(first);
        for expected in 1..COUNT {
            assert_eq!(pool.take().map(|id| usize::from(id.low16())), Some(expected));
        }
        assert_eq!(pool.take(), Some(first));
        assert_eq!(pool.take(), None);
        pool.give_back(Qpn::new(0x12_3456));
        assert_eq!(pool.take(), None);
    }
}
