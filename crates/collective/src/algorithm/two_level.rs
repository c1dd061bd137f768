//! Two levels: each host reduces the data of its ranks before anything goes to another host.
//!
//! Each speaker of a host owns a block, and each host owns a part of that block. All ranks of a
//! host are speakers, unless the path between hosts is better left to few of them. The chunks of a
//! part go through four rounds: to the block's owner on the same host, to the part's owner on
//! another host, and back the same way. A chunk moves on as soon as it is reduced.

use std::ops::Range;

use super::blocks::block;
use super::{Base, Plan};
use crate::hosts::Grid;
use crate::schedule::{Part, Space, Term};

/// What ranks of a host send each other, and all results: complete, so that a message between hosts
/// has the contributions of all ranks of a host, and all ranks have the same result.
const fn whole(phase: u8) -> Part {
    Part { phase, is_replica: false, is_whole: true }
}

/// What hosts send each other to be reduced: it may be lost, if the bounds allow it.
const SUMS: Part = Part { phase: 0, is_replica: false, is_whole: false };

/// The position of a rank, and the ranks that it talks to.
struct Level<'a> {
    grid: &'a Grid,
    host: usize,
    index: usize,
}

impl Level<'_> {
    /// Indices of the other ranks on this host, starting with the next one.
    fn neighbours(&self) -> impl Iterator<Item = usize> + use<> {
        others(self.index, self.grid.each())
    }

    /// The other hosts, starting with the next one.
    fn hosts(&self) -> impl Iterator<Item = usize> + use<> {
        others(self.host, self.grid.hosts())
    }
}

fn others(own: usize, count: usize) -> impl Iterator<Item = usize> {
    (own + 1..count).chain(0..own)
}

impl Plan {
    pub(super) fn allreduce_two_level(&mut self, grid: &Grid, bytes: usize) {
        let (host, index) = grid.place(self.rank);
        let level = Level { grid, host, index };
        self.reduce_on_host(&level, bytes);
        self.reduce_among_hosts(&level, bytes);
        self.gather(&level, bytes);
    }

    /// Each rank reduces its block across the ranks of its host and forwards the parts that other
    /// hosts own. Those parts come before its own, because the path between hosts is longer.
    fn reduce_on_host(&mut self, level: &Level<'_>, bytes: usize) {
        let (src, dst, grid) = (self.src, self.dst, level.grid);
        let turns: Vec<_> = level.hosts().chain([level.host]).collect();
        self.builder.set_part(whole(0));
        for neighbour in level.neighbours() {
            let to = grid.rank(level.host, neighbour);
            for (_, chunk) in self.by_turns(grid, bytes, neighbour, &turns) {
                self.builder.send(to, src.span(chunk));
            }
        }
        for (host, chunk) in self.by_turns(grid, bytes, level.index, &turns) {
            let own = Term::Memory(src.span(chunk.clone()));
            let theirs = |index| Term::Message(grid.rank(level.host, index));
            let term = |index| if index == level.index { own } else { theirs(index) };
            let terms: Vec<_> = (0..grid.each()).map(term).collect();
            self.builder.set_part(whole(0));
            self.builder.fold(dst.span(chunk.clone()), &terms, false);
            self.builder.set_part(SUMS);
            if host != level.host {
                self.builder.send(grid.rank(host, level.index), dst.span(chunk));
            }
        }
    }

    /// Each rank reduces its part across hosts and sends the result to the owners of the same block
    /// on the other hosts.
    fn reduce_among_hosts(&mut self, level: &Level<'_>, bytes: usize) {
        let (dst, grid) = (self.dst, level.grid);
        for (_, chunk) in self.by_turns(grid, bytes, level.index, &[level.host]) {
            let sum = dst.span(chunk);
            let theirs = |host| Term::Message(grid.rank(host, level.index));
            let term = |host| if host == level.host { Term::Memory(sum) } else { theirs(host) };
            let terms: Vec<_> = (0..grid.hosts()).map(term).collect();
            self.builder.set_part(SUMS);
            self.builder.fold(sum, &terms, true);
            self.builder.set_part(whole(1));
            for host in level.hosts() {
                self.builder.send(grid.rank(host, level.index), sum);
            }
        }
    }

    /// Each rank collects the other parts of its block from the other hosts and sends the whole
    /// block to the ranks of its own host.
    fn gather(&mut self, level: &Level<'_>, bytes: usize) {
        let (dst, grid) = (self.dst, level.grid);
        let turns: Vec<_> = [level.host].into_iter().chain(level.hosts()).collect();
        self.builder.set_part(whole(1));
        for (host, chunk) in self.by_turns(grid, bytes, level.index, &turns) {
            let result = dst.span(chunk);
            if host != level.host {
                let from = grid.rank(host, level.index);
                self.builder.fold(result, &[Term::Message(from)], false);
            }
            for neighbour in level.neighbours() {
                self.builder.send(grid.rank(level.host, neighbour), result);
            }
        }
        for neighbour in level.neighbours() {
            let from = grid.rank(level.host, neighbour);
            for (_, chunk) in self.by_turns(grid, bytes, neighbour, &turns) {
                self.builder.fold(dst.span(chunk), &[Term::Message(from)], false);
            }
        }
    }

    /// The chunks of a block, interleaved: the first chunk of each of these hosts' parts, then the
    /// second of each, and so on. This gives every host work from the start.
    fn by_turns(
        &self,
        grid: &Grid,
        bytes: usize,
        index: usize,
        hosts: &[usize],
    ) -> Vec<(usize, Range<usize>)> {
        let whole = match grid.speakers() {
            speakers if index < speakers => block(bytes, self.element, speakers, index),
            _ => 0..0,
        };
        let part = |host: &usize| -> Vec<Range<usize>> {
            let part = block(whole.len(), self.element, grid.hosts(), *host);
            let part =
                Base::of(Space::Output).span(whole.start + part.start..whole.start + part.end);
            self.builder.chunks(part).map(|chunk| chunk.offset..chunk.offset + chunk.len).collect()
        };
        let parts: Vec<_> = hosts.iter().map(part).collect();
        let rounds = parts.iter().map(Vec::len).max().unwrap_or(0);
        let round = |nth: usize| {
            let of_each = hosts.iter().zip(&parts);
            of_each.filter_map(move |(host, part)| Some((*host, part.get(nth)?.clone())))
        };
        (0..rounds).flat_map(round).collect()
    }
}
