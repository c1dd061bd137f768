//! Blocks travel around a ring: each rank talks only to its neighbours.

use super::Plan;
use super::blocks::{block, nth};
use crate::Rank;
use crate::schedule::{Span, Term};

impl Plan {
    pub(super) fn allreduce_ring(&mut self, bytes: usize) {
        let (element, ranks, src, dst) = (self.element, self.ranks as usize, self.src, self.dst);
        let of = |rank: Rank| block(bytes, element, ranks, rank as usize);
        let rounds = i64::from(self.ranks) - 1;
        let (next, previous) = (self.at(1), self.at(-1));
        // The block that a rank completes is the one after its own.
        for round in 0..rounds {
            let from = if round == 0 { src } else { dst };
            self.builder.send_all(next, from.span(of(self.at(-round))));
            let theirs = of(self.at(-round - 1));
            let (own, to) = (src.span(theirs.clone()), dst.span(theirs));
            self.fold_with_message(previous, own, to, round == rounds - 1);
        }
        for round in 0..rounds {
            self.builder.send_all(next, dst.span(of(self.at(1 - round))));
            self.builder.receive_all(previous, dst.span(of(self.at(-round))));
        }
    }

    pub(super) fn reduce_scatter_ring(&mut self, block: usize) {
        let (src, dst) = (self.src, self.dst.span(0..block));
        let rounds = i64::from(self.ranks) - 1;
        if rounds == 0 {
            return self.builder.copy_all(src.span(0..block), dst, true);
        }
        let (next, previous) = (self.at(1), self.at(-1));
        // Partial results alternate between two buffers.
        let partial = [self.builder.scratch(block), self.builder.scratch(block)];
        let mut passed = src.span(nth(block, self.at(-1)));
        for round in 0..rounds {
            self.builder.send_all(next, passed);
            let own = src.span(nth(block, self.at(-round - 2)));
            let last = round == rounds - 1;
            passed = if last { dst } else { partial[round as usize % 2] };
            self.fold_with_message(previous, own, passed, last);
        }
    }

    pub(super) fn allgather_ring(&mut self, block: usize) {
        let (src, dst) = (self.src.span(0..block), self.dst);
        let (next, previous) = (self.at(1), self.at(-1));
        self.builder.copy_all(src, dst.span(nth(block, self.rank)), false);
        for round in 0..i64::from(self.ranks) - 1 {
            let passed = if round == 0 { src } else { dst.span(nth(block, self.at(-round))) };
            self.builder.send_all(next, passed);
            self.builder.receive_all(previous, dst.span(nth(block, self.at(-round - 1))));
        }
    }

    /// A chain rather than a ring: the rank before the root forwards nothing.
    pub(super) fn broadcast_ring(&mut self, bytes: usize, root: Rank) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        let (next, previous) = (self.at(1), self.at(-1));
        let is_root = self.rank == root;
        let passed = if is_root { src } else { dst };
        for (passed, dst) in self.builder.chunks(passed).zip(self.builder.chunks(dst)) {
            if !is_root {
                self.builder.fold(dst, &[Term::Message(previous)], false);
            }
            if next != root {
                self.builder.send(next, passed);
            }
        }
        if is_root {
            self.builder.copy_all(src, dst, false);
        }
    }

    /// Reduces a rank's message with this rank's memory, chunk by chunk.
    fn fold_with_message(&mut self, from: Rank, own: Span, dst: Span, finish: bool) {
        for (own, dst) in self.builder.chunks(own).zip(self.builder.chunks(dst)) {
            self.builder.fold(dst, &[Term::Message(from), Term::Memory(own)], finish);
        }
    }
}
