//! Completion queues.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bowline_nic::{Completion, CqId, Nic, Time};

use super::users::Users;
use super::{Engines, Layout, MirrorError, Place, end_everywhere, everywhere};
use crate::rail::Rail;

/// A completion queue: a queue on every engine, polled as one.
///
/// Only lanes that have queue pairs of it are polled, so that two threads that work on queue pairs of
/// different lanes, each with a queue of its own, never meet.
#[derive(Debug)]
pub struct Cq {
    ids: Box<[CqId]>,
    layout: Layout,
    /// Lanes that have queue pairs of it, a bit each.
    lanes: AtomicU64,
    /// How many on each lane; whoever changes `lanes` holds the lock.
    per_lane: Mutex<Box<[u32]>>,
    /// What was asked for since the last event.
    armed: AtomicU8,
    /// Whose turn it is to be polled first while connections are on both rails.
    backup_first: AtomicBool,
    users: Users,
}

pub(super) const WHAT: &str = "completion queue";

/// Takes completions of an engine's queue, up to a number, and says how many.
type Take<'a, X> = dyn FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X> + 'a;

const UNARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

impl Cq {
    /// Makes a queue for `depth` completions of each lane.
    pub fn create<E: Engines>(engines: &E, depth: u32) -> Result<Cq, MirrorError<E::Error>> {
        let undo = |nic: &mut Nic, id| _ = nic.destroy_cq(id);
        let ids = everywhere(engines, |nic, _| nic.create_cq(depth), undo)?;
        let layout = engines.layout();
        Ok(Cq {
            ids,
            layout,
            lanes: AtomicU64::new(0),
            per_lane: Mutex::new(vec![0; layout.lanes].into_boxed_slice()),
            armed: AtomicU8::new(UNARMED),
            backup_first: AtomicBool::new(false),
            users: Users::default(),
        })
    }

    /// What an engine calls it.
    #[inline]
    pub fn id(&self, at: Place) -> CqId {
        self.ids[self.layout.index(at)]
    }

    /// What every engine calls it, in the order of the layout's places.
    pub fn ids(&self) -> &[CqId] {
        &self.ids
    }

    /// A queue pair of a lane is about to complete here. Once it exists, [`Cq::joined`] follows.
    pub(super) fn hold(&self, lane: usize) -> Result<(), bowline_nic::ControlError> {
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

    /// Whoever waits for an event waits for this lane's completions, too: it may be its first.
    pub(super) fn joined<E: Engines>(&self, engines: &E, lane: usize) -> Result<(), E::Error> {
        match self.armed.load(Ordering::SeqCst) {
            UNARMED => Ok(()),
            armed => self.arm_at(engines, Place::lane(lane), armed == SOLICITED),
        }
    }

    /// Polls up to `wanted` completions through `take`, which gets the queue to ask, how many there is
    /// room for, and says how many it took. `split` tells whether some connection is on the backup
    /// rail. `first` says with which lane to begin: threads that share a queue should differ in it.
    #[inline]
    pub fn poll<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        split: bool,
        first: impl FnOnce() -> usize,
        wanted: usize,
        mut take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X>,
    ) -> Result<usize, X> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        if !split && lanes.count_ones() <= 1 {
            // Without queue pairs the first lane is driven, as a program that polls expects.
            let lane = lanes.trailing_zeros() as usize % 64;
            let at = Place::lane(lane);
            return engines.poll(at, |nic, now| take(nic, now, self.ids[lane], wanted))?;
        }
        self.poll_many(engines, split, first(), wanted, &mut take)
    }

    #[inline(never)]
    fn poll_many<E: Engines, X: From<E::Error>>(
        &self,
        engines: &E,
        split: bool,
        first: usize,
        wanted: usize,
        take: &mut Take<'_, X>,
    ) -> Result<usize, X> {
        let lanes = self.lanes.load(Ordering::Relaxed).max(1);
        let start = (0..self.layout.lanes)
            .map(|step| (first + step) % self.layout.lanes)
            .filter(|lane| lanes & 1 << lane != 0);
        let mut taken = 0;
        let mut entered = false;
        for lane in start.clone() {
            for rail in self.rails(split) {
                let at = Place { rail, lane };
                let (cq, left) = (self.id(at), wanted - taken);
                // Every engine is driven, although the room may be used up.
                let got = engines.try_poll(at, |nic, now| match left {
                    0 => Ok(0),
                    _ => take(nic, now, cq, left),
                })?;
                entered |= got.is_some();
                taken += got.transpose()?.unwrap_or(0);
            }
            if taken > 0 && !split {
                // Other threads drive the other lanes; those that nobody drives have their own.
                return Ok(taken);
            }
        }
        match start.clone().next() {
            Some(lane) if !entered => {
                let at = Place::lane(lane);
                engines.poll(at, |nic, now| take(nic, now, self.id(at), wanted))?
            }
            _ => Ok(taken),
        }
    }

    /// Takes completions that are there into `out`, and drives no engine.
    pub fn take<E: Engines>(
        &self,
        engines: &E,
        split: bool,
        first: usize,
        out: &mut [Completion],
    ) -> Result<usize, MirrorError<E::Error>> {
        let lanes = self.lanes.load(Ordering::Relaxed);
        let mut taken = 0;
        for lane in (0..self.layout.lanes).map(|step| (first + step) % self.layout.lanes) {
            for rail in self.rails(split).filter(|_| lanes & 1 << lane != 0) {
                let at = Place { rail, lane };
                let room = &mut out[taken..];
                let got = engines.with(at, |nic, _| nic.poll_cq(self.id(at), room));
                taken += got.map_err(MirrorError::Engine)??;
            }
        }
        Ok(taken)
    }

    /// The rails that may have completions, each first in turn, so that a busy one does not starve the
    /// other.
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
    /// `is_split` is asked after the queue counts as armed: a connection that moves after that makes
    /// its owner [`wake`](Cq::is_armed) the queue.
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
        // The queue exists as long as this does.
        engines.with(at, |nic, _| nic.arm_cq(self.id(at), solicited_only)).map(drop)
    }

    /// An engine has raised the event: whether the program is to hear of it. Several engines may be
    /// armed, and the program has asked for one event.
    #[inline]
    pub fn notified(&self) -> bool {
        self.armed.swap(UNARMED, Ordering::SeqCst) != UNARMED
    }

    /// Whether somebody waits for an event.
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) != UNARMED
    }

    /// Destroys the queue, if no queue pair uses it.
    pub fn destroy<E: Engines>(&self, engines: &E) -> Result<(), MirrorError<E::Error>> {
        self.users.end(WHAT)?;
        end_everywhere(engines, &self.ids, |nic, id| nic.destroy_cq(id))
    }
}
