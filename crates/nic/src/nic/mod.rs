//! The NIC: tables of objects, and the calls that drive them.

mod direct;
mod groups;
mod keepalive;
mod moving;
mod objects;
mod post;
mod regions;
mod sealing;

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_wire::{OpKind, Opcode, PacketView, Qpn};

pub use self::moving::Fence;
pub use self::objects::QpInfo;
use crate::config::NicConfig;
use crate::counters::Counters;
use crate::error::ControlError;
use crate::events::EventQueue;
use crate::frame::FrameMeta;
use crate::landing::Landed;
use crate::memory::{MemoryTable, Segment};
use crate::qp::{Cx, Progress, Qp};
use crate::queue::{CqTable, SrqTable};
use crate::rate::{ControllerFactory, Grantor};
use crate::sched::{Scheduler, TURN_PACKETS};
use crate::shim::Shim;
use crate::time::Time;
use crate::train::Train;
use crate::tx::TxBatch;
use crate::types::{CqId, Event, QpState, TransportDescriptor};

/// Turns in which QPs copy to the memory of peers before received packets are looked at again: some
/// tens of microseconds.
const MAX_COPYING_TURNS: u32 = 4;

/// A soft RDMA NIC: one port, its memory, its queue pairs. No IO.
///
/// # Driving it
/// The owner of a NIC calls three kinds of methods, in any order and from one thread at a time:
///
/// - **verbs** (`create_*`, `register`, `modify_qp`, `post_*`, `poll_cq`, …), for the application;
/// - **inputs**: [`handle_frame`](Nic::handle_frame) for every frame received, or
///   [`handle_frames`](Nic::handle_frames) for several at once, and
///   [`handle_timeout`](Nic::handle_timeout) once [`poll_timeout`](Nic::poll_timeout) has come;
/// - **outputs**: after verbs and inputs, [`poll_transmit`](Nic::poll_transmit) until it adds
///   nothing and [`is_ready`](Nic::is_ready) is false, sending or keeping each batch; then
///   [`poll_event`](Nic::poll_event) until it is empty.
///
/// `now` comes from one monotonic clock and never goes back. A late call loses nothing but time.
/// Several inputs may be handed in before outputs are asked for, and should be: their
/// acknowledgements then share packets.
///
/// Whatever frames contain, a NIC does not panic, does not grow beyond its [`NicConfig`], and
/// touches only memory that is registered with it.
pub struct Nic {
    config: NicConfig,
    /// Indexed by the low 16 bits of the QPN.
    qps: Vec<Option<Box<Qp>>>,
    qp_count: u32,
    /// Where the search for a free slot begins: a QPN is not reused while others are free, so that
    /// late packets for a destroyed QP reach nobody.
    next_slot: u32,
    /// Members of each multicast group.
    groups: BTreeMap<IpAddr, Vec<Qpn>>,
    shared: Shared,
    /// Factory of rate controllers for new QPs.
    controllers: Option<Arc<dyn ControllerFactory>>,
    /// Makers of shims for new QPs, innermost first.
    shim_makers: Vec<Box<ShimMaker>>,
}

/// Makes a shim for a new QP, or `None` if that QP gets none.
pub type ShimMaker = dyn Fn(&'static TransportDescriptor) -> Option<Box<dyn Shim>> + Send;

/// State that QPs share.
struct Shared {
    memory: MemoryTable,
    cqs: CqTable,
    srqs: SrqTable,
    sched: Scheduler,
    grants: Option<Grantor>,
    counters: Counters,
    events: EventQueue,
    segments: Vec<Segment>,
    landed: Vec<Landed>,
    /// A group of frames that arrived together is being handled.
    together: bool,
    /// Reused for the sealed packets that are opened together.
    opened: Vec<u8>,
}

impl Shared {
    #[inline]
    fn cx<'a>(&'a mut self, config: &'a NicConfig, now: Time) -> Cx<'a> {
        Cx {
            now,
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            paths: &mut self.sched.paths,
            grants: &mut self.grants,
            counters: &mut self.counters,
            events: &mut self.events,
            config,
            segments: &mut self.segments,
            landed: &mut self.landed,
            together: self.together,
        }
    }
}

/// Inputs and outputs.
impl Nic {
    /// Handles frames that arrived as one datagram: `frame_len` bytes each except the last, which
    /// may be shorter. `meta` is that of the first.
    #[inline]
    pub fn handle_frames(&mut self, now: Time, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        if !bytes.is_empty() && bytes.len() <= frame_len {
            self.handle_frame(now, meta, bytes);
        } else {
            self.handle_several(now, *meta, bytes, frame_len.max(1));
        }
    }

    fn handle_several(
        &mut self,
        now: Time,
        mut meta: FrameMeta,
        mut bytes: &[u8],
        frame_len: usize,
    ) {
        self.shared.together = true;
        while !bytes.is_empty() {
            let mut taken = match Train::len_of(bytes, frame_len) {
                0 if bytes[0] == Opcode::SEALED.0 => {
                    self.take_sealed_run(now, &meta, bytes, frame_len)
                }
                0 => 0,
                len => self.handle_train(now, &meta, &bytes[..len * frame_len], frame_len),
            };
            if taken == 0 {
                self.take_frame(now, &meta, &bytes[..frame_len.min(bytes.len())]);
                taken = 1;
            }
            bytes = bytes.get(taken * frame_len..).unwrap_or_default();
            meta.ip_id.skip(taken);
        }
        self.shared.together = false;
        // The rest of a divided WRITE may arrive much later.
        self.shared.memory.settle();
        self.tell_landings();
    }

    /// Handles frames that may be a train; returns how many, from the first on, were one. The
    /// others are untouched.
    fn handle_train(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        bytes: &[u8],
        frame_len: usize,
    ) -> usize {
        let Ok(first) = PacketView::parse(&bytes[..frame_len]) else { return 0 };
        let Some(slot) = self.slot(first.dest_qpn()) else { return 0 };
        // A sealed QP's packets must all be opened first.
        if self.qps[slot as usize].as_ref().is_none_or(|qp| qp.opener.is_some()) {
            return 0;
        }
        let taken = self.take_train(now, meta, slot, &first, bytes);
        self.count_train(slot, taken, frame_len);
        self.shared.counters.rx_packets += taken as u64;
        self.shared.counters.rx_bytes += (taken * frame_len) as u64;
        taken
    }

    /// Gives a QP the train that begins with `first`; returns how many frames it has taken.
    fn take_train(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        slot: u32,
        first: &PacketView<'_>,
        bytes: &[u8],
    ) -> usize {
        let Some(qp) = self.qps[slot as usize].as_mut() else { return 0 };
        // ECN marks and acknowledgement requests are handled packet by packet.
        if meta.congestion_experienced() || first.ack_req() {
            return 0;
        }
        // Several shims cannot agree beforehand on how many frames of a train they let through.
        if qp.shims.has_several() || qp.check_frame(meta, first, &self.config).is_err() {
            return 0;
        }
        let Qp { core, transport, shims, admission, .. } = &mut **qp;
        let train = admission.train(meta, first, bytes, shims.alone());
        // A packet in the middle of a message has no padding.
        let Some(mut train) = train.filter(|t| t.payload_len() == first.payload().len()) else {
            return 0;
        };
        let mut cx = self.shared.cx(&self.config, now);
        let taken = transport.receive_train(core, &mut cx, &mut train) as usize;
        admission.trust(meta, taken);
        taken
    }

    /// Counts frames of `frame_len` bytes on the wire for the QP that has taken them.
    fn count_train(&mut self, slot: u32, frames: usize, frame_len: usize) {
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            qp.core.counters.rx_packets += frames as u64;
            qp.core.counters.rx_bytes += (frames * frame_len) as u64;
        }
    }

    /// Handles a received frame: the UDP payload, from BTH to ICRC.
    pub fn handle_frame(&mut self, now: Time, meta: &FrameMeta, frame: &[u8]) {
        self.take_frame(now, meta, frame);
        self.tell_landings();
    }

    /// Notifies landings of what has been written for them.
    #[inline]
    fn tell_landings(&mut self) {
        if self.shared.landed.is_empty() {
            return;
        }
        self.shared.memory.settle();
        for Landed { qpn, imm, bytes } in self.shared.landed.drain(..) {
            if let Some(qp) = &mut self.qps[usize::from(qpn.low16())]
                && let Some(landing) = &mut qp.landing
            {
                landing.landed(imm, bytes);
            }
        }
    }

    /// Inlined into both callers.
    #[inline(always)]
    fn take_frame(&mut self, now: Time, meta: &FrameMeta, frame: &[u8]) {
        self.shared.counters.rx_packets += 1;
        self.shared.counters.rx_bytes += frame.len() as u64;
        let Ok(packet) = PacketView::parse(frame) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        let Some(slot) = self.slot(packet.dest_qpn()) else {
            if packet.dest_qpn() == Qpn::MULTICAST {
                return self.take_multicast(now, meta, &packet);
            }
            self.shared.counters.drop_no_qp += 1;
            return;
        };
        self.deliver(now, meta, &packet, slot);
    }

    /// Gives a frame to the QP of a slot.
    #[inline(always)]
    fn deliver(&mut self, now: Time, meta: &FrameMeta, packet: &PacketView<'_>, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return;
        };
        if qp.opener.is_some() {
            return self.take_sealed(now, meta, slot, packet.as_bytes());
        }
        if !qp.shims.is_empty() && qp.shims.claims(packet.opcode()) && qp.shims.ignores(packet) {
            return;
        }
        let counters = &mut self.shared.counters;
        if !qp.admits(meta, packet, &self.config, counters) {
            return;
        }
        self.take_packet(now, meta, slot, packet, packet.as_bytes().len());
    }

    /// Handles an admitted packet, whose frame had this many bytes.
    #[inline(always)]
    fn take_packet(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        slot: u32,
        packet: &PacketView<'_>,
        frame_len: usize,
    ) {
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return;
        };
        qp.core.counters.rx_packets += 1;
        qp.core.counters.rx_bytes += frame_len as u64;
        let marked = meta.congestion_experienced();
        if marked {
            self.shared.counters.rx_ecn_marked += 1;
            qp.core.on_ecn_mark(now, packet);
        }
        let mut cx = self.shared.cx(&self.config, now);
        let mut follows = marked;
        if packet.info().kind == OpKind::Cnp {
            cx.counters.rx_cnps += 1;
            qp.core.counters.rx_cnps += 1;
            qp.core.limits.pacer.tell(now, |controller| controller.on_cnp(now));
        } else {
            let Qp { core, transport, shims, .. } = &mut **qp;
            if shims.is_empty() || shims.follows(packet) {
                follows |= transport.receive(core, &mut cx, packet, Some(meta));
            } else {
                follows |= shims.incoming(now, packet, &mut |packet| {
                    if core.takes(packet) {
                        follows |= transport.receive(core, &mut cx, packet, Some(meta));
                    }
                });
            }
        }
        if follows {
            qp.finish_call(&mut cx);
            self.after(slot);
        } else if self.shared.cqs.has_overflow() {
            self.fail_overflowed();
        }
    }

    /// Does everything that is due by `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.shared.sched.pop_due(now) {
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            let mut cx = self.shared.cx(&self.config, now);
            if qp.transport.deadline() <= now {
                qp.transport.handle_timeout(&mut qp.core, &mut cx);
                qp.finish_call(&mut cx);
            }
            if qp.keepalive.is_some() && !qp.moving.hold.is_deaf() {
                qp.keep_alive(&mut cx);
            }
            // A pacer or shim that is due acts when the QP transmits.
            if qp.deadline() <= now {
                self.shared.sched.make_ready(slot, qp);
            }
            if qp.core.descriptor.deadlines {
                self.shared.sched.arm(slot, qp);
            }
            self.after(slot);
        }
        if self.shared.grants.is_some() {
            self.hand_out_credit(now);
        }
    }

    /// Grants credit to the senders whose turn it is.
    fn hand_out_credit(&mut self, now: Time) {
        while let Some((slot, bytes)) = self.shared.grants.as_mut().and_then(|g| g.next(now)) {
            if let Some(Some(qp)) = self.qps.get_mut(slot) {
                qp.transport.grant(bytes);
                self.after(slot as u32);
            }
        }
    }

    /// When to call [`Nic::handle_timeout`], if nothing else happens before.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        let next = self.shared.sched.next_deadline();
        match self.shared.grants.as_ref().and_then(Grantor::next_at) {
            Some(at) => Some(next.map_or(at, |next| next.min(at))),
            None => next,
        }
    }

    /// Adds packets to the batch until it is full or nothing is ready, or enough was copied to the
    /// memory of peers meanwhile: see [`Nic::is_ready`].
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) {
        self.fill(now, batch);
        batch.append_late();
        // A shim whose timer fired may have handed packets up.
        self.tell_landings();
    }

    /// Whether [`Nic::poll_transmit`] has left something to be done now.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.shared.sched.has_ready()
    }

    fn fill(&mut self, now: Time, batch: &mut TxBatch) {
        let mut copied = 0;
        while !batch.is_full() && copied < MAX_COPYING_TURNS {
            let Some(slot) = self.shared.sched.pop_ready() else {
                return;
            };
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            self.shared.sched.begin_turn(qp);
            let before = batch.len();
            let mut cx = self.shared.cx(&self.config, now);
            let progress = qp.transmit(&mut cx, batch, TURN_PACKETS);
            self.shared.sched.end_turn(slot, qp, progress, batch.is_full());
            self.shared.sched.wake_waiters(&mut self.qps);
            self.fail_overflowed();
            copied += u32::from(progress == Progress::Copied);
            if progress == Progress::More && batch.len() == before {
                // It needs more space than the batch has left.
                return;
            }
        }
    }

    /// The next asynchronous event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// To be called after any call that touched a QP: queues it if it has something to send, sets
    /// its timer, and passes on what the call has freed.
    #[inline]
    fn after(&mut self, slot: u32) {
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            self.shared.sched.touched(slot, qp);
        }
        self.shared.sched.wake_waiters(&mut self.qps);
        self.fail_overflowed();
    }

    /// QPs whose completion queue has overflowed can no longer report completions: they fail.
    #[inline]
    fn fail_overflowed(&mut self) {
        while let Some(cq) = self.shared.cqs.take_overflow() {
            self.fail_users_of(cq);
        }
    }

    #[cold]
    fn fail_users_of(&mut self, cq: CqId) {
        for slot in 0..self.qps.len() as u32 {
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            let init = &qp.core.init;
            let uses = init.send_cq == cq || init.recv_cq == cq;
            if uses && !matches!(qp.core.state, QpState::Reset | QpState::Err) {
                qp.enter_error(&mut self.shared.cx(&self.config, Time::ZERO));
                self.shared
                    .events
                    .push(Event::QpFatal(qp.core.reported), &mut self.shared.counters);
                self.shared.sched.rearm(slot, qp);
            }
        }
        self.shared.sched.wake_waiters(&mut self.qps);
    }

    #[inline]
    fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = u32::from(qpn.low16());
        let ours = qpn.prefix() == self.config.qpn_prefix || qpn == Qpn::GSI;
        (ours && self.qps.get(slot as usize)?.is_some()).then_some(slot)
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps[self.slot(qpn)? as usize].as_deref()
    }

    fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut Qp, ControlError> {
        let missing = ControlError::NotFound { what: "queue pair" };
        let slot = self.slot(qpn).ok_or(missing)?;
        self.qps[slot as usize].as_deref_mut().ok_or(missing)
    }
}

#[cfg(test)]
mod tests;
