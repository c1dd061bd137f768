//! Recursive halving, then doubling (Rabenseifner's algorithm).

use std::ops::Range;

use super::Plan;
use super::blocks::block;
use crate::Rank;
use crate::schedule::Term;

/// The ranks that take part in halving: a power of two of them.
struct Members {
    count: u32,
    /// This many pairs of the first ranks are represented by one member each.
    pairs: u32,
    bytes: usize,
    element: usize,
}

impl Members {
    fn rank(&self, member: u32) -> Rank {
        if member < self.pairs { 2 * member + 1 } else { member + self.pairs }
    }

    /// The byte range of some blocks. There is one block for each member.
    fn bytes(&self, blocks: &Range<u32>) -> Range<usize> {
        let at = |i: u32| block(self.bytes, self.element, self.count as usize, i as usize);
        at(blocks.start).start..at(blocks.end - 1).end
    }
}

impl Plan {
    pub(super) fn allreduce_halving(&mut self, bytes: usize) {
        let count = 1 << self.ranks.ilog2();
        let members = Members { count, pairs: self.ranks - count, bytes, element: self.element };
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        if self.rank >= 2 * members.pairs {
            return self.halve_and_double(&members, self.rank - members.pairs);
        }
        if self.rank.is_multiple_of(2) {
            self.builder.send_all(self.rank + 1, src);
            return self.builder.receive_all(self.rank + 1, dst);
        }
        for (src, dst) in self.builder.chunks(src).zip(self.builder.chunks(dst)) {
            self.builder.fold(dst, &[Term::Message(self.rank - 1), Term::Memory(src)], false);
        }
        self.src = self.dst;
        self.halve_and_double(&members, self.rank / 2);
        self.builder.send_all(self.rank - 1, dst);
    }

    fn halve_and_double(&mut self, members: &Members, member: u32) {
        let mut mine = 0..members.count;
        let mut from = self.src;
        let mut distance = members.count / 2;
        while distance > 0 {
            let partner = member ^ distance;
            let (kept, given) = halves(&mine, member < partner);
            let peer = members.rank(partner);
            self.builder.send_all(peer, from.span(members.bytes(&given)));
            let range = members.bytes(&kept);
            let (own, to) = (from.span(range.clone()), self.dst.span(range));
            for (own, to) in self.builder.chunks(own).zip(self.builder.chunks(to)) {
                let mut terms = [Term::Memory(own), Term::Message(peer)];
                if partner < member {
                    terms.reverse();
                }
                self.builder.fold(to, &terms, distance == 1);
            }
            from = self.dst;
            mine = kept;
            distance /= 2;
        }
        self.double(members, member, mine);
    }

    /// Members exchange their blocks, at growing distances.
    fn double(&mut self, members: &Members, member: u32, mut mine: Range<u32>) {
        let mut distance = 1;
        while distance < members.count {
            let partner = member ^ distance;
            let theirs = match partner < member {
                true => mine.start - distance..mine.start,
                false => mine.end..mine.end + distance,
            };
            let peer = members.rank(partner);
            self.builder.send_all(peer, self.dst.span(members.bytes(&mine)));
            self.builder.receive_all(peer, self.dst.span(members.bytes(&theirs)));
            mine = mine.start.min(theirs.start)..mine.end.max(theirs.end);
            distance *= 2;
        }
    }
}

/// The half of the blocks that a member keeps, and the other half.
fn halves(blocks: &Range<u32>, lower: bool) -> (Range<u32>, Range<u32>) {
    let middle = blocks.start + (blocks.end - blocks.start) / 2;
    let (low, high) = (blocks.start..middle, middle..blocks.end);
    if lower { (low, high) } else { (high, low) }
}
