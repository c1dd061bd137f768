//! Receive queues.

use crate::error::PostError;
use crate::sched::Timers;
use crate::time::Time;
use crate::types::{RecvWr, Sge};

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
    numbered: Numbered,
}

/// State of a queue whose receives are named by number in messages, instead of being consumed
/// oldest first.
#[derive(Debug, Default)]
struct Numbered {
    /// By place: the receive's deadline, until it ends. Empty unless receives are numbered.
    deadlines: Box<[Option<Time>]>,
    /// By place: receives that end by a deadline.
    timers: Option<Box<Timers>>,
    /// Number of the oldest receive.
    head: u32,
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
            numbered: Numbered::default(),
        }
    }

    /// Lets receives be named by number: see [`RecvQueue::find`].
    pub(crate) fn with_numbers(mut self) -> RecvQueue {
        self.numbered.deadlines = vec![None; self.capacity as usize].into();
        self
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
        if let Some(deadline) = self.numbered.deadlines.get_mut(at) {
            *deadline = Some(wr.deadline);
            if wr.deadline != Time::NEVER {
                let timers = self.numbered.timers.get_or_insert_default();
                timers.set(at as u32, wr.deadline);
            }
        }
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

    /// Puts a receive that was taken back in its old place.
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

    /// Changes the capacity; `false` if the pending receives do not fit. Not for numbered ones.
    pub(crate) fn resize(&mut self, capacity: u32) -> bool {
        if capacity < self.len {
            return false;
        }
        let mut other = RecvQueue::new(capacity, self.max_sge as u8);
        let mut wqe = RecvWqe::default();
        while self.take(&mut wqe) {
            // The new queue has space for them, and for lists as long.
            let _ = other.post(&RecvWr::new(wqe.wr_id, &wqe.sges));
        }
        *self = other;
        true
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.head = 0;
        self.len = 0;
        self.numbered.head = 0;
        self.numbered.timers = None;
    }
}

/// The numbers of the receives on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    /// Number of the oldest receive.
    pub(crate) head: u32,
    /// Number of the next one to be posted.
    pub(crate) tail: u32,
}

/// Numbered receives. They end in any order; their places are freed in order.
impl RecvQueue {
    /// Advances the numbers by `by`.
    pub(crate) fn shift_numbers(&mut self, by: u32) {
        self.numbered.head = self.numbered.head.wrapping_add(by);
    }

    /// Which numbers are on the queue.
    #[inline]
    pub(crate) fn numbers(&self) -> Numbering {
        let head = self.numbered.head;
        Numbering { head, tail: head.wrapping_add(self.len) }
    }

    /// Place of a receive that has not ended.
    #[inline]
    pub(crate) fn find(&self, number: u32) -> Option<usize> {
        let ahead = number.wrapping_sub(self.numbered.head);
        if ahead >= self.len {
            return None;
        }
        let at = ((self.head + ahead) % self.capacity) as usize;
        self.numbered.deadlines.get(at)?.is_some().then_some(at)
    }

    /// The scatter list of the receive at a place.
    #[inline]
    pub(crate) fn sges_at(&self, at: usize) -> &[Sge] {
        &self.sges[at * self.max_sge..][..self.counts[at] as usize]
    }

    /// The earliest deadline of a receive.
    pub(crate) fn next_deadline(&self) -> Time {
        let timers = self.numbered.timers.as_ref();
        timers.and_then(|timers| timers.next()).unwrap_or(Time::NEVER)
    }

    /// Number of a receive whose deadline has passed. Each is returned once.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let at = self.numbered.timers.as_mut()?.pop_due(now)?;
        let ahead = (at + self.capacity - self.head) % self.capacity;
        Some(self.numbered.head.wrapping_add(ahead))
    }

    /// Place of the oldest unfinished receive posted under a `wr_id`.
    pub(crate) fn find_id(&self, wr_id: u64) -> Option<usize> {
        let places = (0..self.len).map(|ahead| ((self.head + ahead) % self.capacity) as usize);
        let open = |at: &usize| self.numbered.deadlines.get(*at).is_some_and(Option::is_some);
        places.filter(open).find(|at| self.wr_ids[*at] == wr_id)
    }

    /// Makes the receive at a place end no later than this.
    pub(crate) fn hasten(&mut self, at: usize, deadline: Time) {
        if let Some(set) = &mut self.numbered.deadlines[at] {
            *set = deadline.min(*set);
            self.numbered.timers.get_or_insert_default().set(at as u32, *set);
        }
    }

    /// Ends the receive at a place; returns its `wr_id`.
    pub(crate) fn end(&mut self, at: usize) -> u64 {
        let wr_id = self.wr_ids[at];
        self.numbered.deadlines[at] = None;
        if let Some(timers) = &mut self.numbered.timers {
            timers.remove(at as u32);
        }
        while self.len > 0 && self.numbered.deadlines[self.head as usize].is_none() {
            self.head = (self.head + 1) % self.capacity;
            self.len -= 1;
            self.numbered.head = self.numbered.head.wrapping_add(1);
        }
        wr_id
    }
}
