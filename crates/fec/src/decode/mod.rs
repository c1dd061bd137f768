//! The receiving half: follows a stream of packets, and fills its gaps from repairs.
//!
//! Packets in order go straight up and are XORed lane by lane, as at the sender: the units hold the
//! sum of what has arrived of the block. From the first gap on, packets are held instead; if a
//! repair's lane misses one packet, that packet is the XOR of the repair, the unit and the held
//! packets of the lane.

mod alike;
mod expect;
mod loss;
mod restore;

use bowline_nic::{MAX_LATE, Mtu, Time};
use bowline_wire::{PacketView, Psn, Qpn, RepairHeader, Service};

use self::alike::Alike;
use self::expect::Expected;
pub(crate) use self::expect::{read_span, span_of};
pub(crate) use self::loss::Losses;
use crate::counters::{FecCounters, add, bump};
use crate::params::{MAX_BLOCK, MAX_LANES, Params};
use crate::pool::Pool;
use crate::reorder::Held;
use crate::symbol::Unit;

/// The context of a decoder call.
#[derive(Clone, Copy)]
pub(crate) struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) hold_ns: u64,
    pub(crate) pool: &'a Pool,
    pub(crate) counters: &'a FecCounters,
}

/// Most PSNs between the next packet and any other that belongs to the same connection: a gap is
/// given up before this many packets have arrived after it, whatever the code. A packet further
/// away was forged, or the decoder is out of sync.
pub(crate) const REACH: u32 = 2 * MAX_BLOCK as u32 + MAX_LANES as u32 + MAX_LATE;

/// Hands a packet to the transport.
pub(crate) type Up<'a> = &'a mut dyn FnMut(&PacketView<'_>);

/// Follows one of a connection's two streams: the peer's requests, or its responses to ours.
#[derive(Debug)]
pub(crate) struct Decoder {
    response: bool,
    service: Service,
    mtu: Mtu,
    /// The next packet; `None` if none is expected.
    next: Option<Psn>,
    alike: Alike,
    /// Outstanding responses; unused for requests, which follow each other without end.
    expected: Expected,
    /// The gap at `next` was passed on: nothing is held until the packet comes again.
    given_up: bool,
    /// The peer's code, as far as known.
    coding: Option<Params>,
    generation: u8,
    block: Block,
    /// Sums of the block's lanes, up to `next`.
    units: Vec<Unit>,
    held: Held,
    /// When to give up on a gap.
    deadline: Time,
    /// The packets missing after `next` are already counted.
    counted: bool,
    pub(crate) losses: Losses,
}

/// The block that `next` lies in.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    base: Psn,
    count: u8,
    lane: u8,
    r: u8,
    c: u8,
    generation: u8,
    has_first: bool,
    /// It continues.
    open: bool,
    /// Its units hold exactly its packets, each sent once.
    exact: bool,
    /// It begins with a retransmitted packet.
    again: bool,
}

impl Decoder {
    pub(crate) fn new(response: bool) -> Decoder {
        Decoder {
            response,
            service: Service::Rc,
            mtu: Mtu::B256,
            next: None,
            alike: Alike::none(),
            expected: Expected::default(),
            given_up: false,
            coding: None,
            generation: 0,
            block: Block::default(),
            units: Vec::new(),
            held: Held::default(),
            deadline: Time::NEVER,
            counted: false,
            losses: Losses::default(),
        }
    }

    /// A connection begins; requests begin with `next`.
    pub(crate) fn start(&mut self, service: Service, mtu: Mtu, next: Option<Psn>) {
        (self.service, self.mtu, self.next) = (service, mtu, next);
        self.units.reserve(MAX_LANES.into());
    }

    pub(crate) fn stop(&mut self, pool: &Pool) {
        self.release_units(pool);
        self.held.clear(pool, self.mtu);
        let units = core::mem::take(&mut self.units);
        let expected = core::mem::take(&mut self.expected);
        *self = Decoder { units, ..Decoder::new(self.response) };
        self.expected = expected.cleared();
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Time {
        self.deadline
    }

    /// The packet that comes next.
    pub(crate) fn next(&self) -> Option<Psn> {
        self.place().0
    }

    /// The code that the peer announces from now on.
    pub(crate) fn set_coding(&mut self, coding: Option<Params>) {
        self.catch_up();
        self.coding = coding;
    }

    /// A request was sent that expects `psns` responses.
    pub(crate) fn expect(&mut self, psn: Psn, psns: u32, pool: &Pool) {
        self.catch_up();
        if self.expected.add(psn, psns) {
            if self.next.is_none() {
                self.next = self.expected.first();
            }
            return;
        }
        // It is requested again, and what is left of the earlier responses is useless.
        self.held.clear(pool, self.mtu);
        self.expected.restart(psn, psns);
        self.next = Some(psn);
        self.given_up = false;
        self.counted = false;
        self.deadline = Time::NEVER;
        self.block = Block { again: true, ..Block::default() };
    }

    /// A packet of the stream, `span` PSNs long. Returns whether the deadline may have changed.
    pub(crate) fn on_packet(
        &mut self,
        cx: Cx<'_>,
        packet: &PacketView<'_>,
        span: u32,
        up: Up<'_>,
    ) -> bool {
        self.catch_up();
        if self.next == Some(packet.psn()) && self.deadline == Time::NEVER && !self.given_up {
            self.accept(cx, packet, span);
            self.expect_alike(packet);
            up(packet);
            return false;
        }
        self.out_of_order(cx, packet, span, up)
    }

    /// Whether a repair would change nothing: its block has arrived completely, and it carries no
    /// news.
    pub(crate) fn has_no_use_for(&self, repair: &RepairHeader) -> bool {
        let (next, open) = self.place();
        let end = repair.base.add(repair.count.into());
        let known = self.coding.is_some_and(|known| (known.r(), known.c()) == (repair.r, repair.c))
            && self.generation == repair.generation;
        let ends_ours = repair.has_last || !open;
        let behind = next.is_some_and(|next| next.after(end) || (next == end && ends_ours));
        known && behind && !self.given_up && (1..=repair.r).contains(&repair.count)
    }

    /// Handles the packet at `next`.
    #[inline(never)]
    fn accept(&mut self, cx: Cx<'_>, packet: &PacketView<'_>, span: u32) {
        let psn = packet.psn();
        self.losses.expected = self.losses.expected.wrapping_add(1);
        if let Some(coding) = self.coding {
            let position = packet.info().position;
            if position.starts() || !self.block.open {
                self.begin(psn, position.starts(), coding);
            }
            self.sum_up(cx, packet);
            if position.ends() || self.block.count >= self.block.r {
                self.block.open = false;
                if position.ends() {
                    self.release_units(cx.pool);
                }
            }
        }
        self.next = if self.response { self.expected.advance(psn) } else { Some(psn.add(span)) };
    }

    fn begin(&mut self, psn: Psn, has_first: bool, coding: Params) {
        let again = self.block.again;
        self.block = Block {
            base: psn,
            count: 0,
            lane: 0,
            r: coding.r(),
            c: coding.c(),
            generation: self.generation.wrapping_add(again.into()),
            has_first,
            open: true,
            exact: true,
            again: false,
        };
    }

    #[inline]
    fn sum_up(&mut self, cx: Cx<'_>, packet: &PacketView<'_>) {
        let block = &mut self.block;
        let (lane, is_new) = (usize::from(block.lane), block.count < block.c);
        block.count = block.count.saturating_add(1);
        block.lane = if block.lane + 1 >= block.c { 0 } else { block.lane + 1 };
        if !block.exact {
            return;
        }
        if self.units.len() <= lane {
            match Unit::take(cx.pool, self.mtu) {
                Some(unit) => self.units.push(unit),
                None => {
                    bump(&cx.counters.unprotected);
                    block.exact = false;
                    return;
                }
            }
        }
        let unit = &mut self.units[lane];
        if packet.payload().len() > self.mtu.bytes() as usize {
            // The transport will refuse it.
            block.exact = false;
            return;
        }
        if is_new {
            unit.clear();
        }
        unit.add_packet(packet);
    }

    #[cold]
    fn out_of_order(&mut self, cx: Cx<'_>, packet: &PacketView<'_>, span: u32, up: Up<'_>) -> bool {
        let psn = packet.psn();
        let Some(next) = self.next else {
            up(packet);
            return false;
        };
        let ahead = psn.diff(next);
        if ahead < -(REACH as i32) && self.service == Service::Uc {
            return self.return_to(cx, packet, span, up);
        }
        if ahead < 0 {
            // A duplicate, or the sender has gone back further than we know: the packets in the sum
            // may have been sent with other flags than those that come now.
            self.block.exact = false;
            up(packet);
            return false;
        }
        if ahead == 0 {
            if core::mem::take(&mut self.given_up) {
                self.block = Block { again: true, ..Block::default() };
            }
            self.accept(cx, packet, span);
            up(packet);
            self.drain(cx, up);
            return true;
        }
        if self.given_up {
            up(packet);
            return false;
        }
        if self.coding.is_none() {
            return self.pass_gap(cx, packet, ahead as u32, span, up);
        }
        self.hold(cx, packet, false, up);
        true
    }

    /// An unreliable sender never goes back, and no packet is reordered that far: whatever made the
    /// decoder jump ahead did not come from the sender. It resumes where the sender is.
    fn return_to(&mut self, cx: Cx<'_>, packet: &PacketView<'_>, span: u32, up: Up<'_>) -> bool {
        if !self.held.is_empty() {
            self.give_up(cx, up);
        }
        self.deadline = Time::NEVER;
        self.block = Block::default();
        self.next = Some(packet.psn());
        self.accept(cx, packet, span);
        up(packet);
        true
    }

    /// Without repairs to wait for, a gap is passed up at once.
    fn pass_gap(
        &mut self,
        cx: Cx<'_>,
        packet: &PacketView<'_>,
        psns: u32,
        span: u32,
        up: Up<'_>,
    ) -> bool {
        let missing = self.gap_len(psns);
        self.losses.on_burst(missing);
        self.losses.unrepaired = self.losses.unrepaired.wrapping_add(missing);
        add(&cx.counters.unrecoverable, missing.into());
        if self.service == Service::Uc {
            self.next = Some(packet.psn());
            self.accept(cx, packet, span);
        } else {
            self.given_up = true;
        }
        up(packet);
        true
    }

    /// Handles an acknowledgement. It must not overtake responses, which it would make look lost.
    #[inline]
    pub(crate) fn on_ack(&mut self, cx: Cx<'_>, packet: &PacketView<'_>, up: Up<'_>) -> bool {
        self.catch_up();
        let waits = !self.given_up
            && self.coding.is_some()
            && self.next.is_some_and(|next| packet.psn().after(next));
        if waits {
            self.hold(cx, packet, true, up);
        } else {
            up(packet);
        }
        waits
    }

    fn hold(&mut self, cx: Cx<'_>, packet: &PacketView<'_>, is_ack: bool, up: Up<'_>) {
        bump(&cx.counters.held);
        self.deadline = cx.now.plus_nanos(cx.hold_ns);
        if !self.held.insert(cx.pool, self.mtu, packet, is_ack) {
            self.give_up(cx, up);
            up(packet);
            return;
        }
        if self.is_overdue() {
            self.give_up(cx, up);
        }
    }

    /// Whether the repairs for the gap at `next` are overdue: they follow a block of at most `r`
    /// packets, some more may overtake them, and as much as a further block has arrived after it.
    fn is_overdue(&self) -> bool {
        let (Some(next), Some(last), Some(coding)) = (self.next, self.held.last_psn(), self.coding)
        else {
            return true;
        };
        let waits = 2 * u32::from(coding.r()) + u32::from(coding.c()) + MAX_LATE;
        last.diff(next) > waits as i32
    }

    /// A repair packet, sent to the QP `qpn` of ours.
    pub(crate) fn on_repair(
        &mut self,
        cx: Cx<'_>,
        header: &RepairHeader,
        body: &[u8],
        qpn: Qpn,
        up: Up<'_>,
    ) -> bool {
        self.catch_up();
        let Ok(coding) = Params::new(header.r, header.c) else {
            bump(&cx.counters.rejected);
            return false;
        };
        let in_block = (1..=header.r).contains(&header.count);
        if !in_block || header.isn >= header.count.min(header.c) {
            bump(&cx.counters.rejected);
            return false;
        }
        if self.is_out_of_reach(header.base) {
            bump(&cx.counters.rejected);
            return false;
        }
        self.coding = Some(coding);
        self.generation = header.generation;
        let Some(next) = self.next.filter(|_| !self.given_up) else {
            bump(&cx.counters.wasted);
            return false;
        };
        let end = header.base.add(header.count.into());
        if !end.after(next) {
            bump(&cx.counters.wasted);
            if end == next && !header.has_last {
                // The sender's next block begins here, whatever we assumed.
                self.block.open = false;
            }
            return false;
        }
        self.try_restore(cx, header, body, qpn, next, up)
    }

    /// Whether no honest repair can belong to a block that begins there. A reliable sender may have
    /// gone back any number of packets; no sender gets far ahead.
    fn is_out_of_reach(&self, base: Psn) -> bool {
        let Some(next) = self.next else { return false };
        let ahead = base.diff(next);
        ahead > REACH as i32 || (ahead < -(REACH as i32) && self.service == Service::Uc)
    }

    /// Hands up what is in order now.
    fn drain(&mut self, cx: Cx<'_>, up: Up<'_>) {
        while let Some(first) = self.held.first() {
            if self.next.is_some_and(|next| first.psn.after(next)) {
                break;
            }
            let Some(packet) = self.held.pop() else { break };
            if let Some(view) = packet.view() {
                if !packet.is_ack && self.next == Some(packet.psn) {
                    self.accept(cx, &view, span_of(&view, self.mtu));
                }
                up(&view);
            }
            cx.pool.give(self.mtu, packet.bytes);
        }
        if self.held.is_empty() {
            self.deadline = Time::NEVER;
            self.counted = false;
        }
    }

    /// The deadline may have come.
    pub(crate) fn handle_timeout(&mut self, cx: Cx<'_>, up: Up<'_>) {
        self.catch_up();
        if self.deadline <= cx.now {
            self.give_up(cx, up);
        }
    }

    /// Hands up what is held, gaps included. A reliable transport goes back; an unreliable one
    /// continues.
    fn give_up(&mut self, cx: Cx<'_>, up: Up<'_>) {
        self.deadline = Time::NEVER;
        bump(&cx.counters.given_up);
        let missing = self.missing();
        if !core::mem::replace(&mut self.counted, false) {
            missing.iter_bursts(|burst| self.losses.on_burst(burst));
        }
        self.losses.unrepaired = self.losses.unrepaired.wrapping_add(missing.packets);
        add(&cx.counters.unrecoverable, missing.packets.into());
        let mut behind = self.next;
        while let Some(packet) = self.held.pop() {
            if let Some(view) = packet.view() {
                if !packet.is_ack {
                    behind = Some(packet.psn.add(span_of(&view, self.mtu)));
                }
                up(&view);
            }
            cx.pool.give(self.mtu, packet.bytes);
        }
        self.block = Block::default();
        if self.service == Service::Uc {
            self.next = behind;
        } else {
            self.given_up = true;
        }
    }

    fn release_units(&mut self, pool: &Pool) {
        for unit in self.units.drain(..) {
            unit.give(pool, self.mtu);
        }
    }
}
