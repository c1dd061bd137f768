//! The algorithms. Each lists its steps in an order that would be correct if they ran one by one.

mod blocks;
mod bruck;
mod choose;
mod direct;
mod encoded;
mod halving;
mod ring;
mod tree;
mod two_level;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::Rank;
use crate::hosts::{Grid, Hosts};
use crate::request::{Operation, Request};
use crate::schedule::{Builder, Space, Span};
pub(crate) use choose::{choose, known};

/// How an operation is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Chosen by message size and number of ranks.
    #[default]
    Auto,
    /// All ranks send everything to all others, and each reduces in rank order.
    Exchange,
    /// Every block goes straight to its owner, which reduces in rank order and sends the result to
    /// all.
    Direct,
    /// Blocks travel around a ring of neighbours.
    Ring,
    /// Recursive halving, then doubling.
    Halving,
    /// A binomial tree.
    Tree,
    /// Rounds at distances 1, 2, 4, ….
    Bruck,
    /// The root sends once, and a multicast group copies the message for all other ranks.
    Multicast,
    /// Direct among the ranks of each host, and direct between hosts among the ranks with the same
    /// index on their hosts.
    TwoLevel,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Auto,
        Algorithm::Exchange,
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::Halving,
        Algorithm::Tree,
        Algorithm::Bruck,
        Algorithm::Multicast,
        Algorithm::TwoLevel,
    ];

    /// The name, as in commands and errors.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Exchange => "exchange",
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::Halving => "halving",
            Algorithm::Tree => "tree",
            Algorithm::Bruck => "bruck",
            Algorithm::Multicast => "multicast",
            Algorithm::TwoLevel => "two-level",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An unknown algorithm name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown algorithm `{0}`: use one of auto, exchange, direct, ring, halving, tree, bruck, \
     multicast, two-level"
)]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// What an algorithm works on.
struct Plan {
    builder: Builder,
    rank: Rank,
    ranks: u32,
    grid: Option<Grid>,
    /// Size of an element in bytes.
    element: usize,
    /// Where the input and the output start.
    src: Base,
    dst: Base,
}

/// The start of a buffer.
#[derive(Clone, Copy)]
struct Base {
    space: Space,
    offset: usize,
}

impl Base {
    fn of(space: Space) -> Base {
        Base { space, offset: 0 }
    }

    fn span(self, range: Range<usize>) -> Span {
        Span { space: self.space, offset: self.offset + range.start, len: range.len() }
    }
}

impl From<Span> for Base {
    fn from(span: Span) -> Base {
        Base { space: span.space, offset: span.offset }
    }
}

/// Compiles a checked request into the steps of one rank.
pub(crate) fn compile(
    request: &Request,
    algorithm: Algorithm,
    rank: Rank,
    hosts: &Hosts,
    chunk_bytes: usize,
) -> Builder {
    let ranks = hosts.ranks();
    let input = if request.in_place { Space::Output } else { Space::Input };
    let mut plan = Plan {
        builder: Builder::new(chunk_bytes),
        rank,
        ranks,
        grid: hosts.grid().cloned(),
        element: request.dtype.size(),
        src: Base::of(input),
        dst: Base::of(Space::Output),
    };
    match (request.encoding(algorithm, ranks, chunk_bytes), &request.operation) {
        (Some(encoding), Operation::ReduceScatter { count }) => {
            let block = count * plan.element;
            plan.dst.offset = if request.in_place { rank as usize * block } else { 0 };
            plan.reduce_scatter_encoded(block, encoding);
        }
        (Some(encoding), _) => plan.allreduce_encoded(encoding),
        (None, operation) => plan.operation(operation, algorithm, request.in_place),
    }
    plan.builder
}

impl Plan {
    /// The other ranks, starting with the next one, so that not all ranks send to rank 0 first.
    fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let (rank, ranks) = (self.rank, self.ranks);
        (rank + 1..ranks).chain(0..rank)
    }

    /// The rank at this distance.
    fn at(&self, distance: i64) -> Rank {
        (i64::from(self.rank) + distance).rem_euclid(self.ranks.into()) as Rank
    }

    fn operation(&mut self, operation: &Operation, algorithm: Algorithm, in_place: bool) {
        let element = self.element;
        let bytes = |count: usize| count * element;
        let own = |count: usize| self.rank as usize * bytes(count);
        match *operation {
            Operation::Allreduce { count } => self.allreduce(algorithm, bytes(count)),
            Operation::ReduceScatter { count } => {
                self.dst.offset = if in_place { own(count) } else { 0 };
                self.reduce_scatter(algorithm, bytes(count));
            }
            Operation::Allgather { count } => {
                self.src.offset = if in_place { own(count) } else { 0 };
                self.allgather(algorithm, bytes(count));
            }
            Operation::AllToAll { count } => {
                let counts = vec![bytes(count); self.ranks as usize];
                self.keep_input(in_place, counts.iter().sum());
                match algorithm {
                    Algorithm::Bruck => self.all_to_all_bruck(bytes(count)),
                    _ => self.all_to_all_direct(&counts, &counts),
                }
            }
            Operation::AllToAllV { ref send, ref recv } => {
                let [send, recv] = [send, recv].map(|n| n.iter().map(|n| bytes(*n)).collect());
                let (send, recv): (Vec<_>, Vec<_>) = (send, recv);
                self.keep_input(in_place, send.iter().sum());
                self.all_to_all_direct(&send, &recv);
            }
            Operation::Broadcast { count, root } => self.broadcast(algorithm, bytes(count), root),
            Operation::Reduce { count, root } => self.reduce(algorithm, bytes(count), root),
            Operation::Gather { count, root } => {
                let rooted = in_place && self.rank == root;
                self.src.offset = if rooted { own(count) } else { 0 };
                self.gather_direct(bytes(count), root);
            }
            Operation::Scatter { count, root } => {
                let rooted = in_place && self.rank == root;
                self.dst.offset = if rooted { own(count) } else { 0 };
                self.scatter_direct(bytes(count), root);
            }
            Operation::Barrier => self.barrier(),
            Operation::Send { count, to } => {
                let src = self.src.span(0..bytes(count));
                self.builder.send_all(to, src);
            }
            Operation::Recv { count, from } => {
                let dst = self.dst.span(0..bytes(count));
                self.builder.receive_all(from, dst);
            }
        }
    }

    fn allreduce(&mut self, algorithm: Algorithm, bytes: usize) {
        match (algorithm, self.grid.take()) {
            _ if self.ranks == 1 => {
                let (src, dst) = (self.src.span(0..bytes), self.dst.span(0..bytes));
                self.builder.copy_all(src, dst, true);
            }
            (Algorithm::Exchange, _) => self.allreduce_exchange(bytes),
            (Algorithm::Ring, _) => self.allreduce_ring(bytes),
            (Algorithm::Halving, _) => self.allreduce_halving(bytes),
            (Algorithm::Tree, _) => self.allreduce_tree(bytes),
            (Algorithm::TwoLevel, Some(grid)) => self.allreduce_two_level(&grid, bytes),
            _ => self.allreduce_direct(bytes),
        }
    }

    fn reduce_scatter(&mut self, algorithm: Algorithm, block: usize) {
        match algorithm {
            Algorithm::Ring => self.reduce_scatter_ring(block),
            _ => self.reduce_scatter_direct(block),
        }
    }

    fn allgather(&mut self, algorithm: Algorithm, block: usize) {
        match algorithm {
            Algorithm::Ring => self.allgather_ring(block),
            Algorithm::Bruck => self.allgather_bruck(block),
            _ => self.allgather_direct(block),
        }
    }

    fn broadcast(&mut self, algorithm: Algorithm, bytes: usize, root: Rank) {
        match algorithm {
            Algorithm::Ring => self.broadcast_ring(bytes, root),
            Algorithm::Tree => self.broadcast_tree(bytes, root),
            Algorithm::Multicast => self.broadcast_multicast(bytes, root),
            _ => self.broadcast_direct(bytes, root),
        }
    }

    fn reduce(&mut self, algorithm: Algorithm, bytes: usize, root: Rank) {
        match algorithm {
            Algorithm::Tree => self.reduce_tree(bytes, root),
            _ => self.reduce_direct(bytes, root),
        }
    }

    /// Copies the input to scratch memory if the output overwrites it.
    fn keep_input(&mut self, in_place: bool, bytes: usize) {
        if in_place {
            let src = self.src.span(0..bytes);
            let kept = self.builder.scratch(bytes);
            self.builder.copy_all(src, kept, false);
            self.src = kept.into();
        }
    }
}
