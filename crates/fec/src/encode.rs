//! The sending half: XORs the packets of each block as they go out, and sends the sums after them.

use bowline_nic::{Mtu, Run, ShimOut};
use bowline_wire::{Bth, OpcodeInfo, Psn, RepairHeader};

use crate::counters::{FecCounters, bump};
use crate::negotiate::Identity;
use crate::params::{MAX_LANES, Params};
use crate::pool::Pool;
use crate::symbol::Unit;

/// Repairs that wait for space in a batch: those of two blocks. If there are more, the oldest have
/// waited too long to be useful.
const MAX_READY: usize = 2 * MAX_LANES as usize;

/// Codes one of a connection's two streams: its requests, or its responses to the peer's.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// It consists of responses to the peer's requests.
    response: bool,
    mtu: Mtu,
    /// PSN after the last packet sent.
    next: Option<Psn>,
    block: Option<Block>,
    /// Units of the block, by lane, followed by spare ones.
    units: Vec<Unit>,
    ready: Vec<Ready>,
    /// The message of the last block continues.
    goes_on: bool,
    generation: u8,
}

#[derive(Debug)]
struct Block {
    params: Params,
    base: Psn,
    count: u8,
    lane: u8,
    has_first: bool,
    /// The pool had no unit for one of its lanes.
    unprotected: bool,
}

/// A packet that was sent.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) header: &'a [u8],
    pub(crate) payload: &'a [u8],
}

#[derive(Debug)]
struct Ready {
    header: RepairHeader,
    unit: Unit,
}

impl Encoder {
    pub(crate) fn new(response: bool) -> Encoder {
        Encoder {
            response,
            mtu: Mtu::B256,
            next: None,
            block: None,
            units: Vec::new(),
            ready: Vec::new(),
            goes_on: false,
            generation: 0,
        }
    }

    pub(crate) fn start(&mut self, mtu: Mtu) {
        self.mtu = mtu;
        self.units.reserve(MAX_LANES.into());
        self.ready.reserve(MAX_READY);
    }

    pub(crate) fn stop(&mut self, pool: &Pool) {
        self.abandon();
        self.release(pool);
        for ready in self.ready.drain(..) {
            ready.unit.give(pool, self.mtu);
        }
        self.next = None;
        self.generation = 0;
    }

    /// Whether repairs wait to be sent.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Packets still missing from the current block.
    #[inline]
    pub(crate) fn block_left(&self) -> Option<u32> {
        let block = self.block.as_ref()?;
        Some(u32::from(block.params.r() - block.count))
    }

    /// Codes packets of a run from `at` on, where a middle packet is, if they resemble the block's
    /// earlier ones, as most do. Returns how many.
    #[inline]
    pub(crate) fn add_alike(&mut self, run: &Run<'_>, at: usize, pool: &Pool) -> usize {
        let (Some(block), Some(next)) = (&mut self.block, self.next) else { return 0 };
        let (r, c) = (block.params.r(), block.params.c());
        // The first packets of a block initialize its units.
        if block.count < c || block.unprotected {
            return 0;
        }
        let Some(unit) = self.units.get_mut(usize::from(block.lane)) else { return 0 };
        // Consecutive packets share a lane only if there is just one.
        let most = if c == 1 { usize::from(r - block.count) } else { 1 };
        let added = unit.add_run(run, at, most, next);
        if added > 0 {
            block.count += added as u8;
            block.lane = if block.lane + 1 >= c { 0 } else { block.lane + 1 };
            self.next = Some(next.add(added as u32));
            if block.count == r {
                self.finish(None, pool);
            }
        }
        added
    }

    /// Records an outgoing packet, `span` PSNs long, and codes it if there is a code.
    #[inline(never)]
    pub(crate) fn add(
        &mut self,
        packet: Packet<'_>,
        info: &OpcodeInfo,
        psn: Psn,
        span: u32,
        params: Option<Params>,
        shared: (&Pool, &FecCounters),
    ) {
        if self.next != Some(psn) {
            self.jump(psn);
        }
        self.next = Some(psn.add(span));
        if info.position.starts() {
            self.abandon();
        }
        if self.block.is_none() {
            let Some(params) = params else { return };
            let has_first = info.position.starts();
            let (count, lane, unprotected) = (0, 0, false);
            self.block = Some(Block { params, base: psn, count, lane, has_first, unprotected });
        }
        self.code(packet, shared);
        let Some(block) = &self.block else { return };
        if info.position.ends() || block.count == block.params.r() {
            let last_len = info.position.ends().then_some(packet.payload.len());
            self.finish(last_len, shared.0);
        }
    }

    /// The packet does not follow the previous one: it is a retransmission, or the PSNs between are
    /// not in this stream.
    #[cold]
    fn jump(&mut self, psn: Psn) {
        self.abandon();
        if self.next.is_some_and(|next| psn.before(next)) {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// Drops a block that will not be finished.
    fn abandon(&mut self) {
        self.block = None;
    }

    fn code(&mut self, packet: Packet<'_>, (pool, counters): (&Pool, &FecCounters)) {
        let Some(block) = &mut self.block else { return };
        let lane = usize::from(block.lane);
        let is_new = block.count < block.params.c();
        block.count += 1;
        block.lane = if block.lane + 1 == block.params.c() { 0 } else { block.lane + 1 };
        if is_new && self.units.len() <= lane {
            match Unit::take(pool, self.mtu) {
                Some(unit) => self.units.push(unit),
                None if !block.unprotected => {
                    bump(&counters.unprotected);
                    block.unprotected = true;
                }
                None => {}
            }
        }
        if block.unprotected {
            return;
        }
        if let Some(unit) = self.units.get_mut(lane) {
            if is_new {
                unit.clear();
            }
            unit.add_outgoing(packet.header, packet.payload);
        }
    }

    /// The block is complete: its units become repairs. Units that the next block of the message
    /// needs stay; at the end of the message they return to the pool.
    fn finish(&mut self, last_len: Option<usize>, pool: &Pool) {
        let Some(block) = self.block.take() else { return };
        let lanes = block.count.min(block.params.c());
        if !block.unprotected {
            for (isn, unit) in (0..lanes).zip(self.units.drain(..usize::from(lanes))) {
                let header = RepairHeader {
                    response: self.response,
                    has_first: block.has_first,
                    has_last: last_len.is_some(),
                    r: block.params.r(),
                    c: block.params.c(),
                    isn,
                    base: block.base,
                    count: block.count,
                    last_len: last_len.unwrap_or(0) as u16,
                    generation: self.generation,
                    ..RepairHeader::default()
                };
                if self.ready.len() == MAX_READY {
                    self.ready.remove(0).unit.give(pool, self.mtu);
                }
                self.ready.push(Ready { header, unit });
            }
        }
        self.goes_on = last_len.is_none();
        if !self.goes_on {
            self.release(pool);
        }
    }

    fn release(&mut self, pool: &Pool) {
        for unit in self.units.drain(..) {
            unit.give(pool, self.mtu);
        }
    }

    /// Sends repairs as far as there is space.
    pub(crate) fn flush(
        &mut self,
        peer: &Identity,
        ecn: u8,
        out: &mut ShimOut<'_>,
        (pool, counters): (&Pool, &FecCounters),
    ) {
        let count = self.ready.len().min(out.room());
        for mut ready in self.ready.drain(..count) {
            let payload = ready.unit.repair(&mut ready.header);
            let header = peer.repair_header(&ready.header, payload.len());
            if ready.header.has_last {
                out.send_copy(&header, payload, ecn);
            } else {
                // Only more packets of the same message can delay it.
                out.send_late(&header, payload, ecn);
            }
            bump(&counters.repairs_sent);
            // A message that continues needs it again at once.
            if self.block.is_none() && self.goes_on {
                self.units.push(ready.unit);
            } else {
                ready.unit.give(pool, self.mtu);
            }
        }
    }
}

/// The PSN in a header that begins with a BTH.
#[inline]
pub(crate) fn psn_of(header: &[u8]) -> Psn {
    match header.first_chunk::<{ Bth::LEN }>() {
        Some(bth) => Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]])),
        None => Psn::new(0),
    }
}
