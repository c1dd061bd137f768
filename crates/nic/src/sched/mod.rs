//! Whose turn it is: the ready list, pacing, the line for a path's window, and timers.
//!
//! A QP that has something to send is in the ready list, once. Its turn ends when it has sent a
//! burst, when it has nothing more, or when something holds it back: its pacer, until a time; its
//! own window, until the peer acknowledges; the window that it shares with others ([`path`]), until
//! it is its turn there.

mod pacer;
mod path;
mod timers;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use self::pacer::Pacer;
pub(crate) use self::path::{PathId, PathTable};
pub(crate) use self::timers::Timers;
use crate::qp::{Progress, Qp};
use crate::rate::ControllerFactory;
use crate::time::Time;

/// Packets that a QP may send before it is the next one's turn: one full burst.
pub(crate) const TURN_PACKETS: u32 = 16;

/// What limits a QP's sending.
#[derive(Debug)]
pub(crate) struct Limits {
    /// To the peer's engine, whose window QPs share.
    pub(crate) path: Option<PathId>,
    /// It has come to the head of the line for the path's window, and may use it in its next turn.
    pub(crate) called: bool,
    /// A window of its own, instead of a share of the path's.
    pub(crate) window: Option<u32>,
    pub(crate) pacer: Pacer,
    /// Where controllers of connections to come are from.
    pub(crate) controllers: Option<Arc<dyn ControllerFactory>>,
}

/// Where a QP stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// In the ready list.
    queued: bool,
    /// In line for its path's window.
    waiting: bool,
    /// Stopped by its pacer.
    pub(crate) paced: bool,
}

/// The schedule of a NIC. QPs are named by their slots.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// QPs that have something to send, each once, served in turn.
    ready: VecDeque<u32>,
    timers: Timers,
    pub(crate) paths: PathTable,
}

impl Scheduler {
    pub(crate) fn new(window: u32) -> Scheduler {
        Scheduler {
            ready: VecDeque::new(),
            timers: Timers::default(),
            paths: PathTable::new(window),
        }
    }

    /// The earliest deadline.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes out a QP whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        self.timers.pop_due(now)
    }

    /// Takes out the QP whose turn it is.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Forgets a QP that is gone. It has left its path.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.timers.remove(slot);
    }

    /// Gives a QP a turn.
    #[inline]
    pub(crate) fn make_ready(&mut self, slot: u32, qp: &mut Qp) {
        if !core::mem::replace(&mut qp.standing.queued, true) {
            self.ready.push_back(slot);
        }
    }

    /// A call has touched a QP: gives it a turn if it has something to send, or else sets its
    /// timer.
    #[inline]
    pub(crate) fn touched(&mut self, slot: u32, qp: &mut Qp) {
        if qp.standing.queued {
            return;
        }
        if qp.wants_transmit() {
            qp.standing.queued = true;
            self.ready.push_back(slot);
        } else {
            self.rearm(slot, qp);
        }
    }

    /// Makes sure that a QP's timer fires no later than its deadline. A deadline that has moved
    /// away is left to be found out when the timer fires.
    #[inline]
    pub(crate) fn rearm(&mut self, slot: u32, qp: &Qp) {
        let deadline = qp.deadline();
        // A QP that is queued comes here again when it has had its turn.
        if deadline == Time::NEVER || qp.standing.queued {
            return;
        }
        if self.timers.deadline(slot).is_none_or(|set| deadline < set) {
            self.timers.set(slot, deadline);
        }
    }

    /// Makes sure that a QP's timer fires by its transport's deadline, also if it is queued: its
    /// port may be slow to give it its turn.
    pub(crate) fn arm(&mut self, slot: u32, qp: &Qp) {
        let deadline = qp.transport.deadline();
        if deadline != Time::NEVER && self.timers.deadline(slot).is_none_or(|set| deadline < set) {
            self.timers.set(slot, deadline);
        }
    }

    /// A QP's turn begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self, qp: &mut Qp) {
        qp.standing.queued = false;
    }

    /// Puts a QP that has had its turn where it belongs. If it is the batch that was over, not the
    /// turn, the next batch begins with it: who stops amid a message in order to wait in line has
    /// not asked for an acknowledgement.
    pub(crate) fn end_turn(&mut self, slot: u32, qp: &mut Qp, progress: Progress, full: bool) {
        let goes_on = progress == Progress::More && full;
        if progress == Progress::More {
            qp.standing.queued = true;
            if goes_on {
                self.ready.push_front(slot);
            } else {
                self.ready.push_back(slot);
            }
        }
        if let Some(path) = qp.core.limits.path {
            match (core::mem::replace(&mut qp.core.limits.called, goes_on), goes_on) {
                (true, false) => self.paths.served(path),
                (false, true) => self.paths.recalled(path),
                _ => {}
            }
            if progress != Progress::PathFull {
                self.paths.wake_next(path);
            } else if !core::mem::replace(&mut qp.standing.waiting, true) {
                self.paths.wait(path, slot);
            }
        }
        self.rearm(slot, qp);
    }

    /// Gives turns to QPs for which their path has room again.
    #[inline]
    pub(crate) fn wake_waiters(&mut self, qps: &mut [Option<Box<Qp>>]) {
        while let Some(slot) = self.paths.pop_woken() {
            let Some(qp) = qps[slot as usize].as_mut() else {
                continue;
            };
            qp.standing.waiting = false;
            // A QP that goes on for other reasons may have been in line as well: it is called once.
            if let Some(path) = qp.core.limits.path
                && core::mem::replace(&mut qp.core.limits.called, true)
            {
                self.paths.served(path);
            }
            self.make_ready(slot, qp);
        }
    }
}

impl Qp {
    /// Leaves the path to its peer: the line for its window, and all that the QP has in flight
    /// there.
    pub(crate) fn leave_path(&mut self, paths: &mut PathTable) {
        let Some(path) = self.core.limits.path else { return };
        self.transport.release_charge(&self.core, paths);
        let called = core::mem::take(&mut self.core.limits.called);
        paths.forget(path, self.core.index, called);
        paths.release(path);
        self.core.limits.path = None;
        self.standing.waiting = false;
    }
}
