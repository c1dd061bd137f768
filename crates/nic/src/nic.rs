//! The NIC: tables of objects, and the calls that drive them.

use std::collections::VecDeque;

use bowline_wire::{Icrc, OpKind, PacketView, Qpn, Service, solve_ip_id};

use crate::config::NicConfig;
use crate::counters::{Counters, QpCounters};
use crate::error::{ControlError, ModifyError, PostError};
use crate::events::EventQueue;
use crate::frame::{FrameMeta, IpId};
use crate::memory::{MemoryTable, Region, Segment};
use crate::path::PathTable;
use crate::qp::{Cx, Progress, Qp, QpCore, state};
use crate::queue::{CqTable, SrqTable};
use crate::rate::{Pacer, RateControl};
use crate::shim::Shim;
use crate::time::Time;
use crate::timer::Timers;
use crate::tx::{Flow, TxBatch};
use crate::types::{
    Access, Completion, CqId, Event, MrKey, PdId, QpAttr, QpInit, QpState, QpType, RecvWr, SendOp,
    SendWr, SrqId,
};

/// A soft RDMA NIC: one port, its memory, its queue pairs. No IO.
///
/// # Driving it
/// The owner of a NIC calls three kinds of methods, in any order and from one thread at a time:
///
/// - **verbs** (`create_*`, `register`, `modify_qp`, `post_*`, `poll_cq`, …), for the application;
/// - **inputs**: [`handle_frame`](Nic::handle_frame) for every frame received, and
///   [`handle_timeout`](Nic::handle_timeout) once [`poll_timeout`](Nic::poll_timeout) has come;
/// - **outputs**: after verbs and inputs, [`poll_transmit`](Nic::poll_transmit) until it adds
///   nothing, sending each batch before the next call of any kind; then
///   [`poll_event`](Nic::poll_event) until it is empty.
///
/// `now` comes from one monotonic clock and never goes back. Nothing is lost if a call comes late,
/// only time. Several inputs may be handed in before outputs are asked for, and should be: their
/// acknowledgements then share packets.
///
/// Whatever frames contain, a NIC does not panic, does not grow beyond its [`NicConfig`], and
/// touches no memory but what is registered for it.
pub struct Nic {
    config: NicConfig,
    /// By the low 16 bits of the QPN.
    qps: Vec<Option<Box<Qp>>>,
    qp_count: u32,
    /// Where the search for a free slot begins: a QPN is not reused while others are free, so that
    /// late packets for a QP that is gone meet nobody.
    next_slot: u32,
    shared: Shared,
    /// QPs that have something to send, each once, served in turn.
    ready: VecDeque<u32>,
    timers: Timers,
}

/// What QPs share.
struct Shared {
    memory: MemoryTable,
    cqs: CqTable,
    srqs: SrqTable,
    paths: PathTable,
    counters: Counters,
    events: EventQueue,
    segments: Vec<Segment>,
}

impl Shared {
    #[inline]
    fn cx<'a>(&'a mut self, config: &'a NicConfig, now: Time) -> Cx<'a> {
        Cx {
            now,
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            paths: &mut self.paths,
            counters: &mut self.counters,
            events: &mut self.events,
            config,
            segments: &mut self.segments,
        }
    }
}

/// Packets that a QP may send before it is the next one's turn: one full burst.
const TURN_PACKETS: u32 = 16;
/// QPN indices that the standard reserves for management.
const RESERVED_QPNS: u32 = 2;
/// Sends within a burst are numbered below this; see [`IpId`].
const OWN_IDS: u16 = 128;
/// A peer whose last frames all had such a number is one of ours: from then on any other number
/// means corruption. A foreign sender that counts upwards cannot have as many in a row.
const OWN_ID_RUN: u16 = 512;
/// The default partition, membership bit aside.
const PKEY_MASK: u16 = 0x7fff;

/// A QP as [`Nic::query_qp`] reports it.
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// Its attributes.
    pub attr: QpAttr,
    /// What it was made with.
    pub init: QpInit,
}

/// Making and removing objects.
impl Nic {
    /// A NIC without any objects.
    pub fn new(config: NicConfig) -> Result<Nic, ControlError> {
        if config.max_qps > u32::from(u16::MAX) - RESERVED_QPNS + 1 {
            let (asked, max) = (u64::from(config.max_qps), 65_534);
            return Err(ControlError::TooLarge {
                what: "max_qps",
                asked,
                max,
            });
        }
        let shared = Shared {
            memory: MemoryTable::new(config.max_mrs, config.max_pds, config.key_seed),
            cqs: CqTable::new(config.max_cqs),
            srqs: SrqTable::new(config.max_srqs),
            paths: PathTable::new(config.window_bytes),
            counters: Counters::default(),
            events: EventQueue::new(config.max_events),
            segments: Vec::with_capacity(config.max_sge as usize),
        };
        Ok(Nic {
            config,
            qps: Vec::new(),
            qp_count: 0,
            next_slot: RESERVED_QPNS,
            shared,
            ready: VecDeque::new(),
            timers: Timers::default(),
        })
    }

    /// What it was made with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, ControlError> {
        self.shared.memory.alloc_pd()
    }

    /// Removes a protection domain that nothing is in.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        self.shared.memory.dealloc_pd(pd)
    }

    /// Registers memory, whose first byte gets the address `iova`.
    pub fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        self.shared.memory.register(pd, region, iova, access)
    }

    /// Ends a registration. Requests that still refer to it will fail.
    pub fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> {
        self.shared.memory.deregister(key)
    }

    /// Makes a completion queue for `depth` completions.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        at_most("completion queue depth", depth, 1, self.config.max_cqe)?;
        self.shared.cqs.create(depth)
    }

    /// Removes a completion queue that no QP uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.shared.cqs.destroy(cq)
    }

    /// Asks for one [`Event::CqNotify`] at the next completion, or at the next that is solicited or
    /// failed. What is in the queue already raises nothing: poll once more after arming.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), ControlError> {
        self.shared.cqs.arm(cq, solicited_only)
    }

    /// Takes completions; returns how many.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError> {
        self.shared.cqs.poll(cq, out)
    }

    /// Makes a shared receive queue.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<SrqId, ControlError> {
        at_most("max_wr", max_wr, 1, self.config.max_wr)?;
        at_most("max_sge", max_sge.into(), 0, self.config.max_sge.into())?;
        self.shared.memory.hold_pd(pd)?;
        let made = self.shared.srqs.create(pd, max_wr, max_sge);
        if made.is_err() {
            self.shared.memory.release_pd(pd);
        }
        made
    }

    /// Raises [`Event::SrqLimit`] once, when fewer than `limit` receives are left.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        self.shared.srqs.set_limit(srq, limit)
    }

    /// Removes a shared receive queue that no QP uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        let pd = self.shared.srqs.destroy(srq)?;
        self.shared.memory.release_pd(pd);
        Ok(())
    }

    /// Makes a QP, in the reset state.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        self.check_qp_init(init)?;
        let Some(slot) = self.free_slot() else {
            let limit = u64::from(self.config.max_qps);
            return Err(ControlError::Exhausted {
                what: "queue pairs",
                limit,
            });
        };
        self.shared.memory.hold_pd(init.pd)?;
        if let Err(error) = self.hold_queues(init) {
            self.shared.memory.release_pd(init.pd);
            return Err(error);
        }
        let qpn = Qpn::new(u32::from(self.config.qpn_prefix) << 16 | slot);
        if self.qps.len() <= slot as usize {
            self.qps.resize_with(slot as usize + 1, || None);
        }
        self.qps[slot as usize] = Some(Box::new(Qp::new(qpn, slot, init, &self.config)));
        self.qp_count += 1;
        self.next_slot = slot + 1;
        Ok(qpn)
    }

    fn check_qp_init(&self, init: &QpInit) -> Result<(), ControlError> {
        at_most("max_send_wr", init.max_send_wr, 1, self.config.max_wr)?;
        at_most("max_recv_wr", init.max_recv_wr, 0, self.config.max_wr)?;
        at_most(
            "max_send_sge",
            init.max_send_sge.into(),
            0,
            self.config.max_sge.into(),
        )?;
        at_most(
            "max_recv_sge",
            init.max_recv_sge.into(),
            0,
            self.config.max_sge.into(),
        )?;
        at_most("max_inline", init.max_inline, 0, self.config.max_inline)
    }

    fn free_slot(&self) -> Option<u32> {
        if self.qp_count >= self.config.max_qps {
            return None;
        }
        let last = RESERVED_QPNS + self.config.max_qps;
        let is_free = |slot: &u32| self.qps.get(*slot as usize).is_none_or(Option::is_none);
        (self.next_slot..last)
            .chain(RESERVED_QPNS..self.next_slot.min(last))
            .find(is_free)
    }

    /// Marks the queues of a new QP as used, all or none.
    fn hold_queues(&mut self, init: &QpInit) -> Result<(), ControlError> {
        self.shared.cqs.hold(init.send_cq)?;
        if let Err(error) = self.shared.cqs.hold(init.recv_cq) {
            self.shared.cqs.release(init.send_cq);
            return Err(error);
        }
        if let Some(srq) = init.srq
            && let Err(error) = self.shared.srqs.hold(srq)
        {
            self.shared.cqs.release(init.send_cq);
            self.shared.cqs.release(init.recv_cq);
            return Err(error);
        }
        Ok(())
    }

    /// Removes a QP. What it had outstanding vanishes without completions.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let slot = self
            .slot(qpn)
            .ok_or(ControlError::NotFound { what: "queue pair" })?;
        let Some(mut qp) = self.qps[slot as usize].take() else {
            return Ok(());
        };
        self.qp_count -= 1;
        // Resetting sends nothing and reads no time.
        qp.reset(&mut self.shared.cx(&self.config, Time::ZERO));
        self.timers.remove(slot);
        let init = qp.core.init;
        self.shared.cqs.release(init.send_cq);
        self.shared.cqs.release(init.recv_cq);
        if let Some(srq) = init.srq {
            self.shared.srqs.release(srq);
        }
        self.shared.memory.release_pd(init.pd);
        self.wake_waiters();
        Ok(())
    }

    /// Changes a QP's state and attributes, or, on an error, nothing.
    pub fn modify_qp(&mut self, now: Time, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError> {
        let slot = self.slot(qpn).ok_or(ModifyError::NoSuchQp(qpn))?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Ok(());
        };
        state::check(qp.core.init.qp_type, qp.core.state, attr, &self.config)?;
        qp.apply(attr, &mut self.shared.cx(&self.config, now));
        self.after(slot);
        Ok(())
    }

    /// A QP's state and attributes.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpInfo> {
        let core = &self.qp(qpn)?.core;
        Some(QpInfo {
            state: core.state,
            attr: core.attrs.to_attr(core.state),
            init: core.init,
        })
    }

    /// Chooses how a QP's rate is controlled.
    pub fn set_rate_control(
        &mut self,
        now: Time,
        qpn: Qpn,
        control: RateControl,
    ) -> Result<(), ControlError> {
        self.qp_mut(qpn)?.core.pacer = Pacer::new(&control, now);
        Ok(())
    }

    /// The rate that a QP's controller allows now, in bits per second.
    pub fn rate_bps(&mut self, now: Time, qpn: Qpn) -> Option<u64> {
        self.qp_mut(qpn).ok()?.core.pacer.rate_bps(now)
    }

    /// Gives a QP a window of its own, instead of its share of the peer's.
    pub fn set_window(&mut self, qpn: Qpn, bytes: u32) -> Result<(), ControlError> {
        self.qp_mut(qpn)?.core.window = Some(bytes);
        Ok(())
    }

    /// Puts a shim under a QP, which must not have sent or received anything yet.
    pub fn set_shim(&mut self, qpn: Qpn, shim: Box<dyn Shim>) -> Result<(), ControlError> {
        let qp = self.qp_mut(qpn)?;
        if !matches!(qp.core.state, QpState::Reset | QpState::Init) {
            let why = "a shim goes under a QP before it is ready to receive";
            return Err(ControlError::Invalid { what: "state", why });
        }
        qp.shim = Some(shim);
        Ok(())
    }

    /// What the device has done and seen.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What a QP has done and seen.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> {
        Some(&self.qp(qpn)?.core.counters)
    }
}

/// Posting work.
impl Nic {
    /// Adds a send request to a QP's queue.
    pub fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        check_send(&qp.core, wr)?;
        qp.core.sq.push(wr)?;
        if matches!(qp.core.state, QpState::Err | QpState::Sqe) {
            qp.core
                .flush_send_queue(&mut self.shared.cx(&self.config, now));
        }
        self.after(slot);
        Ok(())
    }

    /// Adds a receive to a QP's queue.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        if qp.core.init.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if qp.core.state == QpState::Reset {
            return Err(PostError::WrongState(qp.core.state));
        }
        qp.core.rq.post(wr)?;
        if qp.core.state == QpState::Err {
            // Flushing reads no time.
            qp.core
                .flush_recv_queue(&mut self.shared.cx(&self.config, Time::ZERO));
            self.after(slot);
        }
        Ok(())
    }

    /// Adds a receive to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.srqs.post(srq, wr)
    }
}

/// Inputs and outputs.
impl Nic {
    /// Takes a received frame: the UDP payload, BTH to ICRC.
    pub fn handle_frame(&mut self, now: Time, meta: &FrameMeta, frame: &[u8]) {
        self.shared.counters.rx_packets += 1;
        self.shared.counters.rx_bytes += frame.len() as u64;
        let Ok(packet) = PacketView::parse(frame) else {
            self.shared.counters.drop_malformed += 1;
            return;
        };
        let Some(slot) = self.slot(packet.dest_qpn()) else {
            self.shared.counters.drop_no_qp += 1;
            return;
        };
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return;
        };
        if !accepts(
            &mut qp.core,
            meta,
            &packet,
            &self.config,
            &mut self.shared.counters,
        ) {
            return;
        }
        qp.core.counters.rx_packets += 1;
        qp.core.counters.rx_bytes += frame.len() as u64;
        if meta.congestion_experienced() {
            self.shared.counters.rx_ecn_marked += 1;
            qp.core.on_ecn_mark(now);
        }
        let mut cx = self.shared.cx(&self.config, now);
        if packet.info().kind == OpKind::Cnp {
            cx.counters.rx_cnps += 1;
            qp.core.counters.rx_cnps += 1;
            qp.core.pacer.on_cnp(now);
        } else {
            let Qp {
                core,
                transport,
                shim,
                ..
            } = &mut **qp;
            match shim {
                Some(shim) => shim.incoming(now, packet, &mut |packet| {
                    transport.receive(core, &mut cx, packet, Some(meta));
                }),
                None => transport.receive(core, &mut cx, packet, Some(meta)),
            }
            qp.settle(&mut cx);
        }
        self.after(slot);
    }

    /// Does what time has made due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.timers.pop_due(now) {
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            let mut cx = self.shared.cx(&self.config, now);
            if qp.transport.deadline() <= now {
                qp.transport.handle_timeout(&mut qp.core, &mut cx);
                qp.settle(&mut cx);
            }
            // A pacer or a shim that is due acts when the QP transmits.
            if qp.deadline() <= now && !qp.scheduled {
                qp.scheduled = true;
                self.ready.push_back(slot);
            }
            self.after(slot);
        }
    }

    /// When to call [`Nic::handle_timeout`], if nothing else happens before.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Adds packets to the batch until it is full or nothing is ready.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut TxBatch) {
        while !batch.is_full() {
            let Some(slot) = self.ready.pop_front() else {
                return;
            };
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            qp.scheduled = false;
            let before = batch.len();
            let mut cx = self.shared.cx(&self.config, now);
            let progress = qp.transmit(&mut cx, batch, TURN_PACKETS);
            self.settle_turn(slot, progress);
            if progress == Progress::More && batch.len() == before {
                // It needs more room than the batch has left.
                return;
            }
        }
    }

    /// Puts a QP that has had its turn where it belongs.
    fn settle_turn(&mut self, slot: u32, progress: Progress) {
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return;
        };
        if progress == Progress::More {
            qp.scheduled = true;
            self.ready.push_back(slot);
        }
        if let Some(path) = qp.core.path {
            if progress != Progress::WindowFull {
                self.shared.paths.wake_next(path);
            } else if qp.core.window.is_none() && !qp.waiting {
                qp.waiting = true;
                self.shared.paths.wait(path, slot);
            }
        }
        self.rearm(slot);
        self.wake_waiters();
        self.fail_overflowed();
    }

    /// The next thing that happened outside the flow of completions.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// After any call that touched a QP: queues it if it has something to send, sets its timer, and
    /// passes on what the call has freed.
    #[inline]
    fn after(&mut self, slot: u32) {
        if let Some(qp) = self.qps[slot as usize].as_mut()
            && !qp.scheduled
            && qp.wants_transmit()
        {
            qp.scheduled = true;
            self.ready.push_back(slot);
        }
        self.rearm(slot);
        self.wake_waiters();
        self.fail_overflowed();
    }

    /// Makes sure that a QP's timer fires no later than its deadline. A deadline that has moved
    /// away is left to be found out when the timer fires.
    #[inline]
    fn rearm(&mut self, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_ref() else {
            return;
        };
        let deadline = qp.deadline();
        // A QP that is queued comes here again when it has had its turn.
        if deadline == Time::NEVER || qp.scheduled {
            return;
        }
        if self.timers.deadline(slot).is_none_or(|set| deadline < set) {
            self.timers.set(slot, deadline);
        }
    }

    /// Queues QPs for which their path has room again.
    #[inline]
    fn wake_waiters(&mut self) {
        while let Some(slot) = self.shared.paths.pop_woken() {
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                continue;
            };
            qp.waiting = false;
            if !qp.scheduled {
                qp.scheduled = true;
                self.ready.push_back(slot);
            }
        }
    }

    /// QPs whose completion queue has overflowed cannot report any more: they fail.
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
                    .push(Event::QpFatal(qp.core.qpn), &mut self.shared.counters);
                self.rearm(slot);
            }
        }
        self.wake_waiters();
    }

    #[inline]
    fn slot(&self, qpn: Qpn) -> Option<u32> {
        let slot = u32::from(qpn.low16());
        let ours = qpn.prefix() == self.config.qpn_prefix;
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

/// Checks a size against its bounds.
fn at_most(what: &'static str, asked: u32, min: u32, max: u32) -> Result<(), ControlError> {
    if asked < min {
        return Err(ControlError::Invalid {
            what,
            why: "it must be at least 1",
        });
    }
    if asked > max {
        return Err(ControlError::TooLarge {
            what,
            asked: asked.into(),
            max: max.into(),
        });
    }
    Ok(())
}

/// Checks what does not depend on the queue itself.
fn check_send(core: &QpCore, wr: &SendWr<'_>) -> Result<(), PostError> {
    let qp_type = core.init.qp_type;
    if matches!(core.state, QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(PostError::WrongState(core.state));
    }
    if !Qp::supports(qp_type, &wr.op) {
        return Err(PostError::UnsupportedOp(qp_type));
    }
    if (qp_type == QpType::Ud) != wr.ud.is_some() {
        return Err(PostError::BadDestination);
    }
    let len = wr.len();
    match wr.op {
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }
            if len != 8 || !remote.addr.is_multiple_of(8) =>
        {
            return Err(PostError::BadAtomic);
        }
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Read(_)
            if core.attrs.max_rd_atomic == 0 =>
        {
            return Err(PostError::NoReads);
        }
        _ => {}
    }
    // A message's PSNs must not fill half of the PSN space: 2^31 bytes, except at the smallest MTU.
    let mtu = u64::from(core.mtu());
    let max = match qp_type {
        QpType::Ud => mtu,
        _ => ((1 << 23) - 1) * mtu,
    };
    if len > max {
        return Err(PostError::TooLong { given: len, max });
    }
    Ok(())
}

/// Whether a frame is for this QP and intact; counts why not.
#[inline]
fn accepts(
    core: &mut QpCore,
    meta: &FrameMeta,
    packet: &PacketView<'_>,
    config: &NicConfig,
    counters: &mut Counters,
) -> bool {
    let service = match core.init.qp_type {
        QpType::Rc => Service::Rc,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
    };
    let receives = matches!(
        core.state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    );
    let info = packet.info();
    if !receives || (info.service != service && info.kind != OpKind::Cnp) {
        counters.drop_state += 1;
        return false;
    }
    if packet.pkey() & PKEY_MASK != PKEY_MASK {
        counters.drop_pkey += 1;
        return false;
    }
    if core.init.qp_type != QpType::Ud && core.attrs.av.is_none_or(|av| av.dst != meta.src) {
        counters.drop_wrong_peer += 1;
        return false;
    }
    if !icrc_holds(core, meta, packet, config, counters) {
        counters.drop_icrc += 1;
        return false;
    }
    true
}

/// Checks a frame's ICRC, with what is known of its IP identification.
#[inline]
fn icrc_holds(
    core: &mut QpCore,
    meta: &FrameMeta,
    packet: &PacketView<'_>,
    config: &NicConfig,
    counters: &mut Counters,
) -> bool {
    let assumed = match meta.ip_id {
        IpId::Known(id) | IpId::Guess(id) => id,
    };
    let bytes = packet.as_bytes();
    let flow = core
        .rx_flow
        .get_or_insert_with(|| Flow::inbound(meta, config.udp_port));
    if !flow.is_from(meta) {
        *flow = Flow::inbound(meta, config.udp_port);
    }
    let seed = flow.icrc_seed(bytes.len() as u32, assumed);
    let computed = icrc_of_packet(seed, bytes);
    let received = packet.icrc();
    if computed == received {
        core.own_id_run = core.own_id_run.saturating_add(u16::from(assumed < OWN_IDS));
        return true;
    }
    if let IpId::Known(_) = meta.ip_id {
        return false;
    }
    match solve_ip_id(computed, received, assumed, bytes.len()) {
        Some(id) if id < OWN_IDS => {
            core.own_id_run = core.own_id_run.saturating_add(1);
            true
        }
        Some(_) if core.own_id_run < OWN_ID_RUN => {
            core.own_id_run = 0;
            counters.icrc_solved += 1;
            true
        }
        _ => false,
    }
}

#[inline]
fn icrc_of_packet(seed: Icrc, packet: &[u8]) -> u32 {
    let body = &packet[..packet.len().saturating_sub(4)];
    match body.split_first_chunk() {
        Some((bth, rest)) => seed.bth(bth).update(rest).finish(),
        None => seed.finish(),
    }
}

#[cfg(test)]
mod tests;
