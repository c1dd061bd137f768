//! Receive queues, of a QP's own and shared.

use crate::counters::Counters;
use crate::error::{ControlError, PostError};
use crate::events::EventQueue;
use crate::types::{Event, PdId, RecvWr, Sge, SrqId};

/// A ring of receive work requests. Its memory is allocated once.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    wr_ids: Vec<u64>,
    counts: Vec<u8>,
    sges: Vec<Sge>,
    max_sge: usize,
    head: u32,
    len: u32,
    capacity: u32,
}

/// A receive taken off its queue. Its list lives in a buffer that the taker keeps and reuses.
#[derive(Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
}

impl RecvWqe {
    /// Bytes that it can hold.
    pub(crate) fn capacity(&self) -> u64 {
        self.sges.iter().map(|s| u64::from(s.len)).sum()
    }
}

impl RecvQueue {
    pub(crate) fn new(capacity: u32, max_sge: u8) -> RecvQueue {
        RecvQueue {
            wr_ids: vec![0; capacity as usize],
            counts: vec![0; capacity as usize],
            sges: vec![Sge::default(); capacity as usize * max_sge as usize],
            max_sge: max_sge as usize,
            head: 0,
            len: 0,
            capacity,
        }
    }

    pub(crate) fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if wr.sges.len() > self.max_sge {
            return Err(PostError::TooManySges { given: wr.sges.len(), max: self.max_sge });
        }
        if self.len >= self.capacity {
            return Err(PostError::Full);
        }
        let at = ((self.head + self.len) % self.capacity) as usize;
        self.wr_ids[at] = wr.wr_id;
        self.counts[at] = wr.sges.len() as u8;
        self.sges[at * self.max_sge..][..wr.sges.len()].copy_from_slice(wr.sges);
        self.len += 1;
        Ok(())
    }

    /// Takes the oldest request into `wqe`; `false` if there is none.
    #[inline]
    pub(crate) fn take(&mut self, wqe: &mut RecvWqe) -> bool {
        if self.len == 0 {
            return false;
        }
        let at = self.head as usize;
        wqe.wr_id = self.wr_ids[at];
        wqe.sges.clear();
        wqe.sges.extend_from_slice(&self.sges[at * self.max_sge..][..self.counts[at] as usize]);
        self.head = (self.head + 1) % self.capacity;
        self.len -= 1;
        true
    }

    /// Puts a request that was taken back to where it was.
    pub(crate) fn give_back(&mut self, wqe: &RecvWqe) {
        if self.len >= self.capacity {
            return;
        }
        self.head = (self.head + self.capacity - 1) % self.capacity;
        let at = self.head as usize;
        self.wr_ids[at] = wqe.wr_id;
        self.counts[at] = wqe.sges.len() as u8;
        self.sges[at * self.max_sge..][..wqe.sges.len()].copy_from_slice(&wqe.sges);
        self.len += 1;
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.len = 0;
    }
}

#[derive(Debug)]
struct Srq {
    queue: RecvQueue,
    pd: PdId,
    /// Raise an event when fewer than this are left; 0 for never.
    limit: u32,
    users: u32,
}

/// All shared receive queues of a NIC.
#[derive(Debug)]
pub(crate) struct SrqTable {
    slots: Vec<Option<Srq>>,
    max: u32,
}

impl SrqTable {
    pub(crate) fn new(max: u32) -> SrqTable {
        SrqTable { slots: Vec::new(), max }
    }

    pub(crate) fn create(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<SrqId, ControlError> {
        let srq = Srq { queue: RecvQueue::new(max_wr, max_sge), pd, limit: 0, users: 0 };
        let limit = u64::from(self.max);
        let full = ControlError::Exhausted { what: "shared receive queues", limit };
        super::insert(&mut self.slots, self.max, srq).map(SrqId).ok_or(full)
    }

    /// Removes a queue that no QP uses; returns its domain.
    pub(crate) fn destroy(&mut self, id: SrqId) -> Result<PdId, ControlError> {
        let srq = self.get(id)?;
        if srq.users > 0 {
            return Err(ControlError::Busy { what: "the shared receive queue" });
        }
        let pd = srq.pd;
        self.slots[id.0 as usize] = None;
        Ok(pd)
    }

    pub(crate) fn hold(&mut self, id: SrqId) -> Result<(), ControlError> {
        self.get(id)?.users += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, id: SrqId) {
        if let Ok(srq) = self.get(id) {
            srq.users = srq.users.saturating_sub(1);
        }
    }

    pub(crate) fn set_limit(&mut self, id: SrqId, limit: u32) -> Result<(), ControlError> {
        let srq = self.get(id)?;
        if limit > srq.queue.capacity {
            let why = "the limit is above the queue's size";
            return Err(ControlError::Invalid { what: "srq limit", why });
        }
        srq.limit = limit;
        Ok(())
    }

    pub(crate) fn post(&mut self, id: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.get(id).map_err(|_| PostError::NotFound)?.queue.post(wr)
    }

    /// Takes the oldest request, raising the limit event when the queue runs low.
    pub(crate) fn take(
        &mut self,
        id: SrqId,
        wqe: &mut RecvWqe,
        counters: &mut Counters,
        events: &mut EventQueue,
    ) -> bool {
        let Ok(srq) = self.get(id) else { return false };
        let taken = srq.queue.take(wqe);
        if taken && srq.queue.len() < srq.limit {
            // The standard disarms the limit once it has fired.
            srq.limit = 0;
            events.push(Event::SrqLimit(id), counters);
        }
        taken
    }

    /// Puts a request that was taken back to where it was.
    pub(crate) fn give_back(&mut self, id: SrqId, wqe: &RecvWqe) {
        if let Ok(srq) = self.get(id) {
            srq.queue.give_back(wqe);
        }
    }

    /// Takes the oldest request, whoever it is for.
    pub(crate) fn remove(&mut self, id: SrqId, wqe: &mut RecvWqe) -> Result<bool, ControlError> {
        Ok(self.get(id)?.queue.take(wqe))
    }

    /// Requests that wait.
    pub(crate) fn len(&self, id: SrqId) -> Option<u32> {
        Some(self.slots.get(id.0 as usize)?.as_ref()?.queue.len())
    }

    fn get(&mut self, id: SrqId) -> Result<&mut Srq, ControlError> {
        self.slots
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(ControlError::NotFound { what: "shared receive queue" })
    }
}
