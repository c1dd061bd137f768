//! Multicast messages: those that a rank sends to all others at once.
//!
//! They are counted separately from messages between two ranks. A rank sends its own multicasts to
//! a peer that stands for all others ([`cast_of`]), and receives those of each other rank from a
//! peer that stands for that rank's multicasts. The count of folded messages travels over the
//! connection to the rank that sent them. The slowest receiver determines the credit.

use super::{Cause, Engine, Failure};
use crate::{Rank, cast_of};

impl Engine {
    /// The peer that stands for all others.
    pub(super) fn own_cast(&self) -> Rank {
        cast_of(self.config.rank, self.config.ranks)
    }

    /// The rank whose multicasts a peer stands for, if it is such a peer.
    pub(super) fn caster(&self, peer: Rank) -> Option<Rank> {
        peer.checked_sub(self.config.ranks)
    }

    /// The rank behind a peer. For the peer that stands for all others, it is the rank that has
    /// folded the fewest messages.
    pub(super) fn rank_behind(&self, peer: Rank) -> Rank {
        match self.caster(peer) {
            None => peer,
            Some(caster) if caster != self.config.rank => caster,
            Some(own) => {
                let slowest = self.others().min_by_key(|rank| self.casts_folded(*rank));
                slowest.unwrap_or(own)
            }
        }
    }

    /// The ranks that this rank waits for when it waits for a peer.
    pub(super) fn ranks_behind(&self, peer: Rank) -> Vec<Rank> {
        if peer != self.own_cast() {
            return vec![self.rank_behind(peer)];
        }
        let sent = self.peers[peer as usize].as_ref().map_or(0, |cast| cast.sent);
        self.others().filter(|rank| self.casts_folded(*rank) < sent).collect()
    }

    /// The rank behind a peer, if it has left; for all others, the first one that has left.
    pub(super) fn who_left(&self, peer: Rank) -> Option<Rank> {
        let has_left =
            |rank: &Rank| self.peers[*rank as usize].as_ref().is_some_and(|peer| peer.has_left);
        if peer == self.own_cast() {
            return self.others().find(has_left);
        }
        Some(self.rank_behind(peer)).filter(has_left)
    }

    /// The peer for a rank's multicasts, if at least this many of them have been folded and not yet
    /// reported to that rank.
    pub(super) fn untold_casts(&self, rank: Rank, least: u64) -> Option<Rank> {
        let theirs = cast_of(rank, self.config.ranks);
        let cast = self.peers.get(theirs as usize)?.as_ref()?;
        (cast.folded - cast.told >= least).then_some(theirs)
    }

    fn casts_folded(&self, rank: Rank) -> u64 {
        self.peers[rank as usize].as_ref().map_or(0, |peer| peer.casts_folded)
    }

    /// A rank reports how many of this rank's multicasts it has folded.
    pub(super) fn take_cast_credit(&mut self, from: Rank, count: u16) {
        let own = self.own_cast();
        let sent = self.peer(own).sent;
        let peer = self.peer(from);
        let more = u64::from(count.wrapping_sub(peer.casts_folded as u16));
        if more > sent - peer.casts_folded {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        peer.casts_folded += more;
        let least = self.others().map(|rank| self.casts_folded(rank)).min();
        self.peer(own).folded_there = least.unwrap_or(sent);
        self.look_at(own);
    }

    /// Whether a rank that leaves has received all multicasts of this rank, and no step waits for
    /// more of its own.
    pub(super) fn is_done_with_casts(&self, rank: Rank) -> bool {
        let folded = self.casts_folded(rank);
        let [own, theirs] = [self.own_cast(), cast_of(rank, self.config.ranks)]
            .map(|peer| self.peers[peer as usize].as_ref());
        own.is_none_or(|cast| cast.sent == folded && cast.to_send.is_empty())
            && theirs.is_none_or(|cast| cast.expected.len() <= cast.arrived.len())
    }

    /// Multicasts can no longer be sent, or can no longer be received from a rank.
    pub(super) fn cast_broken(&mut self, peer: Rank) {
        self.peer(peer).is_broken = true;
        if let Some(left) = self.who_left(peer) {
            // A rank that has left no longer acknowledges. What all ranks have folded is delivered.
            let cast = self.peer(peer);
            let is_over = cast.to_send.is_empty() && cast.sent == cast.folded_there;
            if is_over && cast.expected.is_empty() {
                while let Some((posted, _)) = self.peer(peer).posted.pop_front() {
                    self.end_post(peer, Some(posted));
                }
                return;
            }
            return self.fail(Failure { rank: left, cause: Cause::Left });
        }
        self.fail(Failure { rank: peer, cause: Cause::Unreachable });
    }
}
