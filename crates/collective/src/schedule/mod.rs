//! What one rank does for an operation: steps, and what each waits for.

mod builder;
mod hazards;

use std::ops::Range;

use bowline_codes::reduce::{DataType, ReduceOp};

use crate::Rank;
use crate::encoding::Encoding;
pub use builder::{Builder, ScheduleOf};

/// A piece of memory that an operation works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    /// What the caller gives. Never written.
    Input,
    /// Where the caller wants the result. In place it is the input as well.
    Output,
    /// Memory for the time of the operation.
    Scratch,
}

/// A range of bytes in a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where.
    pub space: Space,
    /// Its first byte.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

/// What a fold combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// Memory of this rank.
    Memory(Span),
    /// The next message of a rank, or the next of those that it [sends to all](crate::cast_of).
    Message(Rank),
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sends a message.
    Send {
        /// To whom: a rank, or [all others](crate::cast_of).
        to: Rank,
        /// Its bytes.
        src: Span,
    },
    /// Combines terms from left to right: `dst = t0 op t1 op …`. One term alone is a copy.
    Fold {
        /// Where the result goes.
        dst: Span,
        /// Which terms, in [`Schedule::terms`].
        terms: Range<u32>,
        /// All contributions are in it: an average is divided now.
        finish: bool,
    },
    /// Encodes a part of a tensor, or decodes it.
    Transform {
        /// Where the result goes.
        dst: Span,
        /// What is transformed.
        src: Span,
        /// How.
        how: Transform,
    },
}

/// How a part of a tensor is transformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transform {
    /// Of the whole tensor.
    pub encoding: Encoding,
    /// Which part.
    pub group: usize,
    /// It is decoded.
    pub is_back: bool,
}

/// Where a step stands in an operation with bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Which of the rounds that follow each other it belongs to.
    pub phase: u8,
    /// Its bytes become the same result on several ranks.
    pub is_replica: bool,
}

#[derive(Clone, Debug)]
struct Step {
    action: Action,
    part: Part,
    /// Steps that must be over before it, and messages that it takes.
    waits: u32,
    /// Steps that wait for it, in `edges`.
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
    sharers: u32,
}

impl Schedule {
    /// How many steps it has.
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

    /// Where a step stands in an operation with bounds.
    pub fn part(&self, step: u32) -> Part {
        self.steps[step as usize].part
    }

    /// Rounds that follow each other.
    pub fn phases(&self) -> u8 {
        self.steps.iter().map(|step| step.part.phase).max().unwrap_or(0) + 1
    }

    /// Lengths of the messages that it takes, and the parts that they belong to.
    pub fn messages(&self) -> impl Iterator<Item = (usize, Part)> + '_ {
        self.steps.iter().flat_map(|step| {
            let (len, terms) = match &step.action {
                Action::Fold { dst, terms, .. } => (dst.len, self.terms(terms)),
                Action::Send { .. } | Action::Transform { .. } => (0, &[][..]),
            };
            let messages = terms.iter().filter(|term| matches!(term, Term::Message(_)));
            messages.map(move |_| (len, step.part))
        })
    }

    /// The terms of a fold.
    pub fn terms(&self, range: &Range<u32>) -> &[Term] {
        &self.terms[range.start as usize..range.end as usize]
    }

    /// Terms of all folds together.
    pub fn term_count(&self) -> usize {
        self.terms.len()
    }

    /// Steps and messages that a step waits for.
    pub fn waits(&self, step: u32) -> u32 {
        self.steps[step as usize].waits
    }

    /// Steps that wait for a step.
    pub fn dependents(&self, step: u32) -> &[u32] {
        let range = &self.steps[step as usize].dependents;
        &self.edges[range.start as usize..range.end as usize]
    }

    /// Bytes of scratch memory that it needs.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// What the bytes are.
    pub fn data_type(&self) -> DataType {
        self.dtype
    }

    /// How folds combine.
    pub fn reduce_op(&self) -> ReduceOp {
        self.op
    }

    /// How many ranks contribute.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// It is a send or a receive between two ranks: others take no part, and it may run beside
    /// others of its kind.
    pub fn is_pairwise(&self) -> bool {
        self.pairwise
    }

    /// Whether a message of it goes to all ranks at once, by multicast.
    pub fn has_casts(&self) -> bool {
        let is_cast = |rank: Rank| rank >= self.ranks;
        let is_sent = self
            .steps
            .iter()
            .any(|step| matches!(step.action, Action::Send { to, .. } if is_cast(to)));
        let is_cast = |term: &Term| matches!(term, Term::Message(from) if is_cast(*from));
        is_sent || self.terms.iter().any(is_cast)
    }

    /// How what may be lost is encoded, if it is.
    pub fn encoding(&self) -> Option<Encoding> {
        self.encoding
    }

    /// Connections that share the way from one host to another, of those that it uses.
    pub fn sharers(&self) -> u32 {
        self.sharers
    }

    /// The same on all ranks that call the same operation, and most likely another for another.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
