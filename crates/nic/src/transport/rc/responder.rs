//! The responder: carries out a peer's requests in order, exactly once, and answers them.

use bowline_wire::{Aeth, AtomicAckEth, NakCode, OpKind, Opcode, PacketView, Psn, Syndrome};

use super::super::inbound::{Inbound, Refusal};
use super::super::outbound::packets_of;
use super::resources::{Resource, ResourceKind, Resources};
use crate::memory::AtomicOp;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::queue::RecvWqe;
use crate::train::Train;
use crate::tx::{HeaderBuf, pad_of};
use crate::types::{Access, Event, QpState, WcStatus};

/// "No limit" in the credit field of an acknowledgement (IBTA table 46): we use RNR NAKs instead.
const CREDITS_UNLIMITED: u8 = 31;

/// A reply that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    /// Everything before the expected PSN is done.
    Ack,
    /// The request at this PSN is refused.
    Nak(NakCode, Psn),
    /// The expected request found no receive.
    Rnr,
}

/// Responding half of a reliable connection whose opcodes start at `SERVICE`.
#[derive(Debug)]
pub(super) struct Responder<const SERVICE: u8> {
    expected: Psn,
    /// Message sequence number: messages completed, as acknowledgements report it (24 bits).
    msn: u32,
    inbound: Inbound,
    reply: Option<Reply>,
    /// A NAK for the expected PSN was sent: no other until that PSN arrives (IBTA 9.7.5.2.8).
    nak_sent: bool,
    resources: Resources,
    heard: bool,
}

impl<const SERVICE: u8> Default for Responder<SERVICE> {
    fn default() -> Self {
        Responder {
            expected: Psn::new(0),
            msn: 0,
            inbound: Inbound::default(),
            reply: None,
            nak_sent: false,
            resources: Resources::default(),
            heard: false,
        }
    }
}

impl<const SERVICE: u8> Responder<SERVICE> {
    pub(super) fn start(&mut self, core: &QpCore) {
        self.expected = core.attrs.rq_psn;
        self.resources.reserve(core.attrs.max_dest_rd_atomic as usize);
    }

    pub(super) fn has_work(&self) -> bool {
        self.reply.is_some() || self.resources.has_due()
    }

    #[inline]
    pub(super) fn receive(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, packet: &PacketView<'_>) {
        if core.state == QpState::Rtr && !core::mem::replace(&mut self.heard, true) {
            cx.event(Event::CommEstablished(core.reported));
        }
        let ahead = packet.psn().diff(self.expected);
        if ahead > 0 {
            cx.counters.drop_sequence += 1;
            if !core::mem::replace(&mut self.nak_sent, true) {
                self.reply = Some(Reply::Nak(NakCode::PsnSequence, self.expected));
            }
            return;
        }
        if ahead < 0 {
            self.duplicate(core, cx, packet);
            return;
        }
        let result = match packet.info().kind {
            OpKind::Send | OpKind::Write => self.inbound.accept(core, cx, packet).map(|ended| {
                self.msn += u32::from(ended);
                1
            }),
            OpKind::ReadRequest => self.accept_read(core, cx, packet),
            OpKind::CompareSwap | OpKind::FetchAdd => self.accept_atomic(core, cx, packet),
            _ => Err(Refusal::Invalid),
        };
        match result {
            Ok(psns) => self.advance(psns, packet),
            Err(refusal) => self.refuse(core, cx, refusal, self.expected),
        }
    }

    /// Handles packets from the middle of a message, or WRITEs of one packet each, while each is
    /// the expected one.
    pub(super) fn receive_train(
        &mut self,
        core: &QpCore,
        cx: &mut Cx<'_>,
        train: &mut Train<'_>,
    ) -> u32 {
        // The very first packet raises an event.
        if train.psn() != self.expected || (core.state == QpState::Rtr && !self.heard) {
            return 0;
        }
        let taken = if train.is_of_writes() {
            let taken = self.inbound.accept_writes(core, cx, train);
            self.msn += taken;
            taken
        } else {
            self.inbound.accept_train(core, cx, train)
        };
        if taken > 0 {
            self.expected = self.expected.add(taken);
            self.in_order();
        }
        taken
    }

    /// What was expected has arrived.
    fn in_order(&mut self) {
        self.nak_sent = false;
        // An unsent NAK complained about the packet that has just arrived.
        if self.reply != Some(Reply::Ack) {
            self.reply = None;
        }
    }

    /// The expected packet has been carried out.
    fn advance(&mut self, psns: u32, packet: &PacketView<'_>) {
        self.expected = self.expected.add(psns);
        self.in_order();
        if !matches!(packet.info().kind, OpKind::Send | OpKind::Write) {
            // Its response acknowledges everything before it.
            self.reply = None;
        } else if packet.ack_req() {
            self.reply = Some(Reply::Ack);
        }
    }

    fn accept_read(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth().ok_or(Refusal::Invalid)?;
        if self.inbound.in_message() || !core.attrs.access.contains(Access::REMOTE_READ) {
            return Err(Refusal::Invalid);
        }
        if reth.len > 0 {
            cx.memory
                .check_remote(core.peer(), reth.rkey, reth.va, reth.len, Access::REMOTE_READ)
                .map_err(|_| Refusal::Access)?;
        }
        let packets = packets_of(reth.len, core.mtu());
        let (va, rkey, len) = (reth.va, reth.rkey, reth.len);
        let kind = ResourceKind::Read { va, rkey, len, from: 0, next: 0, answered: false };
        self.keep(core, packets, kind)?;
        self.msn += 1;
        Ok(packets)
    }

    fn accept_atomic(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> Result<u32, Refusal> {
        let eth = packet.atomic_eth().ok_or(Refusal::Invalid)?;
        let allowed = core.attrs.access.contains(Access::REMOTE_ATOMIC);
        if self.inbound.in_message() || !allowed || !eth.va.is_multiple_of(8) {
            return Err(Refusal::Invalid);
        }
        // Reserve space for the response first: an atomic cannot be undone.
        let kind = ResourceKind::Atomic { original: 0, due: true, answered: false };
        self.keep(core, 1, kind)?;
        let op = match packet.info().kind {
            OpKind::FetchAdd => AtomicOp::FetchAdd(eth.swap_or_add),
            _ => AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
        };
        match cx.memory.remote_atomic(core.peer(), eth.rkey, eth.va, op) {
            Ok(original) => {
                if let Some(last) = self.resources.newest_mut() {
                    last.kind = ResourceKind::Atomic { original, due: true, answered: false };
                }
                self.msn += 1;
                Ok(1)
            }
            Err(_) => {
                self.resources.forget_newest();
                Err(Refusal::Access)
            }
        }
    }

    /// Remembers the READ or atomic at the expected PSN, forgetting the oldest.
    fn keep(&mut self, core: &QpCore, packets: u32, kind: ResourceKind) -> Result<(), Refusal> {
        let max = core.attrs.max_dest_rd_atomic as usize;
        while self.resources.len() >= max {
            // A peer that sends as many as were agreed has the response to the oldest, even if we
            // are about to repeat it. If that one was never answered, the peer has too many
            // outstanding, which the standard calls an invalid request.
            if self.resources.oldest().is_none_or(|oldest| !oldest.is_answered()) {
                return Err(Refusal::Invalid);
            }
            self.resources.forget_oldest();
        }
        let psn = self.expected;
        self.resources.push(Resource { psn, packets, kind });
        Ok(())
    }

    /// A duplicate request: answer it again (IBTA 9.7.5.1.5).
    fn duplicate(&mut self, core: &QpCore, cx: &mut Cx<'_>, packet: &PacketView<'_>) {
        cx.counters.duplicates += 1;
        let psn = packet.psn();
        match packet.info().kind {
            OpKind::ReadRequest => {
                let Some(reth) = packet.reth() else { return };
                let mtu = core.mtu();
                let Some(resource) = self.resources.find_again(psn) else {
                    cx.counters.drop_stale += 1;
                    return;
                };
                let k = psn.diff(resource.psn) as u32;
                if let ResourceKind::Read { va, rkey, len, from, next, .. } = &mut resource.kind
                    // The same READ from the same offset, not another under its PSN.
                    && reth.rkey == *rkey
                    && reth.va == va.wrapping_add(u64::from(k) * u64::from(mtu))
                    && u64::from(reth.len) + u64::from(k) * u64::from(mtu) == u64::from(*len)
                {
                    // The rest of the response is being sent already; an impatient peer that asks
                    // again would only lengthen the queue that it waits in.
                    if k < *next {
                        *from = k;
                        *next = k;
                    }
                } else {
                    cx.counters.drop_stale += 1;
                }
            }
            OpKind::CompareSwap | OpKind::FetchAdd => {
                let found = self.resources.find_again(psn);
                if let Some(ResourceKind::Atomic { due, .. }) = found.map(|r| &mut r.kind) {
                    *due = true;
                } else {
                    cx.counters.drop_stale += 1;
                }
            }
            _ => {
                // The acknowledgement was lost, or is late. A pending NAK serves as well.
                self.reply.get_or_insert(Reply::Ack);
            }
        }
    }

    /// Refuses a request: tells the peer, and fails the QP where the standard says so (IBTA table
    /// 59 and 60).
    fn refuse(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, refusal: Refusal, psn: Psn) {
        self.nak_sent = true;
        let (reply, recv_status, event) = match refusal {
            Refusal::NoReceive => {
                self.reply = Some(Reply::Rnr);
                return;
            }
            Refusal::Invalid => (
                NakCode::InvalidRequest,
                WcStatus::RemInvReqErr,
                Some(Event::QpRequestError(core.reported)),
            ),
            Refusal::Access => {
                cx.counters.access_violations += 1;
                (
                    NakCode::RemoteAccess,
                    WcStatus::RemAccessErr,
                    Some(Event::QpAccessError(core.reported)),
                )
            }
            Refusal::TooLong => (NakCode::InvalidRequest, WcStatus::LocLenErr, None),
            Refusal::LocalProtection => (NakCode::RemoteOperational, WcStatus::LocProtErr, None),
        };
        self.reply = Some(Reply::Nak(reply, psn));
        self.inbound.fail(core, cx, recv_status);
        if let Some(event) = event {
            cx.event(event);
        }
        core.fail();
    }

    pub(super) fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        for _ in 0..budget {
            if !sink.has_room() {
                return if self.has_work() { Progress::More } else { Progress::Idle };
            }
            // Responses go out in the order of their requests: an acknowledgement of a later
            // request would tell the peer that the data before it is lost.
            if self.resources.next_due().is_some() {
                if core.limits.pacer.next() > cx.now {
                    return Progress::Paced;
                }
                if let Err(psn) = self.send_resource(core, cx, sink) {
                    self.refuse(core, cx, Refusal::Access, psn);
                    return Progress::Idle;
                }
                continue;
            }
            let Some(reply) = self.reply.take() else {
                return Progress::Idle;
            };
            self.send_reply(core, cx, sink, reply);
        }
        Progress::More
    }

    /// Sends the next packet of a response; fails at a PSN whose memory may no longer be read.
    fn send_resource(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Psn> {
        let aeth = self.aeth(Syndrome::Ack { credits: CREDITS_UNLIMITED });
        let Some(resource) = self.resources.next_due() else { return Ok(()) };
        cx.segments.clear();
        match &mut resource.kind {
            ResourceKind::Atomic { original, due, answered } => {
                *due = false;
                *answered = true;
                let original = *original;
                let mut header =
                    HeaderBuf::new(&core.bth(of::<SERVICE>(Opcode::RC_ATOMIC_ACK), resource.psn));
                header.push(|bytes| aeth.emit(bytes));
                header.push(|bytes| AtomicAckEth { original }.emit(bytes));
                sink.send(core, cx, &header, 0);
            }
            ResourceKind::Read { va, rkey, len, from, next, answered } => {
                let k = *next;
                let offset = k * core.mtu();
                let bytes = core.mtu().min(*len - offset);
                if bytes > 0 {
                    let addr = va.wrapping_add(u64::from(offset));
                    match cx.memory.remote_read(core.peer(), *rkey, addr, bytes) {
                        Ok(segment) => cx.segments.push(segment),
                        Err(_) => return Err(resource.psn.add(k)),
                    }
                }
                let opcode = match (k == *from, k + 1 == resource.packets) {
                    (true, true) => Opcode::RC_READ_RESP_ONLY,
                    (true, false) => Opcode::RC_READ_RESP_FIRST,
                    (false, true) => Opcode::RC_READ_RESP_LAST,
                    (false, false) => Opcode::RC_READ_RESP_MID,
                };
                *next = k + 1;
                *answered |= k + 1 == resource.packets;
                let mut bth = core.bth(of::<SERVICE>(opcode), resource.psn.add(k));
                bth.pad = pad_of(bytes as usize);
                let mut header = HeaderBuf::new(&bth);
                if opcode != Opcode::RC_READ_RESP_MID {
                    header.push(|bytes| aeth.emit(bytes));
                }
                let ecn = core.data_ecn();
                sink.send(core, cx, &header, ecn);
            }
        }
        Ok(())
    }

    fn send_reply(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        reply: Reply,
    ) {
        let (psn, syndrome) = match reply {
            Reply::Ack => {
                cx.counters.tx_acks += 1;
                (self.expected.sub(1), Syndrome::Ack { credits: CREDITS_UNLIMITED })
            }
            Reply::Nak(code, psn) => {
                core.counters.tx_naks += 1;
                *match code {
                    NakCode::PsnSequence => &mut cx.counters.tx_nak_sequence,
                    NakCode::RemoteAccess => &mut cx.counters.tx_nak_access,
                    NakCode::RemoteOperational => &mut cx.counters.tx_nak_operational,
                    _ => &mut cx.counters.tx_nak_invalid,
                } += 1;
                (psn, Syndrome::Nak(code))
            }
            Reply::Rnr => {
                core.counters.tx_naks += 1;
                cx.counters.tx_rnr += 1;
                (self.expected, Syndrome::Rnr { timer: core.attrs.min_rnr_timer })
            }
        };
        let aeth = self.aeth(syndrome);
        let mut header = HeaderBuf::new(&core.bth(of::<SERVICE>(Opcode::RC_ACK), psn));
        header.push(|bytes| aeth.emit(bytes));
        cx.segments.clear();
        sink.send(core, cx, &header, 0);
    }

    fn aeth(&self, syndrome: Syndrome) -> Aeth {
        Aeth { syndrome, msn: self.msn & 0xff_ffff }
    }

    /// Forgets what applies to one path only. The peer asks again for missing responses.
    pub(super) fn suspend(&mut self) {
        self.reply = None;
        self.nak_sent = false;
        self.resources.settle();
    }

    /// Whether a message has begun and not ended.
    pub(super) fn in_message(&self) -> bool {
        self.inbound.in_message()
    }

    /// Whether an acknowledgement is due, with no data before it.
    pub(super) fn owes_reply_alone(&self) -> bool {
        self.reply.is_some() && !self.resources.has_due()
    }

    /// Whether a response still has to read memory.
    pub(super) fn owes_data(&self) -> bool {
        self.resources.has_due()
    }

    /// The expected request names no queue here.
    pub(super) fn refuse_addressee(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        drop(self.give_back());
        self.refuse(core, cx, Refusal::Invalid, self.expected);
    }

    /// PSN of the peer's next request.
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }

    /// See [`Inbound::give_back`].
    pub(super) fn give_back(&mut self) -> Option<RecvWqe> {
        self.inbound.give_back()
    }

    /// Drops all state except a NAK that still has to tell the peer why.
    pub(super) fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.inbound.fail(core, cx, WcStatus::WrFlushErr);
        self.resources.clear();
        if !matches!(self.reply, Some(Reply::Nak(..))) {
            self.reply = None;
        }
    }
}

/// The opcode of this service that corresponds to RC's response opcode.
const fn of<const SERVICE: u8>(opcode: Opcode) -> Opcode {
    Opcode(SERVICE | opcode.0)
}
