//! What an operation with bounds may lose, and what it has lost.

use std::collections::BTreeMap;
use std::ops::Range;

use bowline_nic::Time;

use crate::Rank;
use crate::bounds::{Bounds, Report};
use crate::schedule::{Part, Schedule, Span};

/// The bounds of an operation that has started.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) bounds: Bounds,
    /// When each phase stops waiting.
    deadlines: Vec<Time>,
    /// Number of phases that have stopped waiting.
    stopped: usize,
    /// Bytes of messages that may be lost.
    pub(super) at_risk: u64,
    /// Bytes that may be lost, that are lost, and that may yet be lost by decisions already made.
    allowed: u64,
    lost: u64,
    reserved: u64,
    pub(super) report: Report,
    /// Missing ranges, by the index of the message's term.
    holes: BTreeMap<u32, Vec<Range<u32>>>,
}

impl Bound {
    /// `is_near` tells from which ranks messages do not come over XP, and are never lost.
    pub(super) fn new(
        bounds: Bounds,
        schedule: &Schedule,
        is_near: impl Fn(Rank) -> bool,
        now: Time,
        limit: Option<u64>,
    ) -> Bound {
        let phases = u64::from(schedule.phases());
        let deadline = |phase: u64| match limit {
            Some(ns) => {
                now.plus_nanos((u128::from(ns) * u128::from(phase) / u128::from(phases)) as u64)
            }
            None => Time::NEVER,
        };
        let mut bound = Bound {
            bounds,
            deadlines: (1..=phases).map(deadline).collect(),
            stopped: 0,
            at_risk: 0,
            allowed: 0,
            lost: 0,
            reserved: 0,
            report: Report { deadline_ns: limit, ..Report::default() },
            holes: BTreeMap::new(),
        };
        for (from, len, part) in schedule.messages() {
            bound.report.expected_bytes += len as u64;
            bound.at_risk += if !is_near(from) && bound.may_lose(part) { len as u64 } else { 0 };
        }
        bound.allowed = bounds.allowed(bound.at_risk);
        bound
    }

    /// Whether messages of this part may be lost at all.
    pub(super) fn may_lose(&self, part: Part) -> bool {
        let is_kept = part.is_whole || self.bounds.equal_replicas && part.is_replica;
        self.bounds.max_loss_ppm > 0 && !is_kept
    }

    /// When a part stops waiting.
    pub(super) fn deadline(&self, part: Part) -> Time {
        let deadline = self.deadlines.get(usize::from(part.phase));
        deadline.copied().filter(|_| self.may_lose(part)).unwrap_or(Time::NEVER)
    }

    /// The next time at which a phase stops waiting.
    pub(super) fn next_deadline(&self) -> Time {
        let next = self.deadlines.get(self.stopped).copied();
        next.filter(|_| self.allowed > 0).unwrap_or(Time::NEVER)
    }

    /// Whether a phase stops waiting now that had not before.
    pub(super) fn stop(&mut self, now: Time) -> bool {
        let before = self.stopped;
        while self.next_deadline() <= now {
            self.stopped += 1;
        }
        self.stopped > before
    }

    /// Whether this many more bytes may be lost.
    pub(super) fn can_lose(&self, bytes: u64) -> bool {
        bytes <= self.allowed.saturating_sub(self.lost + self.reserved)
    }

    /// Reserves bytes that may be lost.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
    }

    /// Returns a reservation.
    pub(super) fn unreserve(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    /// Records that a term, which has the contributions of these ranks, lacks these ranges of its
    /// `dst`.
    pub(super) fn lose(&mut self, of: &[Rank], dst: Span, term: u32, holes: Vec<Range<u32>>) {
        for hole in &holes {
            let at = dst.offset + hole.start as usize;
            self.report.add(of, at..dst.offset + hole.end as usize);
        }
        self.lost = self.report.missing_bytes;
        self.holes.insert(term, holes);
    }

    /// The missing ranges of a term.
    pub(super) fn holes(&self, term: u32) -> &[Range<u32>] {
        self.holes.get(&term).map_or(&[], Vec::as_slice)
    }
}
