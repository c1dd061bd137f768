//! What one rank does for an operation: steps, and what each step waits for.

mod builder;
mod hazards;

use std::ops::Range;
use std::sync::Arc;

use bowline_codes::reduce::{DataType, ReduceOp};

use crate::Rank;
use crate::encoding::Encoding;
use crate::hosts::Grid;
pub use builder::{Builder, ScheduleOf};

/// A memory area that an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// The caller's input. Never written.
    Input,
    /// The caller's output. In place it is also the input.
    Output,
    /// Memory that lives as long as the operation.
    Scratch,
}

/// A range of bytes in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The space.
    pub space: Space,
    /// Its first byte.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// An operand of a fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Memory of this rank.
    Memory(Span),
    /// The next message from a rank, or the next one that it [multicasts](crate::cast_of).
    Message(Rank),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a message.
    Send {
        /// The receiver: a rank, or [all others](crate::cast_of).
        to: Rank,
        /// Its bytes.
        src: Span,
    },
    /// Combines terms from left to right: `dst = t0 op t1 op …`. A single term is a copy.
    Fold {
        /// Where the result goes.
        dst: Span,
        /// The terms, as a range of [`Schedule::terms`].
        terms: Range<u32>,
        /// The fold includes all contributions: an average is divided now.
        finish: bool,
    },
    /// Encodes or decodes a part of a tensor.
    Transform {
        /// Where the result goes.
        dst: Span,
        /// What is transformed.
        src: Span,
        /// The transform.
        how: Transform,
    },
}

/// How a part of a tensor is transformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transform {
    /// The encoding of the whole tensor.
    pub encoding: Encoding,
    /// Which part.
    pub group: usize,
    /// Decode instead of encode.
    pub is_back: bool,
}

/// The part of an operation with bounds that a step belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The phase, counted from 0. Phases follow one another.
    pub phase: u8,
    /// The bytes become the same result on several ranks.
    pub is_replica: bool,
    /// The bytes are never lost, whatever the bounds allow.
    pub is_whole: bool,
}

#[derive(Clone, Debug)]
struct Step {
    action: Action,
    part: Part,
    /// Number of steps that must complete before it, plus the messages that it takes.
    waits: u32,
    /// Steps that wait for it, as a range of `edges`.
    dependents: Range<u32>,
}

/// What one rank does for one operation.
#[derive(Clone, Debug)]
pub struct Schedule {
    steps: Vec<Step>,
    terms: Vec<Term>,
    edges: Vec<u32>,
    scratch_bytes: usize,
    dtype: DataType,
    op: ReduceOp,
    ranks: u32,
    pairwise: bool,
    fingerprint: u64,
    encoding: Option<Encoding>,
    encoded: Option<Arc<Schedule>>,
    grid: Option<Grid>,
}

impl Schedule {
    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What a step does.
    pub fn action(&self, step: u32) -> &Action {
        &self.steps[step as usize].action
    }

    /// The part of an operation with bounds that a step belongs to.
    pub fn part(&self, step: u32) -> Part {
        self.steps[step as usize].part
    }

    /// The number of phases.
    pub fn phases(&self) -> u8 {
        self.steps.iter().map(|step| step.part.phase).max().unwrap_or(0) + 1
    }

    /// The messages that it receives: from whom, their lengths, and the parts that they belong to.
    pub fn messages(&self) -> impl Iterator<Item = (Rank, usize, Part)> + '_ {
        self.steps.iter().flat_map(|step| {
            let (len, terms) = match &step.action {
                Action::Fold { dst, terms, .. } => (dst.len, self.terms(terms)),
                Action::Send { .. } | Action::Transform { .. } => (0, &[][..]),
            };
            terms.iter().filter_map(move |term| match term {
                Term::Message(from) => Some((*from, len, step.part)),
                Term::Memory(_) => None,
            })
        })
    }

    /// The terms of a fold.
    pub fn terms(&self, range: &Range<u32>) -> &[Term] {
        &self.terms[range.start as usize..range.end as usize]
    }

    /// The number of terms of all folds together.
    pub fn term_count(&self) -> usize {
        self.terms.len()
    }

    /// How many steps and messages a step waits for.
    pub fn waits(&self, step: u32) -> u32 {
        self.steps[step as usize].waits
    }

    /// The steps that wait for a step.
    pub fn dependents(&self, step: u32) -> &[u32] {
        let range = &self.steps[step as usize].dependents;
        &self.edges[range.start as usize..range.end as usize]
    }

    /// The scratch memory that it needs, in bytes, whichever of its two forms runs.
    pub fn scratch_bytes(&self) -> usize {
        let encoded = self.encoded.as_ref().map_or(0, |encoded| encoded.scratch_bytes);
        self.scratch_bytes.max(encoded)
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.dtype
    }

    /// How folds combine elements.
    pub fn reduce_op(&self) -> ReduceOp {
        self.op
    }

    /// How many ranks contribute.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Whether it is a send or a receive between two ranks. Other ranks take no part, and several
    /// such operations may run at the same time.
    pub fn is_pairwise(&self) -> bool {
        self.pairwise
    }

    /// Whether any of its messages is multicast to all ranks.
    pub fn has_casts(&self) -> bool {
        let is_cast = |rank: Rank| rank >= self.ranks;
        let is_sent = self
            .steps
            .iter()
            .any(|step| matches!(step.action, Action::Send { to, .. } if is_cast(to)));
        let is_cast = |term: &Term| matches!(term, Term::Message(from) if is_cast(*from));
        is_sent || self.terms.iter().any(is_cast)
    }

    /// How data that may be lost is encoded, if at all.
    pub fn encoding(&self) -> Option<Encoding> {
        self.encoding
    }

    /// The same operation with encoded data, for when enough is lost; see
    /// [`Recovery::Auto`](crate::Recovery::Auto).
    pub fn encoded(&self) -> Option<&Arc<Schedule>> {
        self.encoded.as_ref()
    }

    /// Adds what [`encoded`](Schedule::encoded) returns.
    pub(crate) fn with_encoded(self, encoded: Schedule) -> Schedule {
        Schedule { encoded: Some(Arc::new(encoded)), ..self }
    }

    /// How many of the connections that it uses share the path from one host to another.
    pub fn sharers(&self) -> u32 {
        self.grid.as_ref().map_or(1, |grid| grid.speakers() as u32)
    }

    /// The ranks whose contributions are in a message of this rank that may be lost.
    pub(crate) fn contributors<'a>(&'a self, from: &'a Rank) -> &'a [Rank] {
        self.grid.as_ref().map_or(std::slice::from_ref(from), |grid| grid.beside(*from))
    }

    /// A hash that is the same on all ranks that run the same operation, and most likely different
    /// for any other operation.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
