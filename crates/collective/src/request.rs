//! What a caller asks for.

use bowline_codes::reduce::{DataType, ReduceOp};

use crate::algorithm::{self, Algorithm};
use crate::bounds::{Bounds, Deadline, Recovery};
use crate::encoding::Encoding;
use crate::hosts::Hosts;
use crate::schedule::{Schedule, ScheduleOf};
use crate::{MAX_RANKS, Rank};

/// A collective operation. Counts are in elements. The blocks of the ranks lie one after another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// All ranks get the reduction of all inputs.
    Allreduce {
        /// Elements of each rank.
        count: usize,
    },
    /// Rank r gets the r-th block of the reduction.
    ReduceScatter {
        /// Elements of a block.
        count: usize,
    },
    /// All ranks get the blocks of all ranks.
    Allgather {
        /// Elements of a block.
        count: usize,
    },
    /// Rank r gets the r-th block of all ranks.
    AllToAll {
        /// Elements of a block.
        count: usize,
    },
    /// Like [`Operation::AllToAll`], but blocks differ in length.
    AllToAllV {
        /// Number of elements in the input for each rank.
        send: Vec<usize>,
        /// Number of elements in the output from each rank.
        recv: Vec<usize>,
    },
    /// All ranks get what the root has.
    Broadcast {
        /// Number of elements.
        count: usize,
        /// The rank that has them.
        root: Rank,
    },
    /// The root gets the reduction of all inputs.
    Reduce {
        /// Elements of each rank.
        count: usize,
        /// The rank that gets the result.
        root: Rank,
    },
    /// The root gets the blocks of all ranks.
    Gather {
        /// Elements of a block.
        count: usize,
        /// The rank that gets them.
        root: Rank,
    },
    /// Rank r gets the r-th block of the root.
    Scatter {
        /// Elements of a block.
        count: usize,
        /// The rank that has them.
        root: Rank,
    },
    /// No rank continues until all ranks have arrived.
    Barrier,
    /// Sends elements to one rank, which calls `Recv`.
    Send {
        /// Number of elements.
        count: usize,
        /// The receiver.
        to: Rank,
    },
    /// Receives elements from one rank, which calls `Send`.
    Recv {
        /// Number of elements.
        count: usize,
        /// The sender.
        from: Rank,
    },
}

impl Operation {
    /// The name, as in commands and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Operation::Allreduce { .. } => "allreduce",
            Operation::ReduceScatter { .. } => "reduce-scatter",
            Operation::Allgather { .. } => "allgather",
            Operation::AllToAll { .. } | Operation::AllToAllV { .. } => "all-to-all",
            Operation::Broadcast { .. } => "broadcast",
            Operation::Reduce { .. } => "reduce",
            Operation::Gather { .. } => "gather",
            Operation::Scatter { .. } => "scatter",
            Operation::Barrier => "barrier",
            Operation::Send { .. } => "send",
            Operation::Recv { .. } => "recv",
        }
    }

    /// The other rank of a rooted or pairwise operation.
    fn names_rank(&self) -> Option<Rank> {
        match *self {
            Operation::Broadcast { root, .. }
            | Operation::Reduce { root, .. }
            | Operation::Gather { root, .. }
            | Operation::Scatter { root, .. } => Some(root),
            Operation::Send { to: rank, .. } | Operation::Recv { from: rank, .. } => Some(rank),
            _ => None,
        }
    }

    /// The numbers of elements in a rank's input and output, out of place.
    fn counts(&self, rank: Rank, ranks: u32) -> Option<(usize, usize)> {
        let all = |count: usize| count.checked_mul(ranks as usize);
        let sum = |counts: &[usize]| counts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        let at = |root: Rank, count: Option<usize>| if rank == root { count } else { Some(0) };
        Some(match *self {
            Operation::Allreduce { count } => (count, count),
            Operation::ReduceScatter { count } => (all(count)?, count),
            Operation::Allgather { count } => (count, all(count)?),
            Operation::AllToAll { count } => (all(count)?, all(count)?),
            Operation::AllToAllV { ref send, ref recv } => (sum(send)?, sum(recv)?),
            Operation::Broadcast { count, root } => (at(root, Some(count))?, count),
            Operation::Reduce { count, root } => (count, at(root, Some(count))?),
            Operation::Gather { count, root } => (count, at(root, all(count))?),
            Operation::Scatter { count, root } => (at(root, all(count))?, count),
            Operation::Barrier => (0, 0),
            Operation::Send { count, .. } => (count, 0),
            Operation::Recv { count, .. } => (0, count),
        })
    }
}

/// An operation with everything that ranks must agree on, and where this rank wants its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// The type of the elements.
    pub dtype: DataType,
    /// How elements are combined, if the operation reduces.
    pub op: ReduceOp,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The operation works in place: input and output share one buffer, as long as the longer of
    /// the two. If this rank has a block of its own, it lies in its place among the others. Ranks
    /// may differ in this.
    pub in_place: bool,
    /// Data to be reduced is sent encoded, so that a lost packet slightly degrades all elements:
    /// see [`Encoding`]. Only `direct` supports this, for sums and averages of long tensors.
    pub recovery: Recovery,
}

/// Why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// A rank outside the group.
    #[error("rank {rank} is not in the group: its {ranks} ranks are 0 to {}", ranks - 1)]
    Rank {
        /// The invalid rank.
        rank: Rank,
        /// Ranks of the group.
        ranks: u32,
    },
    /// A rank that sends to or receives from itself.
    #[error("a rank cannot send to or receive from itself (rank {0}): copy the bytes")]
    Itself(Rank),
    /// The number of counts is not the number of ranks.
    #[error("all-to-all has {counts} counts for {ranks} ranks: give one for each rank")]
    Counts {
        /// The number of counts given.
        counts: usize,
        /// Ranks of the group.
        ranks: u32,
    },
    /// The count that a rank sends to itself differs from the count that it receives from itself.
    #[error(
        "all-to-all: this rank sends {send} elements to itself but receives {recv}: make the two \
         counts equal"
    )]
    OwnCounts {
        /// Elements to itself.
        send: usize,
        /// Elements from itself.
        recv: usize,
    },
    /// The buffers would be larger than can be addressed.
    #[error("the buffers of this operation are larger than 2^47 bytes: use a smaller count")]
    TooLong,
    /// A group without ranks, or with too many.
    #[error("invalid group size {0}: use 1 to {MAX_RANKS} ranks")]
    Ranks(u32),
    /// Bounds for an operation or algorithm that does not support them.
    #[error(
        "algorithm `{algorithm}` does not support a deadline or loss for {operation}: \
         use direct or exchange, or no bounds"
    )]
    Unbounded {
        /// The operation.
        operation: &'static str,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// The algorithm `two-level`, but hosts do not have equally many ranks.
    #[error(
        "algorithm `two-level` needs at least two hosts with the same number of ranks, at least \
         two each: use auto"
    )]
    Hosts,
    /// An algorithm that the operation does not support.
    #[error("{operation} does not support algorithm `{algorithm}`: use one of {known}")]
    Algorithm {
        /// The operation.
        operation: &'static str,
        /// The requested algorithm.
        algorithm: Algorithm,
        /// The supported ones.
        known: String,
    },
}

const MAX_BYTES: usize = 1 << 47;

impl Request {
    /// A request on `f32` elements, with sum as the reduction, out of place, with the algorithm
    /// chosen automatically.
    pub fn new(operation: Operation) -> Request {
        Request {
            operation,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            algorithm: Algorithm::Auto,
            in_place: false,
            recovery: Recovery::Never,
        }
    }

    /// The lengths of a rank's input and output in bytes. An in-place operation has no input.
    pub fn bytes(&self, rank: Rank, ranks: u32) -> Result<(usize, usize), InvalidRequest> {
        let (input, output) = self.operation.counts(rank, ranks).ok_or(InvalidRequest::TooLong)?;
        let bytes = |count: usize| count.checked_mul(self.dtype.size()).filter(|n| *n <= MAX_BYTES);
        let input = bytes(input).ok_or(InvalidRequest::TooLong)?;
        let output = bytes(output).ok_or(InvalidRequest::TooLong)?;
        Ok(if self.in_place { (0, input.max(output)) } else { (input, output) })
    }

    /// Compiles the schedule of a rank in a group. Messages have at most `chunk_bytes`, a multiple
    /// of 8. With [`Recovery::Auto`], the schedule includes an encoded one if there is one.
    pub fn compile(
        &self,
        rank: Rank,
        hosts: &Hosts,
        chunk_bytes: usize,
    ) -> Result<Schedule, InvalidRequest> {
        let ranks = hosts.ranks();
        self.check(rank, ranks)?;
        let algorithm = self.algorithm_for(hosts)?;
        let schedule = self.compile_as(algorithm, rank, hosts, chunk_bytes);
        if self.recovery != Recovery::Auto {
            return Ok(schedule);
        }
        let encoded = Request { recovery: Recovery::Always, ..self.clone() };
        Ok(match encoded.encoding(algorithm, ranks, chunk_bytes) {
            None => schedule,
            Some(_) => {
                let encoded = encoded.compile_as(algorithm, rank, hosts, chunk_bytes);
                schedule.with_encoded(encoded)
            }
        })
    }

    fn compile_as(
        &self,
        algorithm: Algorithm,
        rank: Rank,
        hosts: &Hosts,
        chunk_bytes: usize,
    ) -> Schedule {
        let ranks = hosts.ranks();
        let builder = algorithm::compile(self, algorithm, rank, hosts, chunk_bytes);
        let grid = hosts.grid().filter(|_| algorithm == Algorithm::TwoLevel);
        builder.build(ScheduleOf {
            dtype: self.dtype,
            op: self.op,
            ranks,
            pairwise: matches!(self.operation, Operation::Send { .. } | Operation::Recv { .. }),
            fingerprint: self.fingerprint(algorithm, hosts),
            encoding: self.encoding(algorithm, ranks, chunk_bytes),
            grid: grid.cloned(),
        })
    }

    /// The algorithm that the ranks of a group use.
    pub fn algorithm_for(&self, hosts: &Hosts) -> Result<Algorithm, InvalidRequest> {
        let known = algorithm::known(&self.operation);
        match self.algorithm {
            // Choose as if all ranks were on one host: only `direct` encodes.
            Algorithm::Auto if self.recovery == Recovery::Always => {
                let alike = Hosts::one(hosts.ranks());
                Ok(algorithm::choose(&self.operation, self.dtype.size(), &alike))
            }
            Algorithm::Auto => Ok(algorithm::choose(&self.operation, self.dtype.size(), hosts)),
            Algorithm::TwoLevel if known.contains(&Algorithm::TwoLevel) => {
                hosts.grid().map(|_| Algorithm::TwoLevel).ok_or(InvalidRequest::Hosts)
            }
            named if known.contains(&named) => Ok(named),
            named => Err(InvalidRequest::Algorithm {
                operation: self.operation.name(),
                algorithm: named,
                known: known.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The same request with an algorithm that supports these bounds. Every message goes straight
    /// to the rank that needs it, or hosts reduce first. Where bytes may be lost, no message is
    /// itself a replica of the result.
    pub fn with_bounds(&self, bounds: &Bounds, hosts: &Hosts) -> Result<Request, InvalidRequest> {
        let is_exact = bounds.max_loss_ppm == 0;
        let recovery = match (self.recovery, bounds.recovery) {
            // Nothing can be missing.
            (Recovery::Never, Recovery::Auto) if is_exact || bounds.deadline == Deadline::Never => {
                Recovery::Never
            }
            (Recovery::Never, recovery) | (recovery, _) => recovery,
        };
        // Only `direct` encodes.
        let may_be_sums = recovery != Recovery::Always;
        let algorithm = match (self.algorithm, self.algorithm_for(hosts)?) {
            (Algorithm::Auto, Algorithm::Exchange) if is_exact => Algorithm::Exchange,
            (Algorithm::Auto, Algorithm::TwoLevel) if may_be_sums => Algorithm::TwoLevel,
            (Algorithm::Auto, _)
                if algorithm::known(&self.operation).contains(&Algorithm::Direct) =>
            {
                Algorithm::Direct
            }
            (_, chosen) => chosen,
        };
        let operation = self.operation.name();
        let pairwise = matches!(self.operation, Operation::Send { .. } | Operation::Recv { .. });
        match algorithm {
            Algorithm::TwoLevel if may_be_sums => {
                Ok(Request { algorithm, recovery: Recovery::Never, ..self.clone() })
            }
            Algorithm::Direct | Algorithm::Exchange if !pairwise => {
                Ok(Request { algorithm, recovery, ..self.clone() })
            }
            _ => Err(InvalidRequest::Unbounded { operation, algorithm }),
        }
    }

    /// How data that may be lost is encoded, if at all.
    pub(crate) fn encoding(
        &self,
        algorithm: Algorithm,
        ranks: u32,
        chunk_bytes: usize,
    ) -> Option<Encoding> {
        if self.recovery != Recovery::Always || algorithm != Algorithm::Direct || ranks < 2 {
            return None;
        }
        let elements = match self.operation {
            Operation::Allreduce { count } | Operation::ReduceScatter { count } => count,
            _ => return None,
        };
        Encoding::of(self.dtype, self.op, elements, chunk_bytes)
    }

    fn check(&self, rank: Rank, ranks: u32) -> Result<(), InvalidRequest> {
        if !(1..=MAX_RANKS).contains(&ranks) {
            return Err(InvalidRequest::Ranks(ranks));
        }
        for rank in self.operation.names_rank().into_iter().chain([rank]) {
            if rank >= ranks {
                return Err(InvalidRequest::Rank { rank, ranks });
            }
        }
        match &self.operation {
            Operation::Send { to: other, .. } | Operation::Recv { from: other, .. }
                if *other == rank =>
            {
                return Err(InvalidRequest::Itself(rank));
            }
            Operation::AllToAllV { send, recv } => {
                for counts in [send, recv] {
                    if counts.len() != ranks as usize {
                        return Err(InvalidRequest::Counts { counts: counts.len(), ranks });
                    }
                }
                let (send, recv) = (send[rank as usize], recv[rank as usize]);
                if send != recv {
                    return Err(InvalidRequest::OwnCounts { send, recv });
                }
            }
            _ => {}
        }
        self.bytes(rank, ranks).map(drop)
    }

    /// A hash that is equal on ranks with the same request. It covers only what all ranks know.
    fn fingerprint(&self, algorithm: Algorithm, hosts: &Hosts) -> u64 {
        let (kind, count, root) = match self.operation {
            Operation::Allreduce { count } => (0, count, 0),
            Operation::ReduceScatter { count } => (1, count, 0),
            Operation::Allgather { count } => (2, count, 0),
            Operation::AllToAll { count } => (3, count, 0),
            // The counts differ between ranks.
            Operation::AllToAllV { .. } => (4, 0, 0),
            Operation::Broadcast { count, root } => (5, count, root),
            Operation::Reduce { count, root } => (6, count, root),
            Operation::Gather { count, root } => (7, count, root),
            Operation::Scatter { count, root } => (8, count, root),
            Operation::Barrier => (9, 0, 0),
            Operation::Send { count, .. } | Operation::Recv { count, .. } => (10, count, 0),
        };
        let how = [self.dtype as u64, self.op as u64, algorithm as u64, self.recovery as u64];
        // Ranks that disagree about hosts would send different bytes.
        let places = hosts.grid().filter(|_| algorithm == Algorithm::TwoLevel);
        let places = places.into_iter().flat_map(|grid| {
            let members = grid.members().iter().map(|rank| u64::from(*rank));
            [grid.each() as u64, grid.speakers() as u64].into_iter().chain(members)
        });
        let parts = [kind, count as u64, root.into()].into_iter().chain(how).chain(places);
        // FNV-1a over words, with a final mix.
        let mixed = parts.fold(0xcbf2_9ce4_8422_2325_u64, |hash, part| {
            (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        mixed ^ mixed >> 32
    }
}
