//! Direct algorithms on encoded tensors. Tensors are reduced in encoded form, and their owners
//! decode them once.

use super::Plan;
use super::blocks::{block, nth};
use crate::Rank;
use crate::encoding::Encoding;
use crate::schedule::{Part, Span, Transform};

impl Plan {
    /// Every rank owns some groups of the encoded tensor. It reduces them, decodes the result and
    /// sends it to all others.
    pub(super) fn allreduce_encoded(&mut self, encoding: Encoding) {
        let (bytes, parts) = encoding.parts();
        let (src, dst, ranks) = (self.src, self.dst, self.ranks as usize);
        let encoded = self.builder.scratch(bytes);
        let at = |group: usize| part_of(encoded, parts[group].encoded.clone());
        let of = |rank: Rank| block(parts.len(), 1, ranks, rank as usize);
        let transform = |group, is_back| Transform { encoding, group, is_back };
        for other in self.others() {
            for group in of(other) {
                let from = src.span(parts[group].tensor.clone());
                self.builder.transform(at(group), from, transform(group, false));
                self.builder.send_all(other, at(group));
            }
        }
        for group in of(self.rank) {
            let from = src.span(parts[group].tensor.clone());
            self.builder.transform(at(group), from, transform(group, false));
            self.fold_in_rank_order(at(group), at(group));
        }
        self.builder.set_part(Part { phase: 1, is_replica: true, is_whole: false });
        for group in of(self.rank) {
            let to = dst.span(parts[group].tensor.clone());
            self.builder.transform(to, at(group), transform(group, true));
            self.send_to_others(to);
        }
        for other in self.others() {
            for group in of(other) {
                self.builder.receive_all(other, dst.span(parts[group].tensor.clone()));
            }
        }
    }

    /// Every block is encoded separately.
    pub(super) fn reduce_scatter_encoded(&mut self, block: usize, encoding: Encoding) {
        let (bytes, parts) = encoding.parts();
        let (src, dst) = (self.src, self.dst);
        let transform = |group, is_back| Transform { encoding, group, is_back };
        let own = self.rank;
        for rank in self.others().chain([own]) {
            let encoded = self.builder.scratch(bytes);
            for (group, part) in parts.iter().enumerate() {
                let start = nth(block, rank).start;
                let from = src.span(start + part.tensor.start..start + part.tensor.end);
                let at = part_of(encoded, part.encoded.clone());
                self.builder.transform(at, from, transform(group, false));
                if rank != own {
                    self.builder.send_all(rank, at);
                    continue;
                }
                self.fold_in_rank_order(at, at);
                self.builder.transform(dst.span(part.tensor.clone()), at, transform(group, true));
            }
        }
    }
}

fn part_of(whole: Span, range: std::ops::Range<usize>) -> Span {
    Span { offset: whole.offset + range.start, len: range.len(), ..whole }
}
