//! Inputs of an engine.

use std::collections::BTreeSet;

use bowline_nic::Time;

use super::message::{self, Kind};
use super::peer::{Arrived, Expected, Posted};
use super::{Cause, Engine, Failure, OpId};
use crate::schedule::{Action, Term};
use crate::{Rank, timeout};

impl Engine {
    /// A message from a peer has arrived, in order. If it has bytes, they are in the peer's next
    /// slot. Multicast messages from a rank arrive from [`cast_of`](crate::cast_of) that rank.
    pub fn message(&mut self, now: Time, from: Rank, imm: u32, len: usize) {
        self.now = now;
        if self.failure.is_some() {
            return;
        }
        let Some((kind, number)) = message::decode(imm) else {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        };
        if let Kind::Abort(cause) = kind {
            let rank = Rank::from(number);
            let failure = match rank < self.config.ranks {
                true => Failure { rank, cause },
                false => Failure { rank: from, cause: Cause::Protocol },
            };
            return self.fail(failure);
        }
        let is_cast = self.caster(from).is_some();
        if self.peer(from).has_left || is_cast && !matches!(kind, Kind::Data(_)) {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        match kind {
            Kind::Data(_) | Kind::Note | Kind::Bye => self.take_credited(from, kind, number, len),
            Kind::Cast => self.take_cast_credit(from, number),
            Kind::Sent => self.take_sent(from, number),
            Kind::Progress => self.take_progress(from, number),
            Kind::Repair(slot) => self.take_repair(from, slot, number),
            Kind::Proposal => {
                let inbox = &mut self.peer(from).express.inbox;
                inbox.proposals += 1;
                let of = inbox.proposals - 1;
                self.adaptive.hear(from, of, timeout::from_bits(number));
            }
            Kind::Loss => self.take_loss(from, number),
            Kind::Nack(_) | Kind::Bulk(_) | Kind::Abort(_) => {
                self.fail(Failure { rank: from, cause: Cause::Protocol });
            }
        }
        if self.failure.is_none() {
            self.look_at(from);
        }
    }

    /// Takes a message that carries a credit.
    fn take_credited(&mut self, from: Rank, kind: Kind, credit: u16, len: usize) {
        let slots = self.config.slots;
        let peer = self.peer(from);
        if !peer.take_credit(credit) {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        match kind {
            Kind::Data(tag) => {
                if peer.slots.len() == usize::from(slots) {
                    return self.fail(Failure { rank: from, cause: Cause::Protocol });
                }
                let slot = peer.next_slot(slots);
                peer.slots.push_back(false);
                peer.arrived.push_back(Arrived { slot, tag, len });
                self.match_messages(from);
            }
            Kind::Bye => {
                peer.has_left = true;
                self.settle_left(from);
            }
            _ => {}
        }
    }

    /// The oldest outstanding post to a peer has completed.
    pub fn sent(&mut self, now: Time, to: Rank) {
        self.now = now;
        let threshold = self.credit_threshold();
        let peer = self.peer(to);
        let posted = peer.acknowledge(now);
        if peer.folded - peer.told >= threshold || peer.express.inbox.is_untold() {
            self.owed.push_back(to);
        }
        if let Some(theirs) = self.untold_casts(to, threshold) {
            self.owed.push_back(theirs);
        }
        self.look_at(to);
        self.end_post(to, posted);
    }

    /// A work request over RC has completed.
    pub(super) fn end_post(&mut self, to: Rank, posted: Option<Posted>) {
        match posted {
            Some(Posted::Message(at)) => self.complete(at),
            Some(Posted::Repair { number, .. }) => self.repair_sent(to, number),
            Some(Posted::Note) | None => {}
        }
    }

    /// Nothing can be sent to a peer any more.
    pub fn broken(&mut self, now: Time, rank: Rank) {
        self.now = now;
        if self.caster(rank).is_some() {
            return self.cast_broken(rank);
        }
        let peer = self.peer(rank);
        peer.is_broken = true;
        if peer.has_left {
            return self.settle_left(rank);
        }
        self.fail(Failure { rank, cause: Cause::Unreachable });
    }

    /// This rank cannot continue.
    pub fn give_up(&mut self, now: Time) {
        self.now = now;
        self.fail(Failure { rank: self.config.rank, cause: Cause::Local });
    }

    /// Tells all others that this rank leaves. Operations that have not completed fail.
    pub fn leave(&mut self, now: Time) {
        self.now = now;
        if self.has_left || self.failure.is_some() {
            self.has_left = true;
            return;
        }
        let failure = Failure { rank: self.config.rank, cause: Cause::Left };
        self.fail_all(failure);
        self.failure = Some(failure);
        self.has_left = true;
        for rank in self.others() {
            if self.peer(rank).express.inbox.is_untold() {
                let note = self.progress_note(rank);
                self.notes.push_back(note);
            }
            if let Some(theirs) = self.untold_casts(rank, 1) {
                let credit = self.peer(theirs).credit();
                self.notes.push_back((theirs, Kind::Note, credit));
            }
            let credit = self.peer(rank).credit();
            self.notes.push_back((rank, Kind::Bye, credit));
            // Nothing may follow.
            self.peer(rank).express.outbox.reports.clear();
        }
    }

    /// Whether all posts have completed, as far as they can.
    pub fn is_quiet(&self) -> bool {
        let is_quiet = |peer: &super::Peer| {
            (peer.posted.is_empty() || peer.is_broken) && peer.express.outbox.is_quiet()
        };
        self.notes.is_empty() && self.peers.iter().flatten().all(|peer| is_quiet(peer))
    }

    /// Handles timers that are due.
    pub fn timeout(&mut self, now: Time) {
        self.now = now;
        let late = self.ops.iter().take(self.started).flatten().any(|op| op.deadline <= now);
        if late {
            return self.fail(Failure { rank: self.latest(), cause: Cause::Late });
        }
        for number in self.first..self.first + self.started as u64 {
            if self.bound_mut(OpId(number)).is_some_and(|bound| bound.stop(now)) {
                self.stop_waiting(OpId(number));
            }
        }
        self.probe(now);
        if self.next_heartbeat > now {
            return;
        }
        self.next_heartbeat = now.plus_nanos(self.config.heartbeat_ns);
        let silent = self.waited_for().flat_map(|peer| self.ranks_behind(peer));
        let silent: BTreeSet<Rank> = silent.collect();
        for rank in silent {
            let peer = self.peer(rank);
            // A message in flight already prompts the peer to answer.
            if peer.posted.is_empty() && !peer.has_left {
                let credit = peer.credit();
                self.notes.push_back((rank, Kind::Note, credit));
            }
        }
    }

    /// When to call [`timeout`](Engine::timeout), unless something else happens earlier.
    pub fn poll_timeout(&self) -> Option<Time> {
        let running = self.ops.iter().take(self.started).flatten();
        let next = |op: &super::Op| {
            let stops = op.bound.as_ref().map_or(Time::NEVER, |bound| bound.next_deadline());
            op.deadline.min(stops)
        };
        let next = running.map(next).min().map(|next| next.min(self.next_heartbeat));
        let next = next.unwrap_or(Time::NEVER).min(self.next_probe);
        (next < Time::NEVER).then_some(next)
    }

    /// The rank that delays the earliest step.
    fn latest(&self) -> Rank {
        let first = |rank: Rank| {
            let peer = self.peers[rank as usize].as_ref();
            let expected = peer.and_then(|peer| {
                peer.expected.front().or_else(|| peer.express.inbox.expected().next())
            });
            expected.map_or((u64::MAX, u32::MAX), |expected| (expected.at.op.0, expected.at.step))
        };
        self.waited_for().min_by_key(|rank| first(*rank)).unwrap_or(self.config.rank)
    }

    /// The ranks from which messages, credits or reports are due.
    fn waited_for(&self) -> impl Iterator<Item = Rank> + '_ {
        let peers = self.peers.iter().enumerate();
        let waits = peers.filter_map(|(rank, peer)| Some((rank as Rank, peer.as_ref()?)));
        // A multicast in flight does not show which rank fails to acknowledge it.
        let is_cast =
            |rank: Rank, peer: &super::Peer| rank == self.own_cast() && !peer.posted.is_empty();
        let waits = waits.filter(move |(rank, peer)| {
            peer.is_waited_for() || is_cast(*rank, peer) || self.holds_up(*rank)
        });
        waits.map(|(rank, _)| rank)
    }

    /// A step waits for the next message from a peer.
    pub(super) fn expect(&mut self, from: Rank, expected: Expected) {
        let has_left = self.who_left(from).is_some();
        let peer = self.peer(from);
        peer.expected.push_back(expected);
        let gone = has_left && peer.arrived.is_empty();
        self.match_messages(from);
        if gone {
            self.fail(Failure { rank: from, cause: Cause::Left });
        }
    }

    /// Assigns messages to the steps that wait for them.
    fn match_messages(&mut self, from: Rank) {
        loop {
            let peer = self.peer(from);
            let (Some(expected), Some(arrived)) = (peer.expected.front(), peer.arrived.front())
            else {
                return;
            };
            let (expected, arrived) = (*expected, *arrived);
            peer.expected.pop_front();
            peer.arrived.pop_front();
            let Some(op) = self.op_mut(expected.at.op) else { continue };
            if (arrived.tag, arrived.len) != (op.tag, expected.len) {
                return self.fail(Failure { rank: from, cause: Cause::Mismatch });
            }
            op.slots[expected.term as usize] = arrived.slot;
            let schedule = std::sync::Arc::clone(&op.schedule);
            self.release(expected.at, &schedule);
        }
    }

    /// A fold has been computed: its slots are free, and steps that wait for it may start.
    pub fn folded(&mut self, op: OpId, step: u32) {
        let Some(schedule) = self.schedule(op).cloned() else { return };
        let (slots, threshold) = (self.config.slots, self.credit_threshold());
        if let Action::Fold { terms, .. } = schedule.action(step) {
            for (index, term) in terms.clone().zip(schedule.terms(terms)) {
                let Term::Message(from) = *term else { continue };
                let slot = self.op(op).map_or(0, |op| op.slots[index as usize]);
                let is_bounded = self.op(op).is_some_and(|op| op.bound.is_some());
                if is_bounded && !self.is_near(from) {
                    self.free_express(from, slot);
                    continue;
                }
                let peer = self.peer(from);
                peer.free(slot, slots);
                if peer.folded - peer.told >= threshold {
                    self.owed.push_back(from);
                }
            }
        }
        self.complete(super::StepOf { op, step });
    }

    /// A peer has left, and will fold nothing more. Everything that it has folded counts as
    /// delivered; nothing else will arrive from it.
    fn settle_left(&mut self, rank: Rank) {
        if !self.is_done_with_casts(rank) || self.holds_up(rank) {
            return self.fail(Failure { rank, cause: Cause::Left });
        }
        let peer = self.peer(rank);
        let undelivered = peer.sent > peer.folded_there
            || !peer.to_send.is_empty()
            || peer.express.outbox.is_waited_for();
        let unsent = peer.expected.len() > peer.arrived.len()
            || peer.express.inbox.expected().next().is_some();
        if undelivered || unsent {
            return self.fail(Failure { rank, cause: Cause::Left });
        }
        while let Some((posted, _)) = self.peer(rank).posted.pop_front() {
            self.end_post(rank, Some(posted));
        }
        self.peer(rank).is_broken = true;
    }
}
