//! Outputs of an engine.

use super::message::{self, Kind};
use super::peer::{Posted, StepOf};
use super::{Cause, Engine, EngineConfig, Failure, OpId, Post};
use crate::Rank;
use crate::bounds::Report;
use crate::schedule::Action;

impl Engine {
    /// The next thing to do. Messages come before folds, so that sends are in flight as early as
    /// possible.
    pub fn poll_post(&mut self) -> Option<Post> {
        loop {
            if let Some(post) = self.local.pop_front() {
                return Some(post);
            }
            if let Some(note) = self.notes.pop_front() {
                match self.note(note) {
                    None => continue,
                    note => return note,
                }
            }
            while let Some(rank) = self.sendable.pop_front() {
                self.peer(rank).is_queued = false;
                if let Some(post) = self.next_to(rank) {
                    return Some(post);
                }
            }
            if let Some(StepOf { op, step }) = self.ready.pop_front() {
                return Some(Post::Fold { op, step });
            }
            // No other message carries these credits.
            let rank = self.owed.pop_front()?;
            let (threshold, max_posted) = (self.credit_threshold(), self.config.max_posted);
            let link = self.rank_behind(rank);
            let link = self.peer(link);
            if link.posted.len() >= max_posted || link.has_left {
                continue;
            }
            let peer = self.peer(rank);
            if peer.folded - peer.told >= threshold {
                let credit = peer.credit();
                self.notes.push_back((rank, Kind::Note, credit));
            }
            if self.peer(rank).express.inbox.is_untold() {
                let note = self.progress_note(rank);
                self.notes.push_back(note);
            }
        }
    }

    /// The next thing to send to a peer. What others have been waiting for longest goes first.
    fn next_to(&mut self, rank: Rank) -> Option<Post> {
        self.next_control(rank)
            .or_else(|| self.next_bulk(rank))
            .or_else(|| self.next_repair(rank))
            .or_else(|| self.next_express(rank))
            .or_else(|| self.next_write(rank))
    }

    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<(OpId, Result<Report, Failure>)> {
        self.done.pop_front()
    }

    fn note(&mut self, (to, kind, number): (Rank, Kind, u16)) -> Option<Post> {
        // A multicast sender gets its credit over the connection between the two ranks.
        let (to, kind) = self.caster(to).map_or((to, kind), |caster| (caster, Kind::Cast));
        if self.peer(to).is_broken {
            return None;
        }
        self.posted(to, Posted::Note);
        Some(Post::Note { to, imm: message::encode(kind, number) })
    }

    /// The next message to a peer, if it can be sent.
    fn next_write(&mut self, to: Rank) -> Option<Post> {
        let EngineConfig { slots, max_posted, inline_bytes, .. } = self.config;
        let at = *self.peer(to).to_send.front()?;
        let op = self.op(at.op)?;
        if op.waits[at.step as usize] > 0 {
            return None;
        }
        let Action::Send { src, .. } = *op.schedule.action(at.step) else { return None };
        let tag = op.tag;
        let is_cast = self.caster(to).is_some();
        if let Some(left) = self.who_left(to) {
            self.fail(Failure { rank: left, cause: Cause::Left });
            return None;
        }
        let peer = self.peer(to);
        if peer.sent - peer.folded_there >= slots.into() || peer.posted.len() >= max_posted {
            return None;
        }
        peer.to_send.pop_front();
        let slot = (peer.sent % u64::from(slots)) as u16;
        peer.sent += 1;
        // A multicast completes only when all ranks have acknowledged it. A rank's last message
        // takes another connection and must not overtake it.
        let inline = (src.len <= inline_bytes || peer.is_copied_to) && !is_cast;
        let imm = message::encode(Kind::Data(tag), peer.credit());
        self.posted(to, if inline { Posted::Note } else { Posted::Message(at) });
        self.look_at(to);
        if inline {
            // The work request holds a copy of the bytes: the memory may change from now on.
            self.complete(at);
        }
        Some(Post::Write { to, slot, op: at.op, src, imm, inline })
    }
}
