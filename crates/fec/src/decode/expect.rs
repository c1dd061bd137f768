//! Which responses are outstanding, and how many PSNs a request uses.

use std::collections::VecDeque;

use bowline_nic::Mtu;
use bowline_wire::{OpKind, PacketView, Psn};

/// PSNs that a packet uses: a READ request uses those of its responses.
#[inline]
pub(crate) fn span_of(packet: &PacketView<'_>, mtu: Mtu) -> u32 {
    match packet.info().kind {
        OpKind::ReadRequest => packet.reth().map_or(1, |reth| read_span(reth.len, mtu)),
        _ => 1,
    }
}

/// PSNs of a READ of `len` bytes.
pub(crate) fn read_span(len: u32, mtu: Mtu) -> u32 {
    len.div_ceil(mtu.bytes()).max(1)
}

/// READs and atomics with outstanding responses, oldest first, as ranges of PSNs.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    ranges: VecDeque<(Psn, Psn)>,
}

/// As many as a QP may have outstanding.
const MAX_RANGES: usize = 256;

impl Expected {
    pub(crate) fn cleared(mut self) -> Expected {
        self.ranges.clear();
        self
    }

    /// The first outstanding response.
    pub(crate) fn first(&self) -> Option<Psn> {
        self.ranges.front().map(|range| range.0)
    }

    /// Records a request; `false` if it, or a later one, was recorded before: a retransmission.
    pub(crate) fn add(&mut self, psn: Psn, psns: u32) -> bool {
        if self.ranges.back().is_some_and(|last| psn.before(last.1)) {
            return false;
        }
        if self.ranges.len() == MAX_RANGES {
            return false;
        }
        self.ranges.push_back((psn, psn.add(psns)));
        true
    }

    /// Only this request is outstanding.
    pub(crate) fn restart(&mut self, psn: Psn, psns: u32) {
        self.ranges.clear();
        self.ranges.push_back((psn, psn.add(psns)));
    }

    /// The response after the one at `psn`, which has arrived.
    pub(crate) fn advance(&mut self, psn: Psn) -> Option<Psn> {
        let next = psn.next();
        while self.ranges.front().is_some_and(|range| !next.before(range.1)) {
            self.ranges.pop_front();
        }
        let (start, _) = *self.ranges.front()?;
        Some(if next.before(start) { start } else { next })
    }
}
