//! Receives the peer's SENDs and WRITEs: which message a packet belongs to, where it goes, and when
//! a receive ends.

use bitflags::bitflags;
use bowline_wire::{OpKind, PacketView, Reth, XpEth};

use super::arrivals::Arrivals;
use super::layout::Layout;
use super::loss::LossRecord;
use super::{MAX_WINDOW, Xp, before};
use crate::memory::MemoryTable;
use crate::qp::{Cx, QpCore};
use crate::train::Train;
use crate::types::{Access, Completion, EndMark, WcOpcode, WcStatus};

bitflags! {
    /// What is known about a message in progress.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub(super) struct Known: u8 {
        /// There is one.
        const ACTIVE = 1;
        /// It is a WRITE.
        const WRITE = 1 << 1;
        const IMM = 1 << 2;
        const SOLICITED = 1 << 3;
        /// Its last fragment has arrived.
        const LAST = 1 << 4;
    }
}

/// A message in progress that consumes a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Slot {
    seq: u32,
    pub(super) len: u32,
    imm: u32,
    pub(super) arrivals: Arrivals,
    pub(super) known: Known,
    pub(super) stride_log2: u8,
}

impl Slot {
    /// The message that a packet belongs to.
    fn of(packet: &PacketView<'_>, eth: &XpEth) -> Slot {
        let mut known = Known::ACTIVE;
        known.set(Known::WRITE, packet.info().kind == OpKind::Write);
        known.set(Known::IMM, packet.info().has_imm);
        known.set(Known::SOLICITED, packet.solicited());
        Slot {
            seq: eth.wqe_seq,
            len: eth.len,
            imm: packet.imm().unwrap_or(0),
            arrivals: Arrivals::default(),
            known,
            stride_log2: eth.stride_log2,
        }
    }

    /// Whether a packet agrees with earlier ones about the message.
    fn agrees(&self, packet: &PacketView<'_>, eth: &XpEth) -> bool {
        let mut same = Slot::of(packet, eth);
        same.arrivals = self.arrivals;
        same.known |= self.known & Known::LAST;
        same == *self
    }
}

/// Checks that a fragment has the position and length that its message implies.
pub(super) fn check_fragment(mtu: u32, packet: &PacketView<'_>, eth: &XpEth) -> Option<Layout> {
    let layout = Layout::new(mtu, eth.len, eth.stride_log2)?;
    let (k, fragments) = (packet.psn().get(), layout.fragments());
    let fits = k < fragments
        && packet.payload().len() == layout.len_of(k) as usize
        && packet.info().position.ends() == (k + 1 == fragments);
    fits.then_some(layout)
}

/// Where the fragments of a message go.
#[derive(Clone, Copy)]
enum Target {
    /// To the receive at this place of the queue.
    Receive(usize),
    Remote(Reth),
}

/// A fragment could not be placed.
enum Refused {
    /// The peer may not write there.
    Remote,
    /// The receive's own list is not valid memory.
    Local,
}

impl Xp {
    pub(super) fn receive_message(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        eth: &XpEth,
    ) {
        let Some(layout) = check_fragment(core.mtu(), packet, eth) else {
            cx.counters.drop_malformed += 1;
            return;
        };
        if !self.admit(core, cx, eth) {
            cx.counters.drop_late += 1;
            return;
        }
        let reth = match packet.reth() {
            Some(reth) if !may_write(core, cx, &reth, eth) => {
                cx.counters.access_violations += 1;
                return;
            }
            reth => reth,
        };
        if let (Some(reth), false) = (reth, packet.info().has_imm) {
            let ends = packet.info().position.ends();
            let target = Target::Remote(reth);
            match place(
                core,
                cx.memory,
                target,
                &layout,
                packet.psn().get(),
                packet.payload(),
                ends,
            ) {
                Ok(()) => cx.counters.rx_message_bytes += packet.payload().len() as u64,
                Err(_) => cx.counters.access_violations += 1,
            }
            return;
        }
        let Some(at) = self.find_receive(core, cx, packet, eth) else { return };
        let target = reth.map_or(Target::Receive(at), Target::Remote);
        self.take_fragment(core, cx, packet, eth, &layout, target);
    }

    /// Handles fragments of one message in progress, until one needs the slow path. Returns how
    /// many.
    pub(super) fn receive_fragments(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        train: &mut Train<'_>,
        eth: &XpEth,
    ) -> u32 {
        let Some(layout) = Layout::new(core.mtu(), eth.len, eth.stride_log2) else { return 0 };
        let mut k = train.psn().get();
        let last = layout.fragments() - 1;
        let behind = self.top_seq.wrapping_sub(eth.wqe_seq);
        let open = behind < u32::from(self.window) && self.ended >> behind & 1 == 0;
        if !open || k >= last || train.payload_len() != layout.mtu as usize {
            return 0;
        }
        let ext = &train.ext()[XpEth::LEN..];
        let is_write = train.kind() == OpKind::Write;
        let reth = if is_write { ext.first_chunk().map(Reth::parse) } else { None };
        let takes_receive = !is_write || ext.len() > Reth::LEN;
        if is_write && !reth.is_some_and(|reth| may_write(core, cx, &reth, eth)) {
            return 0;
        }
        let mut receive = None;
        if takes_receive {
            // The message was checked with its first packet; another message's packet is handled as
            // a single frame.
            let Some(at) = core.rq.find(eth.recv_seq) else { return 0 };
            let slot = self.slot(eth.recv_seq);
            // So is a fragment that may complete the message.
            let goes_on = slot.known & (Known::ACTIVE | Known::LAST) == Known::ACTIVE;
            let same = slot.seq == eth.wqe_seq && slot.len == eth.len;
            let sges = core.rq.sges_at(at);
            if !goes_on || !same || cx.memory.check_local(core.init.pd, sges, true).is_err() {
                return 0;
            }
            receive = Some(at);
        }
        let memory = &*cx.memory;
        let remote =
            reth.map(|Reth { va, rkey, len }| memory.remote_place(core.peer(), rkey, va, len));
        let Ok(remote) = remote.transpose() else { return 0 };
        let put = |k, bytes: &[u8]| match (&remote, receive) {
            (Some(remote), _) => layout
                .try_pieces(k, |at, from, len| remote.write_at(at, &bytes[from..from + len]))
                .is_ok(),
            (None, Some(at)) => {
                place(core, memory, Target::Receive(at), &layout, k, bytes, false).is_ok()
            }
            (None, None) => false,
        };
        train.limit(last - k);
        let first = k;
        let mut placed = 0;
        while let Some(bytes) = train.next() {
            let duplicate = takes_receive && self.has(eth.recv_seq, k);
            if duplicate {
                cx.counters.duplicates += 1;
            } else if !put(k, bytes) {
                cx.counters.access_violations += 1;
            } else {
                placed += 1;
                if takes_receive {
                    self.mark(eth.recv_seq, k, last + 1);
                }
            }
            k += 1;
        }
        cx.counters.rx_message_bytes += placed * u64::from(layout.mtu);
        k - first
    }

    /// Whether a packet's message may be in progress; ends those that no longer may.
    fn admit(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, eth: &XpEth) -> bool {
        let window = u32::from(self.window);
        if before(self.top_seq, eth.wqe_seq) {
            let by = eth.wqe_seq.wrapping_sub(self.top_seq);
            self.ended = self.ended.checked_shl(by).unwrap_or(0);
            self.top_seq = eth.wqe_seq;
            self.preempt(core, cx);
        }
        let behind = self.top_seq.wrapping_sub(eth.wqe_seq);
        if behind >= window || self.ended >> behind & 1 != 0 {
            return false;
        }
        // A receive's message is at least as far behind as the receive.
        let floor = eth.recv_seq.wrapping_sub(window - 1);
        if before(self.floor, floor) {
            // Slots are found by the floor in force when they were taken.
            self.give_up_before(core, cx, floor);
            self.floor = floor;
        }
        true
    }

    /// Ends messages that have fallen out of the window.
    fn preempt(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let floor = self.floor;
        for number in (0..u32::from(self.window)).map(|i| floor.wrapping_add(i)) {
            let slot = self.slot(number);
            let behind = self.top_seq.wrapping_sub(slot.seq);
            if slot.known.contains(Known::ACTIVE) && behind >= u32::from(self.window) {
                self.end_receive(core, cx, number, EndMark::Preempted);
            }
        }
    }

    /// Ends all receives before this number.
    pub(super) fn give_up_before(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, floor: u32) {
        loop {
            let numbers = core.rq.numbers();
            if numbers.head == numbers.tail || !before(numbers.head, floor) {
                return;
            }
            self.end_receive(core, cx, numbers.head, EndMark::Preempted);
        }
    }

    /// The place of the receive that a packet's message consumes, if it may still be written.
    fn find_receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        eth: &XpEth,
    ) -> Option<usize> {
        let number = eth.recv_seq;
        let Some(at) = core.rq.find(number) else {
            let posted = before(number, core.rq.numbers().tail);
            *(if posted {
                &mut cx.counters.drop_late
            } else {
                &mut cx.counters.drop_no_receive
            }) += 1;
            return None;
        };
        let slot = self.slot(number);
        if slot.known.contains(Known::ACTIVE) {
            if slot.agrees(packet, eth) {
                return Some(at);
            }
            cx.counters.drop_malformed += 1;
            return None;
        }
        let capacity: u64 = core.rq.sges_at(at).iter().map(|sge| u64::from(sge.len)).sum();
        let is_send = packet.info().kind == OpKind::Send;
        *self.slot_mut(number) = Slot::of(packet, eth);
        if is_send && u64::from(eth.len) > capacity {
            self.fail_receive(core, cx, number, WcStatus::LocLenErr);
            return None;
        }
        Some(at)
    }

    fn take_fragment(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        eth: &XpEth,
        layout: &Layout,
        target: Target,
    ) {
        let (k, number, fragments) = (packet.psn().get(), eth.recv_seq, layout.fragments());
        let grace_ns = self.grace_ns();
        if self.has(number, k) {
            cx.counters.duplicates += 1;
            return;
        }
        let is_last = packet.info().position.ends();
        let whole = self.slot(number).arrivals.completes(self.bits(number), k, fragments);
        let ends = whole || (is_last && grace_ns == 0);
        match place(core, cx.memory, target, layout, k, packet.payload(), ends) {
            Ok(()) => cx.counters.rx_message_bytes += packet.payload().len() as u64,
            Err(Refused::Remote) => {
                cx.counters.access_violations += 1;
                return;
            }
            Err(Refused::Local) => {
                // Our own receive is unusable.
                self.fail_receive(core, cx, number, WcStatus::LocProtErr);
                core.fail();
                return;
            }
        }
        self.mark(number, k, fragments);
        if is_last {
            self.slot_mut(number).known |= Known::LAST;
        }
        if ends {
            let mark = if whole { EndMark::Whole } else { EndMark::Last };
            self.end_receive(core, cx, number, mark);
        } else if is_last && let Some(at) = core.rq.find(number) {
            let deadline = cx.now.plus_nanos(grace_ns);
            core.rq.hasten(at, deadline);
            self.wake = self.wake.min(deadline);
        }
    }

    /// Ends a receive, with what has arrived.
    fn end_receive(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, number: u32, end: EndMark) {
        let Some(at) = core.rq.find(number) else { return };
        // A fence: what was written before is visible no later than the completion.
        cx.memory.settle();
        let wr_id = core.rq.end(at);
        let slot = if self.is_under_way(number) { *self.slot(number) } else { Slot::default() };
        let layout = Layout { mtu: core.mtu(), len: slot.len, stride_log2: slot.stride_log2 };
        let mut completion = Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            src_qpn: core.attrs.dest_qpn,
            end,
            ..Completion::default()
        };
        if end != EndMark::Whole {
            self.log_loss(wr_id, number, &slot, &layout);
        }
        if slot.known.contains(Known::ACTIVE) {
            completion.byte_len = slot.arrivals.bytes(self.bits(number), &layout);
            completion.imm = slot.known.contains(Known::IMM).then_some(slot.imm);
            completion.solicited = slot.known.contains(Known::SOLICITED);
            if slot.known.contains(Known::WRITE) {
                completion.opcode = WcOpcode::RecvWriteImm;
            }
            self.close(number);
        }
        core.complete_recv(cx, completion);
    }

    /// Ends a receive with an error.
    fn fail_receive(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, number: u32, status: WcStatus) {
        let Some(at) = core.rq.find(number) else { return };
        let wr_id = core.rq.end(at);
        self.close(number);
        core.fail_recv(cx, wr_id, status);
    }

    /// Drops further packets of the message in progress that consumes this receive.
    fn close(&mut self, number: u32) {
        let slot = core::mem::take(self.slot_mut(number));
        let behind = self.top_seq.wrapping_sub(slot.seq);
        if behind < u32::from(MAX_WINDOW) {
            self.ended |= 1 << behind;
        }
    }

    fn log_loss(&mut self, wr_id: u64, number: u32, slot: &Slot, layout: &Layout) {
        if !self.more.as_ref().is_some_and(|more| more.log.is_on()) {
            return;
        }
        let record = if slot.known.contains(Known::ACTIVE) {
            let bits = self.bits(number);
            LossRecord::new(wr_id, layout, |k| slot.arrivals.has(bits, k))
        } else {
            LossRecord::unseen(wr_id)
        };
        self.more().log.push(record);
    }

    /// Ends receives that are due, and determines which is due next.
    pub(super) fn expire_receives(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let head = core.rq.numbers().head;
        let mut due: Vec<u32> = core::iter::from_fn(|| core.rq.pop_due(cx.now)).collect();
        // In the order in which they were posted, whatever their deadlines.
        due.sort_unstable_by_key(|number| number.wrapping_sub(head));
        for number in due {
            let last = self.is_under_way(number) && self.slot(number).known.contains(Known::LAST);
            let mark = if last { EndMark::Last } else { EndMark::Deadline };
            self.end_receive(core, cx, number, mark);
        }
        self.wake = self.wake.min(core.rq.next_deadline());
    }

    /// Flushes all receives.
    pub(super) fn flush_receives(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        loop {
            let numbers = core.rq.numbers();
            if numbers.head == numbers.tail {
                return;
            }
            let Some(at) = core.rq.find(numbers.head) else { return };
            let wr_id = core.rq.end(at);
            core.fail_recv(cx, wr_id, WcStatus::WrFlushErr);
        }
    }

    /// Whether this receive's message is in progress.
    fn is_under_way(&self, number: u32) -> bool {
        let in_window = number.wrapping_sub(self.floor) < self.window.into();
        in_window && self.slot(number).known.contains(Known::ACTIVE)
    }

    #[inline]
    fn slot_index(&self, number: u32) -> usize {
        (number & (u32::from(self.window) - 1)) as usize
    }

    /// The message in progress that consumes this receive, which is in the window.
    #[inline]
    fn slot(&self, number: u32) -> &Slot {
        match &self.more {
            Some(more) if self.window > 1 => &more.slots[self.slot_index(number)],
            _ => &self.slot,
        }
    }

    #[inline]
    fn slot_mut(&mut self, number: u32) -> &mut Slot {
        let at = self.slot_index(number);
        match &mut self.more {
            Some(more) if self.window > 1 => &mut more.slots[at],
            _ => &mut self.slot,
        }
    }

    /// Its fragments after a missing one.
    #[inline]
    fn bits(&self, number: u32) -> &[u64] {
        let more = self.more.as_ref();
        more.and_then(|more| more.bits.get(self.slot_index(number))).map_or(&[], Vec::as_slice)
    }

    /// Whether a fragment of it has arrived.
    #[inline]
    fn has(&self, number: u32, k: u32) -> bool {
        self.slot(number).arrivals.has(self.bits(number), k)
    }

    /// A fragment of it arrives for the first time.
    #[inline]
    fn mark(&mut self, number: u32, k: u32, fragments: u32) {
        if self.slot_mut(number).arrivals.mark_next(k) {
            return;
        }
        let at = self.slot_index(number);
        let more = self.more.get_or_insert_default();
        if more.bits.len() <= at {
            more.bits.resize_with(at + 1, Vec::new);
        }
        let slot = if self.window > 1 { &mut more.slots[at] } else { &mut self.slot };
        slot.arrivals.mark(&mut more.bits[at], k, fragments);
    }
}

/// Whether the peer may write all of a message.
#[inline]
fn may_write(core: &QpCore, cx: &Cx<'_>, reth: &Reth, eth: &XpEth) -> bool {
    let (peer, right) = (core.peer(), Access::REMOTE_WRITE);
    let &Reth { va, rkey, len } = reth;
    core.attrs.access.contains(right)
        && len == eth.len
        // An empty WRITE touches no memory, so its key is not checked.
        && (len == 0 || cx.memory.check_remote(peer, rkey, va, len, right).is_ok())
}

/// Writes a fragment to its place.
#[inline]
fn place(
    core: &QpCore,
    memory: &MemoryTable,
    target: Target,
    layout: &Layout,
    k: u32,
    bytes: &[u8],
    ends: bool,
) -> Result<(), Refused> {
    let peer = core.peer();
    layout.try_pieces(k, |offset, from, len| {
        let piece = &bytes[from..from + len];
        match target {
            _ if piece.is_empty() => Ok(()),
            Target::Receive(at) => memory
                .scatter(peer.pd, core.rq.sges_at(at), offset, piece, ends)
                .map_err(|_| Refused::Local),
            Target::Remote(reth) => memory
                .remote_write(peer, reth.rkey, reth.va.wrapping_add(offset.into()), piece, ends)
                .map_err(|_| Refused::Remote),
        }
    })
}
