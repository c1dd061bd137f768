//! Completion queues.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bowline_nic::{Completion, ControlError, CqId, CqLevel, Nic, Time};

use super::users::Users;
use super::{Engines, Layout, MirrorError, Place, end_everywhere, everywhere};
use crate::rail::Rail;

/// A completion queue: one queue on every engine, polled as one.
///
/// Only lanes that have queue pairs on it are polled. So two threads that work on queue pairs of
/// different lanes, each with its own completion queue, never contend.
#[derive(Debug)]
pub struct Cq {
    ids: Box<[CqId]>,
    levels: Box<[CqLevel]>,
    layout: Layout,
    /// Lanes that have queue pairs on it, one bit each.
    lanes: AtomicU64,
    /// Number of queue pairs per lane. A thread that changes `lanes` holds the lock.
    per_lane: Mutex<Box<[u32]>>,
    /// How the queue has been armed since the last event.
    armed: AtomicU8,
    /// Which rail is polled first next time, while connections are on both rails.
    backup_first: AtomicBool,
    users: Users,
}

pub(super) const WHAT: &str = "completion queue";

/// Takes up to a given number of completions from an engine's queue. Returns how many.
type Take<'a, X> = dyn FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X> + 'a;

/// Which thread polls, and in which order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The thread's own lane, if it has one. The thread drives it, if the queue has queue pairs
    /// there.
    pub home: Option<usize>,
    /// A number that identifies the thread. Threads without a lane and with different numbers drive
    /// different lanes.
    pub thread: usize,
    /// Poll the lanes that the thread does not drive first. Set every other time, so that no lane
    /// starves.
    pub others_first: bool,
}

const UNARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

impl Cq {
    /// Creates a queue for `depth` completions of each lane.
    pub fn create<E: Engines>(engines: &E, depth: u32) -> Result<Cq, MirrorError<E::Error>> {
        let undo = |nic: &mut Nic, (id, _): &(CqId, CqLevel)| _ = nic.destroy_cq(*id);
        let make = |nic: &mut Nic, _| {
            let id = nic.create_cq(depth)?;
            Ok((id, nic.cq_level(id)?))
        };
        let (ids, levels): (Vec<_>, Vec<_>) = everywhere(engines, make, undo)?.into_iter().unzip();
        let layout = engines.layout();
        Ok(Cq {
            ids: ids.into_boxed_slice(),
            levels: levels.into_boxed_slice(),
            layout,
            lanes: AtomicU64::new(0),
            per_lane: Mutex::new(vec![0; layout.lanes].into_boxed_slice()),
            armed: AtomicU8::new(UNARMED),
            backup_first: AtomicBool::new(false),
            users: Users::default(),
        })
    }

    /// Changes how many completions of each lane there is room for.
    ///
    /// An engine whose queue holds more than that refuses. Engines asked before it keep the new
    /// depth, which is at least what they hold.
    pub fn resize<E: Engines>(&self, engines: &E, depth: u32) -> Result<(), MirrorError<E::Error>> {
        for at in self.layout.places() {
            let id = self.id(at);
            engines.with(at, |nic, _| nic.resize_cq(id, depth)).map_err(MirrorError::Engine)??;
        }
        Ok(())
    }

    /// Its identifier on an engine.
    #[inline]
    pub fn id(&self, at: Place) -> CqId {
        self.ids[self.layout.index(at)]
    }

    /// Its identifiers on all engines, in the order of the layout's places.
    pub fn ids(&self) -> &[CqId] {
        &self.ids
    }

    /// Announces that a queue pair of a lane will complete here. Call [`Cq::joined`] once it
    /// exists.
    pub(super) fn hold(&self, lane: usize) -> Result<(), ControlError> {
        self.users.hold(WHAT)?;
        self.count(lane, |users| *users += 1);
        Ok(())
    }

    /// A queue pair of a lane is gone.
    pub(super) fn release(&self, lane: usize) {
        self.count(lane, |users| *users = users.saturating_sub(1));
        self.users.release();
    }

    fn count(&self, lane: usize, change: impl FnOnce(&mut u32)) {
        let mut per_lane = self.per_lane.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut per_lane[lane]);
        let bits = per_lane.iter().enumerate().map(|(lane, n)| u64::from(*n > 0) << lane);
        self.lanes.store(bits.fold(0, |all, bit| all | bit), Ordering::SeqCst);
    }

    /// If the queue is armed, arms it on this lane too: this may be the lane's first queue pair.
    pub(super) fn joined<E: Engines>(&self, engines: &E, lane: usize) -> Result<(), E::Error> {
        match self.armed.load(Ordering::SeqCst) {
            UNARMED => Ok(()),
            armed => self.arm_at(engines, Place::lane(lane), armed == SOLICITED),
        }
    }

    /// Polls up to `wanted` completions through `take`, which gets the queue to poll and how many
    /// completions there is room for, and returns how many it took. `split` says whether some
    /// connection is on the backup rail.
    ///
    /// The caller drives one lane: the only one that has queue pairs on the queue or, if there are
    /// several, the one that `turn` names. The other lanes drive themselves, each on its own core,
    /// and are only asked for what they have completed.
    #[inline]
    pub fn poll<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        split: bool,
        turn: impl FnOnce() -> Turn,
        wanted: usize,
        mut take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X>,
    ) -> Result<usize, X> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        if !split && lanes.count_ones() <= 1 {
            // Without queue pairs, drive the first lane, as a polling program expects.
            let lane = lanes.trailing_zeros() as usize % 64;
            let at = Place::lane(lane);
            return engines.poll(at, |nic, now| take(nic, now, self.ids[lane], wanted))?;
        }
        self.poll_many(engines, split, turn(), wanted, &mut take)
    }

    #[inline(never)]
    fn poll_many<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        split: bool,
        turn: Turn,
        wanted: usize,
        take: &mut Take<'_, X>,
    ) -> Result<usize, X> {
        let lanes = self.lanes.load(Ordering::Relaxed).max(1);
        let home = match turn.home {
            Some(home) if home < 64 && lanes & 1 << home != 0 => home,
            _ => nth_lane(lanes, turn.thread),
        };
        let mut taken = 0;
        if turn.others_first {
            taken += self.collect(engines, split, lanes & !(1 << home), wanted, take)?;
        }
        let mut entered = false;
        for rail in self.rails(split) {
            let at = Place { rail, lane: home };
            let (cq, left) = (self.id(at), wanted - taken);
            // Drive the engine even if there is no room left for completions.
            let got = engines.try_poll(at, |nic, now| match left {
                0 => Ok(0),
                _ => take(nic, now, cq, left),
            })?;
            entered |= got.is_some();
            taken += match got {
                Some(got) => got?,
                // Another thread drives it. What it completed before the caller armed the queue
                // raises no event, so it must be collected here.
                None => self.collect_at(engines, at, left, take)?,
            };
        }
        if !turn.others_first {
            taken += self.collect(engines, split, lanes & !(1 << home), wanted - taken, take)?;
        }
        if entered || taken > 0 {
            return Ok(taken);
        }
        // Another thread has the lane. If it shares a core with this one, waiting lets it finish.
        let at = Place::lane(home);
        engines.poll(at, |nic, now| take(nic, now, self.id(at), wanted))?
    }

    /// Takes what lanes have completed, without driving them. Does not touch lanes that have
    /// nothing.
    fn collect<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        split: bool,
        lanes: u64,
        wanted: usize,
        take: &mut Take<'_, X>,
    ) -> Result<usize, X> {
        let mut taken = 0;
        for lane in (0..self.layout.lanes).filter(|lane| lanes & 1 << lane != 0) {
            for rail in self.rails(split) {
                taken += self.collect_at(engines, Place { rail, lane }, wanted - taken, take)?;
            }
        }
        Ok(taken)
    }

    /// Takes what an engine has completed. An engine that has nothing is not touched: everything
    /// that it completed until it was last released is visible without locking it.
    fn collect_at<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        at: Place,
        wanted: usize,
        take: &mut Take<'_, X>,
    ) -> Result<usize, X> {
        if wanted == 0 || self.levels[self.layout.index(at)].is_empty() {
            return Ok(0);
        }
        let cq = self.id(at);
        engines.collect(at, |nic, now| take(nic, now, cq, wanted))?
    }

    /// Takes available completions into `out`, without driving any engine.
    pub fn take<E: Engines, X: From<E::Error> + From<ControlError>>(
        &self,
        engines: &E,
        split: bool,
        out: &mut [Completion],
    ) -> Result<usize, X> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        let mut filled = 0;
        self.collect(engines, split, lanes, out.len(), &mut |nic, _, cq, room| {
            let got = nic.poll_cq(cq, &mut out[filled..filled + room])?;
            filled += got;
            Ok(got)
        })
    }

    /// The rails that may have completions. Each comes first in turn, so that a busy one does not
    /// starve the other.
    fn rails(&self, split: bool) -> impl Iterator<Item = Rail> + use<> {
        let swap = split && self.backup_first.fetch_xor(true, Ordering::Relaxed);
        let (first, second) = match (split, swap) {
            (false, _) => (Rail::Default, None),
            (true, false) => (Rail::Default, Some(Rail::Backup)),
            (true, true) => (Rail::Backup, Some(Rail::Default)),
        };
        core::iter::once(first).chain(second)
    }

    /// Asks for one event at the next completion, or at the next that is solicited or failed.
    ///
    /// `is_split` is called after the queue counts as armed: if a connection moves after that, its
    /// owner must [`wake`](Cq::is_armed) the queue.
    pub fn arm<E: Engines>(
        &self,
        engines: &E,
        is_split: impl FnOnce() -> bool,
        solicited_only: bool,
    ) -> Result<(), E::Error> {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        self.armed.fetch_max(wanted, Ordering::SeqCst);
        let split = self.layout.backed && is_split();
        let lanes = self.lanes.load(Ordering::SeqCst);
        for lane in (0..self.layout.lanes).filter(|lane| lanes & 1 << lane != 0) {
            self.arm_at(engines, Place::lane(lane), solicited_only)?;
            if split {
                self.arm_at(engines, Place { rail: Rail::Backup, lane }, solicited_only)?;
            }
        }
        Ok(())
    }

    fn arm_at<E: Engines>(
        &self,
        engines: &E,
        at: Place,
        solicited_only: bool,
    ) -> Result<(), E::Error> {
        // Cannot fail on the engine: the queue exists as long as `self` does.
        engines.with(at, |nic, _| nic.arm_cq(self.id(at), solicited_only)).map(drop)
    }

    /// An engine has raised the event. Returns whether to notify the program: several engines may
    /// be armed, but the program asked for one event.
    #[inline]
    pub fn notified(&self) -> bool {
        self.armed.swap(UNARMED, Ordering::SeqCst) != UNARMED
    }

    /// Whether anyone waits for an event.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != UNARMED
    }

    /// Destroys the queue, if no queue pair uses it.
    pub fn destroy<E: Engines>(&self, engines: &E) -> Result<(), MirrorError<E::Error>> {
        self.users.end(WHAT)?;
        end_everywhere(engines, &self.ids, |nic, id| nic.destroy_cq(id))
    }
}

/// The `n`-th lane of a non-empty set, wrapping around.
fn nth_lane(lanes: u64, n: usize) -> usize {
    let skip = n % lanes.count_ones() as usize;
    let rest = (0..skip).fold(lanes, |lanes, _| lanes & (lanes - 1));
    rest.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_at_the_lanes_of_a_set() {
        let drives = |lanes, n| (0..n).map(|thread| nth_lane(lanes, thread)).collect::<Vec<_>>();
        assert_eq!(drives(0b1, 3), [0, 0, 0]);
        assert_eq!(drives(0b1010_0100, 4), [2, 5, 7, 2]);
        assert_eq!(nth_lane(u64::MAX, 63), 63);
    }
}
