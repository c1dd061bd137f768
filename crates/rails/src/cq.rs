//! Completion queues and their mirrors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_failover::Rail;
use bowline_io::{Channel, LaneError};
use bowline_nic::{CqId, Nic, Time};

use crate::error::RailsError;
use crate::rails::Rails;

/// A completion queue and its counterpart on the backup lane.
#[derive(Debug)]
pub struct CqMirror {
    ids: [CqId; 2],
    /// Where events go, and under which name.
    notify: Option<(Arc<Channel<u64>>, u64)>,
    /// Somebody has asked for an event at least once.
    sleeps: AtomicBool,
    /// Whose turn it is to be asked first.
    backup_first: AtomicBool,
}

impl CqMirror {
    pub(crate) fn id(&self, rail: Rail) -> CqId {
        self.ids[rail.index()]
    }

    /// Tells whoever sleeps on the queue to look again: what it waits for may have gone to the other
    /// lane, whose queue it has not armed.
    pub(crate) fn wake(&self) {
        if self.sleeps.load(Ordering::SeqCst)
            && let Some((channel, token)) = &self.notify
        {
            channel.push(*token);
        }
    }

    /// Polls up to `wanted` completions through `take`, which gets the queue to ask, how many there is
    /// room for, and says how many it took.
    ///
    /// While all connections are at home, only the first lane is asked; otherwise both, each first in
    /// turn, so that a busy one does not starve the other.
    #[inline]
    pub fn poll<E: From<LaneError>>(
        &self,
        rails: &Rails,
        wanted: usize,
        mut take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if !rails.is_split() {
            let lane = rails.lane(Rail::Default);
            return lane.poll(|nic, now| take(nic, now, self.ids[0], wanted))?;
        }
        let backup_first = self.backup_first.fetch_xor(true, Ordering::Relaxed);
        let first = if backup_first { Rail::Backup } else { Rail::Default };
        let mut taken = 0;
        for rail in [first, first.other()] {
            // Both lanes are driven, although the room may be used up.
            let cq = self.ids[rail.index()];
            let left = wanted - taken;
            taken += rails.lane(rail).poll(|nic, now| match left {
                0 => Ok(0),
                _ => take(nic, now, cq, left),
            })??;
        }
        Ok(taken)
    }

    /// Asks for an event: of both queues, if a completion can come on either.
    pub fn arm(&self, rails: &Rails, solicited_only: bool) -> Result<(), RailsError> {
        if !self.sleeps.load(Ordering::Relaxed) {
            self.sleeps.store(true, Ordering::SeqCst);
        }
        // A connection that moves after this look wakes us, since it sees that we sleep.
        let both = rails.shared.away() != 0;
        for rail in if both { &Rail::ALL[..] } else { &Rail::ALL[..1] } {
            let cq = self.ids[rail.index()];
            rails.lane(*rail).with(|nic, _| nic.arm_cq(cq, solicited_only))??;
        }
        Ok(())
    }
}

impl Rails {
    /// Makes the counterpart of a completion queue. Its events go to the same channel under the same
    /// name.
    pub fn shadow_cq(
        &self,
        cq: CqId,
        depth: u32,
        notify: Option<(Arc<Channel<u64>>, u64)>,
    ) -> Result<Arc<CqMirror>, RailsError> {
        let backup = self.lane(Rail::Backup);
        let shadow = backup.with(|nic, _| nic.create_cq(depth))??;
        if let Some((channel, token)) = &notify {
            backup.notify_cq(shadow, Arc::clone(channel), *token)?;
        }
        let mirror = Arc::new(CqMirror {
            ids: [cq, shadow],
            notify,
            sleeps: AtomicBool::new(false),
            backup_first: AtomicBool::new(false),
        });
        self.shared.tables().insert_cq(mirror.ids, Arc::clone(&mirror));
        Ok(mirror)
    }

    /// Destroys the counterpart of a completion queue that has been destroyed.
    pub fn forget_cq(&self, mirror: &CqMirror) -> Result<(), RailsError> {
        self.shared.tables().remove_cq(mirror.ids);
        let backup = self.lane(Rail::Backup);
        backup.with(|nic, _| nic.destroy_cq(mirror.ids[1]))??;
        Ok(backup.forget_cq(mirror.ids[1])?)
    }
}
