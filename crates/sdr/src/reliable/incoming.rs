//! A message being received.

use bowline_nic::{Sge, Time};

use super::outgoing::parity_sge;
use super::scratch::Scratch;
use super::shape::Shape;
use super::stripe::Memory;
use super::wire::Begin;
use crate::qp::SdrQp;
use crate::recv::RecvHandle;
use crate::scheme::SchemeReceiver;

pub(super) struct Incoming {
    pub(super) id: u64,
    pub(super) memory: Memory,
    pub(super) capacity: u64,
    /// One per place of the message; `None` where nothing is expected.
    pub(super) handles: Vec<Option<RecvHandle>>,
    /// The last place where something has arrived.
    pub(super) top: usize,
    pub(super) has_parity_subs: bool,
    pub(super) parity: Option<Scratch>,
    /// What the sender has announced about it.
    pub(super) begun: Option<(Begin, Shape)>,
    /// Taken out while it is called.
    pub(super) machine: Option<Box<dyn SchemeReceiver>>,
    pub(super) timer: Option<Time>,
    /// When something of it last arrived.
    pub(super) heard: Time,
    pub(super) complete: bool,
    /// Chunks that were reconstructed.
    pub(super) recovered: u64,
}

impl Incoming {
    /// When something is due.
    pub(super) fn due(&self, timeout_ns: u64) -> Time {
        let idle = self.begun.is_some().then(|| self.heard.plus_nanos(timeout_ns));
        [self.timer, idle].into_iter().flatten().min().unwrap_or(Time::NEVER)
    }

    pub(super) fn data_sub(&self, group: u32) -> usize {
        group as usize * (1 + usize::from(self.has_parity_subs))
    }

    /// The last group of which something has arrived.
    pub(super) fn top_group(&self) -> u32 {
        (self.top / self.data_sub(1)) as u32
    }

    pub(super) fn parity_sub(&self, group: u32) -> usize {
        if self.has_parity_subs { self.data_sub(group) + 1 } else { usize::MAX }
    }

    /// Where a parity chunk lands.
    pub(super) fn parity_sge(&self, shape: &Shape, group: u32, index: u32) -> Option<Sge> {
        parity_sge(self.parity.as_ref()?, shape, group, index)
    }

    /// Counts as arrived what a message that is shorter than its buffer leaves out of its last
    /// chunks.
    pub(super) fn fill(&self, sdr: &SdrQp, shape: &Shape) {
        let chunk_bytes = u64::from(shape.chunk_bytes);
        let fill = |sub: usize, from: u64, to: u64| {
            if let Some(handle) = self.handles.get(sub).copied().flatten() {
                let from = from.next_multiple_of(shape.mtu.into());
                // It is open as long as the message is not complete.
                let _ = sdr.recv_fill(handle, from, to.saturating_sub(from));
            }
        };
        let last = shape.groups() - 1;
        let data = shape.group_bytes(last);
        let data = data.end - data.start;
        fill(self.data_sub(last), data.max(1), data.max(1).next_multiple_of(chunk_bytes));
        for index in 0..u64::from(shape.parity_chunks(last)) {
            let start = index * chunk_bytes;
            let used = u64::from(shape.parity_bytes(last)).max(shape.mtu.into());
            fill(self.parity_sub(last), start + used, start + chunk_bytes);
        }
    }
}
