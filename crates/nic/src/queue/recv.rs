//! Receive queues.

use crate::error::PostError;
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
