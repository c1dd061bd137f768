//! Shared receive queues: shared by several QPs, and by several engines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recv::{RecvQueue, RecvWqe};
use crate::counters::Counters;
use crate::error::{ControlError, PostError};
use crate::events::EventQueue;
use crate::types::{CqId, Event, PdId, RecvWr, SrqId, XrcSrq, XrcdId};

/// A shared receive queue, for the engines that take from it.
///
/// The QPs that share a queue may be on several engines: lanes of one device, or the two NICs that
/// a connection moves between. All take from this one queue, under a lock of its own, so no receive
/// is ever stuck on the wrong engine. Posting takes this lock and no engine's.
#[derive(Clone, Debug)]
pub struct SharedSrq {
    inner: Arc<Mutex<SrqInner>>,
    max_sge: u8,
}

#[derive(Debug)]
struct SrqInner {
    queue: RecvQueue,
    /// Raise an event when fewer than this are left; 0 for never.
    limit: u32,
}

impl SharedSrq {
    /// A queue for `max_wr` receives of up to `max_sge` pieces of memory each. Engines take from it
    /// once they have adopted it ([`Nic::adopt_srq`](crate::Nic::adopt_srq)).
    pub fn new(max_wr: u32, max_sge: u8) -> SharedSrq {
        let inner = SrqInner { queue: RecvQueue::new(max_wr, max_sge), limit: 0 };
        SharedSrq { inner: Arc::new(Mutex::new(inner)), max_sge }
    }

    /// Posts a receive.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.lock().queue.post(wr)
    }

    /// Raises [`Event::SrqLimit`] once, on the engine whose QP takes a receive and leaves fewer
    /// than `limit`; 0 for never.
    pub fn set_limit(&self, limit: u32) -> Result<(), ControlError> {
        let mut inner = self.lock();
        if limit > inner.queue.capacity() {
            let why = "the limit is above the queue's size";
            return Err(ControlError::Invalid { what: "srq limit", why });
        }
        inner.limit = limit;
        Ok(())
    }

    /// Changes the capacity. Pending receives stay, and must fit; so must the limit.
    pub fn resize(&self, max_wr: u32) -> Result<(), ControlError> {
        let mut inner = self.lock();
        if max_wr == 0 || max_wr < inner.limit || !inner.queue.resize(max_wr) {
            let why = "its receives or its limit do not fit";
            return Err(ControlError::Invalid { what: "size of a shared receive queue", why });
        }
        Ok(())
    }

    /// Number of pending receives.
    pub fn len(&self) -> u32 {
        self.lock().queue.len()
    }

    /// Whether no receive is pending.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Capacity in receives.
    pub fn max_wr(&self) -> u32 {
        self.lock().queue.capacity()
    }

    /// Most scatter entries of one receive.
    pub fn max_sge(&self) -> u8 {
        self.max_sge
    }

    fn lock(&self) -> MutexGuard<'_, SrqInner> {
        // Nothing panics under this lock: the ring is whole even if it is poisoned.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Srq {
    shared: SharedSrq,
    pd: PdId,
    /// QPs of this engine that take from it.
    users: u32,
    /// Set for a queue that peers address by number.
    xrc: Option<XrcSrq>,
}

/// A shared receive queue that a peer has addressed, and what its messages use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addressee {
    pub(crate) srq: SrqId,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
}

/// All shared receive queues of a NIC.
#[derive(Debug)]
pub(crate) struct SrqTable {
    slots: Vec<Option<Srq>>,
    /// Queues that peers address, by number.
    numbers: BTreeMap<u32, SrqId>,
    max: u32,
}

impl SrqTable {
    pub(crate) fn new(max: u32) -> SrqTable {
        SrqTable { slots: Vec::new(), numbers: BTreeMap::new(), max }
    }

    /// Adopts a queue that another engine takes from too.
    pub(crate) fn adopt(
        &mut self,
        pd: PdId,
        shared: SharedSrq,
        xrc: Option<XrcSrq>,
    ) -> Result<SrqId, ControlError> {
        if let Some(XrcSrq { number, .. }) = xrc {
            check_number(number)?;
            if self.numbers.contains_key(&number) {
                return Err(ControlError::Busy { what: "the number of the shared receive queue" });
            }
        }
        let srq = Srq { shared, pd, users: 0, xrc };
        let limit = u64::from(self.max);
        let full = ControlError::Exhausted { what: "shared receive queues", limit };
        let id = super::insert(&mut self.slots, self.max, srq).map(SrqId).ok_or(full)?;
        if let Some(XrcSrq { number, .. }) = xrc {
            self.numbers.insert(number, id);
        }
        Ok(id)
    }

    /// The queue of a domain that a peer addresses by this number.
    pub(crate) fn addressee(&self, domain: XrcdId, number: u32) -> Option<Addressee> {
        let srq = *self.numbers.get(&number)?;
        let Srq { pd, xrc, .. } = self.slots.get(srq.0 as usize)?.as_ref()?;
        let xrc = xrc.as_ref().filter(|xrc| xrc.domain == domain)?;
        Some(Addressee { srq, pd: *pd, cq: xrc.cq })
    }

    /// A handle to the queue, for other engines to take from and for anybody to post to.
    pub(crate) fn share(&self, id: SrqId) -> Result<SharedSrq, ControlError> {
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        slot.map(|srq| srq.shared.clone()).ok_or(MISSING)
    }

    /// Removes a queue that no QP uses; returns its domain, and its completion queue if peers
    /// address it.
    pub(crate) fn destroy(&mut self, id: SrqId) -> Result<(PdId, Option<CqId>), ControlError> {
        let srq = self.get(id)?;
        if srq.users > 0 {
            return Err(ControlError::Busy { what: "the shared receive queue" });
        }
        let (pd, xrc) = (srq.pd, srq.xrc);
        self.slots[id.0 as usize] = None;
        if let Some(XrcSrq { number, .. }) = xrc {
            self.numbers.remove(&number);
        }
        Ok((pd, xrc.map(|xrc| xrc.cq)))
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
        self.get(id)?.shared.set_limit(limit)
    }

    pub(crate) fn post(&mut self, id: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.get(id).map_err(|_| PostError::NotFound)?.shared.post(wr)
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
        let mut inner = srq.shared.lock();
        let taken = inner.queue.take(wqe);
        if taken && inner.queue.len() < inner.limit {
            // The standard disarms the limit once it has fired.
            inner.limit = 0;
            drop(inner);
            events.push(Event::SrqLimit(id), counters);
        }
        taken
    }

    /// Puts a receive that was taken back in its old place.
    pub(crate) fn give_back(&mut self, id: SrqId, wqe: &RecvWqe) {
        if let Ok(srq) = self.get(id) {
            srq.shared.lock().queue.give_back(wqe);
        }
    }

    fn get(&mut self, id: SrqId) -> Result<&mut Srq, ControlError> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut).ok_or(MISSING)
    }
}

fn check_number(number: u32) -> Result<(), ControlError> {
    let why = "it has 24 bits, and is not 0";
    let invalid = ControlError::Invalid { what: "number of a shared receive queue", why };
    if (1..1 << 24).contains(&number) { Ok(()) } else { Err(invalid) }
}

const MISSING: ControlError = ControlError::NotFound { what: "shared receive queue" };
