//! Shared receive queues and their mirrors.
//!
//! Connections of one queue can be on both lanes at a time, and a receive can be on one only. While
//! that is so, both queues are kept stocked: what is posted goes to each in turn, and what one has more
//! of than the other is moved. When all are on one lane, all receives are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use bowline_failover::Rail;
use bowline_io::LaneError;
use bowline_nic::{Nic, PdId, RecvWr, Sge, SrqId};

use crate::connection::Links;
use crate::error::RailsError;
use crate::rails::{Rails, Shared};

/// Where receives go.
const DEFAULT: u8 = 0;
const BACKUP: u8 = 1;
/// To both in turn; the other value is the other's turn.
const BOTH: u8 = 2;
const BOTH_TOO: u8 = 3;

/// A shared receive queue and its counterpart on the backup lane.
#[derive(Debug)]
pub struct SrqMirror {
    ids: [SrqId; 2],
    goes_to: AtomicU8,
    /// The limit that the program has armed.
    limit: AtomicU32,
}

/// A receive between two queues.
struct Held {
    wr_id: u64,
    sges: Vec<Sge>,
}

impl SrqMirror {
    pub(crate) fn id(&self, rail: Rail) -> SrqId {
        self.ids[rail.index()]
    }

    /// Posts receives through `post`, which gets the queue to post to, and transmits soon.
    #[inline]
    pub fn post<R>(
        &self,
        rails: &Rails,
        post: impl FnOnce(&mut Nic, SrqId) -> R,
    ) -> Result<R, LaneError> {
        let rail = match self.goes_to.load(Ordering::Relaxed) {
            DEFAULT => Rail::Default,
            BACKUP => Rail::Backup,
            _ => self.turn(),
        };
        rails.lane(rail).post(|nic, _| post(nic, self.ids[rail.index()]))
    }

    #[cold]
    fn turn(&self) -> Rail {
        let swap = |to| match to {
            BOTH => Some(BOTH_TOO),
            BOTH_TOO => Some(BOTH),
            _ => None,
        };
        match self.goes_to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, swap) {
            Ok(BOTH) | Err(BACKUP) => Rail::Backup,
            _ => Rail::Default,
        }
    }

    /// Puts the receives where the queue's connections are; tells whether all could be.
    pub(crate) fn balance(&self, shared: &Shared, links: &Links) -> bool {
        let Ok((home, away)) = links.users_of(self.ids[0], &shared.lanes[0]) else { return true };
        let goes_to = match (home, away) {
            (_, 0) => DEFAULT,
            (0, _) => BACKUP,
            _ => BOTH,
        };
        let before = self.goes_to.load(Ordering::Relaxed).min(BOTH);
        if goes_to != before {
            self.goes_to.store(goes_to, Ordering::Relaxed);
            // What was armed stays so: only a lane that has ended, or a queue, can refuse.
            let _ = self.arm_limit(shared, goes_to);
        }
        // A lane that has ended keeps what it has.
        self.share(shared, goes_to).unwrap_or(true)
    }

    fn share(&self, shared: &Shared, goes_to: u8) -> Result<bool, RailsError> {
        let mut lens = [0; 2];
        for rail in Rail::ALL {
            let len = shared.lanes[rail.index()].with(|nic, _| nic.srq_len(self.id(rail)))?;
            lens[rail.index()] = len.unwrap_or(0);
        }
        let total = lens[0] + lens[1];
        let wanted = match goes_to {
            DEFAULT => total,
            BACKUP => 0,
            // The odd one stays where it is.
            _ => total / 2 + (total % 2) * u32::from(lens[0] > lens[1]),
        };
        match lens[0] {
            have if have > wanted => self.shift(shared, Rail::Default, have - wanted),
            have if have < wanted => self.shift(shared, Rail::Backup, wanted - have),
            _ => Ok(true),
        }
    }

    /// Arms the limit, of which an event tells: on the lane that has the receives, or half of it on each.
    /// Where both have some, an event can come a little early, and a second one.
    fn arm_limit(&self, shared: &Shared, goes_to: u8) -> Result<(), RailsError> {
        let limit = self.limit.load(Ordering::Relaxed);
        let limits = match goes_to {
            DEFAULT => [limit, 0],
            BACKUP => [0, limit],
            _ => [limit.div_ceil(2); 2],
        };
        for rail in Rail::ALL {
            let (lane, limit) = (&shared.lanes[rail.index()], limits[rail.index()]);
            lane.with(|nic, _| nic.set_srq_limit(self.id(rail), limit))??;
        }
        Ok(())
    }

    /// Asks for an event when fewer receives than `limit` are left; 0 asks for none.
    pub fn set_limit(&self, rails: &Rails, limit: u32) -> Result<(), RailsError> {
        let _core = rails.shared.core();
        let before = self.limit.swap(limit, Ordering::Relaxed);
        let goes_to = self.goes_to.load(Ordering::Relaxed).min(BOTH);
        self.arm_limit(&rails.shared, goes_to)
            .inspect_err(|_| self.limit.store(before, Ordering::Relaxed))
    }

    /// The event has been delivered: it is not asked for any more.
    pub fn limit_reached(&self) {
        self.limit.store(0, Ordering::Relaxed);
    }

    /// Moves up to `count` receives from a lane to the other; tells whether that has room for them.
    fn shift(&self, shared: &Shared, from: Rail, count: u32) -> Result<bool, RailsError> {
        let mut held = Vec::new();
        shared.lanes[from.index()].with(|nic, _| {
            nic.take_srq_recvs(self.id(from), count, |wr| {
                held.push(Held { wr_id: wr.wr_id, sges: wr.sges.to_vec() });
                true
            })
        })??;
        let refused = self.put(shared, from.other(), &held)?;
        // A program that posted more than the queue is made for, since it seemed to have room.
        self.put(shared, from, refused)?;
        Ok(refused.is_empty())
    }

    /// Posts receives to a lane; returns those that it has no room for.
    fn put<'a>(
        &self,
        shared: &Shared,
        to: Rail,
        held: &'a [Held],
    ) -> Result<&'a [Held], RailsError> {
        let srq = self.id(to);
        let taken = shared.lanes[to.index()].with(|nic, _| {
            held.iter()
                .take_while(|h| {
                    nic.post_srq_recv(srq, &RecvWr { wr_id: h.wr_id, sges: &h.sges }).is_ok()
                })
                .count()
        })?;
        Ok(&held[taken..])
    }
}

impl Rails {
    /// Makes the counterpart of a shared receive queue.
    pub fn shadow_srq(
        &self,
        srq: SrqId,
        pd: PdId,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<Arc<SrqMirror>, RailsError> {
        let pd = self.shared.tables().shadow_pd(pd)?;
        let shadow =
            self.lane(Rail::Backup).with(|nic, _| nic.create_srq(pd, max_wr, max_sge))??;
        let ids = [srq, shadow];
        let mirror =
            Arc::new(SrqMirror { ids, goes_to: AtomicU8::new(DEFAULT), limit: AtomicU32::new(0) });
        self.shared.tables().insert_srq(ids, Arc::clone(&mirror));
        Ok(mirror)
    }

    /// Destroys the counterpart of a shared receive queue that has been destroyed.
    pub fn forget_srq(&self, mirror: &SrqMirror) -> Result<(), RailsError> {
        self.shared.tables().remove_srq(mirror.ids);
        Ok(self.lane(Rail::Backup).with(|nic, _| nic.destroy_srq(mirror.ids[1]))??)
    }
}
