//! Scheduling of QPs: the ready list, pacing, the queue for a path's window, and timers.
//!
//! A QP that has something to send is in the ready list, once. Its turn ends when it has sent a
//! burst, when it has nothing more, or when something holds it back: its pacer, until a time; its
//! own window, until the peer acknowledges; the window that it shares with others ([`path`]), until
//! the path wakes it.

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

/// Packets that a QP may send before the next QP's turn: one full burst.
pub(crate) const TURN_PACKETS: u32 = 16;

/// What limits a QP's sending.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The path to the peer's engine, whose window its QPs share.
    pub(crate) path: Option<PathId>,
    /// The path has woken it: it may use the path's window in its next turn.
    pub(crate) called: bool,
    /// A window of its own, instead of a share of the path's.
    pub(crate) window: Option<u32>,
    pub(crate) pacer: Pacer,
    /// Factory of controllers for future connections.
    pub(crate) controllers: Option<Arc<dyn ControllerFactory>>,
}

/// A QP's position in the schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// In the ready list.
    queued: bool,
    /// Waiting for its path's window.
    waiting: bool,
    /// Stopped by its pacer.
    pub(crate) paced: bool,
}

impl Standing {
    /// Neither has it something to send, nor does anything hold it back.
    #[inline]
    pub(crate) fn is_idle(self) -> bool {
        !(self.queued || self.waiting || self.paced)
    }
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

    /// Whether a QP waits for its turn.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes out the QP whose turn it is.
    #[inline]
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Forgets a destroyed QP, which has left its path.
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

    /// To be called after a call has touched a QP: gives it a turn if it has something to send, or
    /// else sets its timer.
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

    /// Makes sure that a QP's timer fires no later than its deadline. If the deadline has moved
    /// later, the timer fires at the old one and is set again then.
    #[inline]
    pub(crate) fn rearm(&mut self, slot: u32, qp: &Qp) {
        let deadline = qp.deadline();
        // A queued QP gets here again after its turn.
        if deadline == Time::NEVER || qp.standing.queued {
            return;
        }
        if self.timers.deadline(slot).is_none_or(|set| deadline < set) {
            self.timers.set(slot, deadline);
        }
    }

    /// Makes sure that a QP's timer fires by its transport's deadline, even if it is queued: its
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

    /// Puts a QP that has had its turn where it belongs. If the batch was full before the turn was
    /// over, the next batch begins with this QP: a QP that stops within a message in order to wait
    /// has not asked for an acknowledgement.
    pub(crate) fn end_turn(&mut self, slot: u32, qp: &mut Qp, progress: Progress, full: bool) {
        let goes_on = progress == Progress::More && full;
        if matches!(progress, Progress::More | Progress::Copied) {
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

    /// Gives turns to the QPs whose path has window space again.
    #[inline]
    pub(crate) fn wake_waiters(&mut self, qps: &mut [Option<Box<Qp>>]) {
        while let Some(slot) = self.paths.pop_woken() {
            let Some(qp) = qps[slot as usize].as_mut() else {
                continue;
            };
            qp.standing.waiting = false;
            // A QP that became ready otherwise may have been waiting too: it is woken once.
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
    /// Leaves the path to its peer: the queue for its window, and everything that the QP has in
    /// flight on it.
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
