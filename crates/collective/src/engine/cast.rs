//! Messages that a rank sends to all others at once.
//!
//! They are counted apart from those between two ranks. A rank's own are to a peer that stands for
//! all others ([`cast_of`]), those of each other rank come from a peer that stands for them. What
//! has been folded is told over the connection to the rank that has sent them. The slowest receiver
//! gives the credit.

use super::{Cause, Engine, Failure};
use crate::{Rank, cast_of};

impl Engine {
    /// All others, as a peer.
    pub(super) fn own_cast(&self) -> Rank {
        cast_of(self.config.rank, self.config.ranks)
    }

    /// The rank whose messages to all a peer stands for, if it does.
    pub(super) fn caster(&self, peer: Rank) -> Option<Rank> {
        peer.checked_sub(self.config.ranks)
    }

    /// The rank that a peer is. Of all others it is the one that has folded least.
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

    /// The ranks that are waited for if a peer is.
    pub(super) fn ranks_behind(&self, peer: Rank) -> Vec<Rank> {
        if peer != self.own_cast() {
            return vec![self.rank_behind(peer)];
        }
        let sent = self.peers[peer as usize].as_ref().map_or(0, |cast| cast.sent);
        self.others().filter(|rank| self.casts_folded(*rank) < sent).collect()
    }

    /// The rank behind a peer that has left; of all others the first.
    pub(super) fn who_left(&self, peer: Rank) -> Option<Rank> {
        let has_left =
            |rank: &Rank| self.peers[*rank as usize].as_ref().is_some_and(|peer| peer.has_left);
        if peer == self.own_cast() {
            return self.others().find(has_left);
        }
        Some(self.rank_behind(peer)).filter(has_left)
    }

    /// What a rank sends to all, if at least so many of its messages have been folded of which it
    /// was not told.
    pub(super) fn untold_casts(&self, rank: Rank, least: u64) -> Option<Rank> {
        let theirs = cast_of(rank, self.config.ranks);
        let cast = self.peers.get(theirs as usize)?.as_ref()?;
        (cast.folded - cast.told >= least).then_some(theirs)
    }

    fn casts_folded(&self, rank: Rank) -> u64 {
        self.peers[rank as usize].as_ref().map_or(0, |peer| peer.casts_folded)
    }

    /// A rank says how many of this rank's messages to all it has folded.
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

    /// Whether a rank that leaves has all that was sent to all, and nobody waits for more of its
    /// own.
    pub(super) fn is_done_with_casts(&self, rank: Rank) -> bool {
        let folded = self.casts_folded(rank);
        let [own, theirs] = [self.own_cast(), cast_of(rank, self.config.ranks)]
            .map(|peer| self.peers[peer as usize].as_ref());
        own.is_none_or(|cast| cast.sent == folded && cast.to_send.is_empty())
            && theirs.is_none_or(|cast| cast.expected.len() <= cast.arrived.len())
    }

    /// Nothing can be sent to all any more, or nothing comes from a rank that way.
    pub(super) fn cast_broken(&mut self, peer: Rank) {
        self.peer(peer).is_broken = true;
        if let Some(left) = self.who_left(peer) {
            // Nobody acknowledges for it. What all have folded is delivered.
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
