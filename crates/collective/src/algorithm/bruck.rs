//! Bruck's algorithms: rounds at distances 1, 2, 4, …. They send few messages, for cases where a
//! message costs more than its bytes.

use super::blocks::nth;
use super::{Base, Plan};
use crate::schedule::{Span, Term};

impl Plan {
    /// Each round doubles the number of blocks that a rank has, starting with its own.
    pub(super) fn allgather_bruck(&mut self, block: usize) {
        let src = self.src.span(0..block);
        let gathered = Base::from(self.builder.scratch(block * self.ranks as usize));
        self.builder.copy_all(src, gathered.span(0..block), false);
        for distance in self.distances() {
            let count = distance.min(self.ranks - distance) as usize;
            let (to, from) = (self.at(-i64::from(distance)), self.at(distance.into()));
            self.builder.send_all(to, gathered.span(0..count * block));
            let start = distance as usize * block;
            self.builder.receive_all(from, gathered.span(start..start + count * block));
        }
        for index in 0..self.ranks {
            let dst = self.dst.span(nth(block, self.at(index.into())));
            self.builder.copy_all(gathered.span(nth(block, index)), dst, false);
        }
    }

    /// A block that must travel i ranks moves on by 2^k ranks in round k if bit k of i is set.
    pub(super) fn all_to_all_bruck(&mut self, block: usize) {
        let blocks = Base::from(self.builder.scratch(block * self.ranks as usize));
        for index in 0..self.ranks {
            let from = self.src.span(nth(block, self.at(index.into())));
            self.builder.copy_all(from, blocks.span(nth(block, index)), false);
        }
        let half = block * (self.ranks as usize).div_ceil(2);
        let [packed, unpacked] = [(); 2].map(|()| self.builder.scratch(half));
        for distance in self.distances() {
            let moved: Vec<_> = (0..self.ranks).filter(|i| i & distance != 0).collect();
            let place = |base: Span, i: usize| Base::from(base).span(nth(block, i as u32));
            for (i, index) in moved.iter().enumerate() {
                self.builder.copy_all(blocks.span(nth(block, *index)), place(packed, i), false);
            }
            let len = moved.len() * block;
            let (to, from) = (self.at(distance.into()), self.at(-i64::from(distance)));
            self.builder.send_all(to, Span { len, ..packed });
            self.builder.receive_all(from, Span { len, ..unpacked });
            for (i, index) in moved.iter().enumerate() {
                self.builder.copy_all(place(unpacked, i), blocks.span(nth(block, *index)), false);
            }
        }
        for index in 0..self.ranks {
            let to = self.dst.span(nth(block, self.at(-i64::from(index))));
            self.builder.copy_all(blocks.span(nth(block, index)), to, false);
        }
    }

    /// Dissemination: after the round at distance d a rank has heard of 2d − 1 others.
    pub(super) fn barrier(&mut self) {
        let token = self.builder.scratch(1);
        for distance in self.distances() {
            let (to, from) = (self.at(distance.into()), self.at(-i64::from(distance)));
            self.builder.send(to, token);
            self.builder.fold(token, &[Term::Message(from)], false);
        }
    }

    fn distances(&self) -> impl Iterator<Item = u32> + use<> {
        let ranks = u64::from(self.ranks);
        (0..).map(|bit| 1u64 << bit).take_while(move |d| *d < ranks).map(|d| d as u32)
    }
}
