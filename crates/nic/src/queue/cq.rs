//! Completion queues: bounded rings, with notification and overflow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_wire::Qpn;

use crate::counters::Counters;
use crate::error::ControlError;
use crate::events::EventQueue;
use crate::types::{Completion, CqId, Event, WcStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Any,
    Solicited,
}

/// How many completions a queue holds, for users without access to the engine. It has a cache line
/// to itself, and lags behind whatever the engine's owner is doing right now.
#[derive(Clone, Debug)]
pub struct CqLevel(Arc<Padded>);

/// Two cache lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

impl CqLevel {
    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn set(&self, completions: usize) {
        self.0.0.store(completions, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Cq {
    ring: VecDeque<Completion>,
    level: CqLevel,
    depth: usize,
    armed: Armed,
    overflowed: bool,
    /// QPs that use this queue.
    users: u32,
}

/// All completion queues of a NIC.
#[derive(Debug)]
pub(crate) struct CqTable {
    slots: Vec<Option<Cq>>,
    max: u32,
    /// Queues that overflowed since the last check; their QPs must go to the error state.
    overflows: Vec<CqId>,
}

impl CqTable {
    pub(crate) fn new(max: u32) -> CqTable {
        CqTable { slots: Vec::new(), max, overflows: Vec::new() }
    }

    pub(crate) fn create(&mut self, depth: u32) -> Result<CqId, ControlError> {
        let cq = Cq {
            ring: VecDeque::with_capacity(depth as usize),
            level: CqLevel(Arc::default()),
            depth: depth as usize,
            armed: Armed::No,
            overflowed: false,
            users: 0,
        };
        let limit = u64::from(self.max);
        let full = ControlError::Exhausted { what: "completion queues", limit };
        super::insert(&mut self.slots, self.max, cq).map(CqId).ok_or(full)
    }

    /// Changes the depth to one that fits the completions held.
    pub(crate) fn resize(&mut self, id: CqId, depth: u32) -> Result<(), ControlError> {
        let (cq, depth) = (self.get(id)?, depth as usize);
        if cq.ring.len() > depth {
            let why = "more completions wait in the queue";
            return Err(ControlError::Invalid { what: "completion queue depth", why });
        }
        // Allocated now, so that no completion has to allocate.
        cq.ring.reserve(depth - cq.ring.len());
        cq.depth = depth;
        Ok(())
    }

    pub(crate) fn level(&mut self, id: CqId) -> Result<CqLevel, ControlError> {
        Ok(self.get(id)?.level.clone())
    }

    pub(crate) fn destroy(&mut self, id: CqId) -> Result<(), ControlError> {
        if self.get(id)?.users > 0 {
            return Err(ControlError::Busy { what: "the completion queue" });
        }
        self.slots[id.0 as usize] = None;
        Ok(())
    }

    pub(crate) fn hold(&mut self, id: CqId) -> Result<(), ControlError> {
        self.get(id)?.users += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, id: CqId) {
        if let Ok(cq) = self.get(id) {
            cq.users = cq.users.saturating_sub(1);
        }
    }

    /// Asks for one [`Event::CqNotify`] at the next completion.
    ///
    /// As with hardware, completions already in the queue raise nothing: poll again after arming.
    pub(crate) fn arm(&mut self, id: CqId, solicited_only: bool) -> Result<(), ControlError> {
        let cq = self.get(id)?;
        // Arming for any completion is stronger: a later solicited-only request must not weaken it.
        if !(solicited_only && cq.armed == Armed::Any) {
            cq.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn poll(&mut self, id: CqId, out: &mut [Completion]) -> Result<usize, ControlError> {
        let Cq { ring, level, .. } = self.get(id)?;
        let n = ring.len().min(out.len());
        for (slot, completion) in out.iter_mut().zip(ring.drain(..n)) {
            *slot = completion;
        }
        if n > 0 {
            level.set(ring.len());
        }
        Ok(n)
    }

    /// Adds a completion. A full queue drops it, reports that once, and is in error from then on.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        id: CqId,
        completion: Completion,
        counters: &mut Counters,
        events: &mut EventQueue,
    ) {
        counters.completions += 1;
        if completion.status != WcStatus::Success {
            counters.completion_errors += 1;
        }
        let Ok(cq) = self.get(id) else { return };
        if cq.overflowed || cq.ring.len() >= cq.depth {
            counters.cq_overflows += 1;
            if !cq.overflowed {
                cq.overflowed = true;
                self.overflows.push(id);
                events.push(Event::CqOverflow(id), counters);
            }
            return;
        }
        cq.ring.push_back(completion);
        cq.level.set(cq.ring.len());
        let raise = match cq.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => completion.solicited || completion.status != WcStatus::Success,
        };
        if raise {
            cq.armed = Armed::No;
            events.push(Event::CqNotify(id), counters);
        }
    }

    /// Whether a queue's overflow waits to be handled.
    #[inline]
    pub(crate) fn has_overflow(&self) -> bool {
        !self.overflows.is_empty()
    }

    /// A queue whose overflow has not been handled yet.
    #[inline]
    pub(crate) fn take_overflow(&mut self) -> Option<CqId> {
        self.overflows.pop()
    }

    /// Takes out a QP's unpolled completions.
    pub(crate) fn extract(&mut self, id: CqId, qpn: Qpn) -> Vec<Completion> {
        let Ok(cq) = self.get(id) else { return Vec::new() };
        let mut taken = Vec::new();
        cq.ring.retain(|completion| {
            let stays = completion.qpn != qpn;
            if !stays {
                taken.push(*completion);
            }
            stays
        });
        cq.level.set(cq.ring.len());
        taken
    }

    /// Removes the completions of a QP that is reset or destroyed.
    pub(crate) fn purge(&mut self, id: CqId, qpn: Qpn) {
        if let Ok(cq) = self.get(id) {
            cq.ring.retain(|c| c.qpn != qpn);
            cq.level.set(cq.ring.len());
        }
    }

    #[inline]
    fn get(&mut self, id: CqId) -> Result<&mut Cq, ControlError> {
        self.slots
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(ControlError::NotFound { what: "completion queue" })
    }
}
