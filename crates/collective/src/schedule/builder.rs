//! Builds a schedule from steps, listed in an order that would be correct if they ran one by one.

use bowline_codes::reduce::{DataType, ReduceOp};

use super::hazards::Hazards;
use super::{Action, Part, Schedule, Space, Span, Step, Term, Transform};
use crate::Rank;
use crate::encoding::Encoding;
use crate::hosts::Grid;

/// Scratch buffers start at a cache line.
const SCRATCH_ALIGN: usize = 64;

/// Collects the steps of a schedule and derives which step waits for which.
#[derive(Debug)]
pub struct Builder {
    steps: Vec<Step>,
    terms: Vec<Term>,
    /// Pairs of a step and a step that waits for it.
    edges: Vec<(u32, u32)>,
    hazards: Hazards,
    scratch_bytes: usize,
    chunk_bytes: usize,
    part: Part,
}

impl Builder {
    /// A builder whose messages have at most `chunk_bytes` bytes.
    pub fn new(chunk_bytes: usize) -> Builder {
        assert!(chunk_bytes > 0, "a message has room for something");
        Builder {
            steps: Vec::new(),
            terms: Vec::new(),
            edges: Vec::new(),
            hazards: Hazards::default(),
            scratch_bytes: 0,
            chunk_bytes,
            part: Part::default(),
        }
    }

    /// Sets the part of an operation with bounds that the following steps belong to.
    pub fn set_part(&mut self, part: Part) {
        self.part = part;
    }

    /// Reserves scratch memory for the duration of the operation. Its content is unspecified.
    pub fn scratch(&mut self, len: usize) -> Span {
        let offset = self.scratch_bytes;
        self.scratch_bytes = (offset + len).next_multiple_of(SCRATCH_ALIGN);
        Span { space: Space::Scratch, offset, len }
    }

    /// Cuts a span into chunks that each fit into a message, from its start. Both ends of a
    /// transfer cut it the same way. An empty span has no chunks.
    pub fn chunks(&self, span: Span) -> impl Iterator<Item = Span> + use<> {
        let chunk = self.chunk_bytes;
        (0..span.len.div_ceil(chunk)).map(move |i| {
            let len = chunk.min(span.len - i * chunk);
            Span { offset: span.offset + i * chunk, len, ..span }
        })
    }

    /// Sends one message.
    pub fn send(&mut self, to: Rank, src: Span) {
        debug_assert!(src.len <= self.chunk_bytes, "{src:?} is longer than a message");
        self.add(Action::Send { to, src }, 0, &[src], None);
    }

    /// Sends a span of any length, chunk by chunk.
    pub fn send_all(&mut self, to: Rank, src: Span) {
        self.chunks(src).for_each(|chunk| self.send(to, chunk));
    }

    /// Receives a span of any length, chunk by chunk.
    pub fn receive_all(&mut self, from: Rank, dst: Span) {
        self.chunks(dst).for_each(|chunk| self.fold(chunk, &[Term::Message(from)], false));
    }

    /// Copies a span of any length, chunk by chunk. Does nothing in place.
    pub fn copy_all(&mut self, src: Span, dst: Span, finish: bool) {
        debug_assert_eq!(src.len, dst.len);
        for (src, dst) in self.chunks(src).zip(self.chunks(dst)) {
            self.fold(dst, &[Term::Memory(src)], finish);
        }
    }

    /// Combines the terms of one chunk.
    pub fn fold(&mut self, dst: Span, terms: &[Term], finish: bool) {
        debug_assert!(dst.len <= self.chunk_bytes, "{dst:?} is longer than a message");
        if terms == [Term::Memory(dst)] && !finish {
            return;
        }
        let first = self.terms.len() as u32;
        self.terms.extend_from_slice(terms);
        let mut reads = Vec::new();
        let mut messages = 0;
        for term in terms {
            match term {
                Term::Memory(span) => reads.push(*span),
                Term::Message(_) => messages += 1,
            }
        }
        let action = Action::Fold { dst, terms: first..self.terms.len() as u32, finish };
        self.add(action, messages, &reads, Some(dst));
    }

    /// Encodes or decodes a part of a tensor.
    pub fn transform(&mut self, dst: Span, src: Span, how: Transform) {
        self.add(Action::Transform { dst, src, how }, 0, &[src], Some(dst));
    }

    fn add(&mut self, action: Action, messages: u32, reads: &[Span], write: Option<Span>) {
        let step = self.steps.len() as u32;
        let mut waits_for = Vec::new();
        for span in reads {
            self.hazards.read(step, *span, &mut waits_for);
        }
        if let Some(span) = write {
            self.hazards.write(step, span, &mut waits_for);
        }
        waits_for.sort_unstable();
        waits_for.dedup();
        // A step may read what it writes.
        waits_for.retain(|other| *other != step);
        let waits = messages + waits_for.len() as u32;
        self.edges.extend(waits_for.into_iter().map(|other| (other, step)));
        self.steps.push(Step { action, part: self.part, waits, dependents: 0..0 });
    }

    /// Finishes the schedule.
    pub fn build(mut self, of: ScheduleOf) -> Schedule {
        self.edges.sort_unstable();
        let mut at = 0;
        for (index, step) in self.steps.iter_mut().enumerate() {
            let of_it = self.edges[at..].iter().take_while(|(from, _)| *from == index as u32);
            let count = of_it.count();
            step.dependents = at as u32..(at + count) as u32;
            at += count;
        }
        Schedule {
            steps: self.steps,
            terms: self.terms,
            edges: self.edges.into_iter().map(|(_, to)| to).collect(),
            scratch_bytes: self.scratch_bytes,
            dtype: of.dtype,
            op: of.op,
            ranks: of.ranks,
            pairwise: of.pairwise,
            fingerprint: of.fingerprint,
            encoding: of.encoding,
            encoded: None,
            grid: of.grid,
        }
    }
}

/// What a schedule is for.
#[derive(Clone, Debug)]
pub struct ScheduleOf {
    /// The type of the elements.
    pub dtype: DataType,
    /// How folds combine elements.
    pub op: ReduceOp,
    /// How many ranks contribute.
    pub ranks: u32,
    /// The operation is a send or a receive between two ranks.
    pub pairwise: bool,
    /// See [`Schedule::fingerprint`].
    pub fingerprint: u64,
    /// See [`Schedule::encoding`].
    pub encoding: Option<Encoding>,
    /// The hosts, if they reduce before they exchange data.
    pub(crate) grid: Option<Grid>,
}
