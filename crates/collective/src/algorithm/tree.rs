//! Binomial trees. Counting from the root, a rank whose number ends in k zero bits has up to k
//! children.

use super::Plan;
use crate::Rank;
use crate::schedule::{Span, Term};

impl Plan {
    pub(super) fn allreduce_tree(&mut self, bytes: usize) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        self.reduce_up(src, dst, 0);
        self.broadcast_down(dst, dst, 0);
    }

    pub(super) fn reduce_tree(&mut self, bytes: usize, root: Rank) {
        let src = self.src.span(0..bytes);
        // An inner node that is not the root has no output buffer.
        let inner = self.rank != root && !self.children(root).is_empty();
        let sum = if inner { self.builder.scratch(bytes) } else { self.dst.span(0..bytes) };
        self.reduce_up(src, sum, root);
    }

    pub(super) fn broadcast_tree(&mut self, bytes: usize, root: Rank) {
        let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
        let passed = if self.rank == root { src } else { dst };
        self.broadcast_down(passed, dst, root);
        if self.rank == root {
            self.builder.copy_all(src, dst, false);
        }
    }

    /// Reduces the children's sums into `sum` and sends it to the parent.
    fn reduce_up(&mut self, src: Span, sum: Span, root: Rank) {
        let (parent, children) = (self.parent(root), self.children(root));
        let finish = parent.is_none();
        let is_leaf = children.is_empty() && !finish;
        for (src, sum) in self.builder.chunks(src).zip(self.builder.chunks(sum)) {
            if !is_leaf {
                let mut terms = vec![Term::Memory(src)];
                terms.extend(children.iter().map(|child| Term::Message(*child)));
                self.builder.fold(sum, &terms, finish);
            }
            if let Some(parent) = parent {
                self.builder.send(parent, if is_leaf { src } else { sum });
            }
        }
    }

    /// Receives from the parent, if there is one, and forwards to the children.
    fn broadcast_down(&mut self, passed: Span, dst: Span, root: Rank) {
        let (parent, children) = (self.parent(root), self.children(root));
        for (passed, dst) in self.builder.chunks(passed).zip(self.builder.chunks(dst)) {
            if let Some(parent) = parent {
                self.builder.fold(dst, &[Term::Message(parent)], false);
            }
            // Serve the child with the largest subtree first.
            for child in children.iter().rev() {
                self.builder.send(*child, passed);
            }
        }
    }

    fn parent(&self, root: Rank) -> Option<Rank> {
        let place = self.place(root);
        (place > 0).then(|| self.at_place(place & (place - 1), root))
    }

    /// The children, those with the smallest subtrees first.
    fn children(&self, root: Rank) -> Vec<Rank> {
        let place = self.place(root);
        let bits = if place == 0 { u32::BITS } else { place.trailing_zeros() };
        let places = (0..bits).map(|bit| place + (1 << bit));
        places.take_while(|p| *p < self.ranks.into()).map(|p| self.at_place(p, root)).collect()
    }

    /// The number of this rank, counted from the root.
    fn place(&self, root: Rank) -> u64 {
        (u64::from(self.rank) + u64::from(self.ranks) - u64::from(root)) % u64::from(self.ranks)
    }

    fn at_place(&self, place: u64, root: Rank) -> Rank {
        ((place + u64::from(root)) % u64::from(self.ranks)) as Rank
    }
}
