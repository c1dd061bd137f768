//! One round: every message goes straight to the rank that needs it.

use super::Plan;
use super::blocks::{block, nth};
use crate::schedule::{Part, Span, Term};
use crate::{Rank, cast_of};

impl Plan {
    pub(super) fn allreduce_exchange(&mut self, bytes: usize) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        self.builder.set_part(Part { phase: 0, is_replica: true, is_whole: false });
        self.send_to_others(src);
        self.fold_in_rank_order(src, dst);
    }

    pub(super) fn allreduce_direct(&mut self, bytes: usize) {
        let (element, ranks, src, dst) = (self.element, self.ranks as usize, self.src, self.dst);
        let of = |rank: Rank| block(bytes, element, ranks, rank as usize);
        for other in self.others() {
            self.builder.send_all(other, src.span(of(other)));
        }
        let own = of(self.rank);
        self.fold_in_rank_order(src.span(own.clone()), dst.span(own.clone()));
        self.builder.set_part(Part { phase: 1, is_replica: true, is_whole: false });
        self.send_to_others(dst.span(own));
        for other in self.others() {
            self.builder.receive_all(other, dst.span(of(other)));
        }
    }

    pub(super) fn reduce_scatter_direct(&mut self, block: usize) {
        let (src, dst) = (self.src, self.dst.span(0..block));
        for other in self.others() {
            self.builder.send_all(other, src.span(nth(block, other)));
        }
        self.fold_in_rank_order(src.span(nth(block, self.rank)), dst);
    }

    pub(super) fn allgather_direct(&mut self, block: usize) {
        let (src, dst) = (self.src.span(0..block), self.dst);
        self.send_to_others(src);
        self.builder.copy_all(src, dst.span(nth(block, self.rank)), false);
        for other in self.others() {
            self.builder.receive_all(other, dst.span(nth(block, other)));
        }
    }

    pub(super) fn all_to_all_direct(&mut self, send: &[usize], recv: &[usize]) {
        let (src, dst) = (self.src, self.dst);
        let range = |counts: &[usize], rank: Rank| {
            let start: usize = counts[..rank as usize].iter().sum();
            start..start + counts[rank as usize]
        };
        for other in self.others() {
            self.builder.send_all(other, src.span(range(send, other)));
        }
        let (own_src, own_dst) = (range(send, self.rank), range(recv, self.rank));
        self.builder.copy_all(src.span(own_src), dst.span(own_dst), false);
        for other in self.others() {
            self.builder.receive_all(other, dst.span(range(recv, other)));
        }
    }

    pub(super) fn broadcast_direct(&mut self, bytes: usize, root: Rank) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        if self.rank == root {
            self.send_to_others(src);
            self.builder.copy_all(src, dst, false);
        } else {
            self.builder.receive_all(root, dst);
        }
    }

    /// Multicasts each message to all other ranks, chunk by chunk.
    pub(super) fn broadcast_multicast(&mut self, bytes: usize, root: Rank) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        let cast = cast_of(root, self.ranks);
        if self.rank != root {
            return self.builder.receive_all(cast, dst);
        }
        if self.ranks > 1 {
            self.builder.send_all(cast, src);
        }
        self.builder.copy_all(src, dst, false);
    }

    pub(super) fn reduce_direct(&mut self, bytes: usize, root: Rank) {
        let src = self.src.span(0..bytes);
        if self.rank == root {
            let dst = self.dst.span(0..bytes);
            self.fold_in_rank_order(src, dst);
        } else {
            self.builder.send_all(root, src);
        }
    }

    pub(super) fn gather_direct(&mut self, block: usize, root: Rank) {
        let (src, dst) = (self.src.span(0..block), self.dst);
        if self.rank == root {
            self.builder.copy_all(src, dst.span(nth(block, root)), false);
            for other in self.others() {
                self.builder.receive_all(other, dst.span(nth(block, other)));
            }
        } else {
            self.builder.send_all(root, src);
        }
    }

    pub(super) fn scatter_direct(&mut self, block: usize, root: Rank) {
        let (src, dst) = (self.src, self.dst.span(0..block));
        if self.rank == root {
            for other in self.others() {
                self.builder.send_all(other, src.span(nth(block, other)));
            }
            self.builder.copy_all(src.span(nth(block, root)), dst, false);
        } else {
            self.builder.receive_all(root, dst);
        }
    }

    /// Sends a span to all other ranks, chunk by chunk.
    pub(super) fn send_to_others(&mut self, src: Span) {
        for chunk in self.builder.chunks(src) {
            for other in self.others() {
                self.builder.send(other, chunk);
            }
        }
    }

    /// Reduces the contributions of all ranks in rank order. This rank's own is in `src`.
    pub(super) fn fold_in_rank_order(&mut self, src: Span, dst: Span) {
        let own = self.rank;
        for (src, dst) in self.builder.chunks(src).zip(self.builder.chunks(dst)) {
            let term = |rank| if rank == own { Term::Memory(src) } else { Term::Message(rank) };
            let terms: Vec<_> = (0..self.ranks).map(term).collect();
            self.builder.fold(dst, &terms, true);
        }
    }
}
