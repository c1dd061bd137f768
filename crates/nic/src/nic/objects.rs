//! Creating, changing and destroying objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_wire::Qpn;

use super::{Nic, Shared, ShimMaker};
use crate::config::NicConfig;
use crate::counters::{Counters, QpCounters};
use crate::error::{ControlError, ModifyError};
use crate::events::EventQueue;
use crate::landing::Landing;
use crate::memory::MemoryTable;
use crate::qp::{Qp, state};
use crate::queue::{CqLevel, CqTable, SharedSrq, SrqTable};
use crate::rate::{ControllerFactory, Feedback, Grantor};
use crate::sched::Scheduler;
use crate::shim::Shim;
use crate::time::Time;
use crate::types::{
    Completion, CqId, LossRecord, PdId, QpAttr, QpInit, QpState, SrqId, XpOptions, XrcSrq,
};

/// QPN indices that the standard reserves for management.
const RESERVED_QPNS: u32 = 2;
/// Credit is granted in quanta of about two packets.
const CREDIT_QUANTUM_BYTES: u64 = 8 << 10;

/// A QP as [`Nic::query_qp`] reports it.
#[derive(Clone, Debug)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// Its attributes.
    pub attr: QpAttr,
    /// What it was created with.
    pub init: QpInit,
}

impl Nic {
    /// A NIC without any objects.
    pub fn new(config: NicConfig) -> Result<Nic, ControlError> {
        if config.max_qps > u32::from(u16::MAX) - RESERVED_QPNS + 1 {
            let (asked, max) = (u64::from(config.max_qps), 65_534);
            return Err(ControlError::TooLarge { what: "max_qps", asked, max });
        }
        let shared = Shared {
            memory: MemoryTable::new(config.max_mrs, config.max_pds, config.key_seed),
            cqs: CqTable::new(config.max_cqs),
            srqs: SrqTable::new(config.max_srqs),
            sched: Scheduler::new(config.window_bytes),
            grants: config.grant_bps.map(|bps| Grantor::new(bps, CREDIT_QUANTUM_BYTES)),
            counters: Counters::default(),
            events: EventQueue::new(config.max_events),
            segments: Vec::with_capacity(config.max_sge as usize),
            landed: Vec::new(),
            together: false,
            opened: Vec::new(),
        };
        let next_slot = RESERVED_QPNS + u32::from(config.first_qpn) % config.max_qps.max(1);
        Ok(Nic {
            config,
            qps: Vec::new(),
            qp_count: 0,
            next_slot,
            groups: BTreeMap::new(),
            shared,
            controllers: None,
            shim_makers: Vec::new(),
        })
    }

    /// The configuration it was created with.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Hands single-packet WRITEs with immediate that arrive on a QP to `landing`, instead of
    /// consuming a receive and raising a completion for each. For transports that have
    /// [landings](crate::TransportDescriptor::landings).
    pub fn set_landing(&mut self, qpn: Qpn, landing: Box<dyn Landing>) -> Result<(), ControlError> {
        let qp = self.qp_mut(qpn)?;
        if !qp.core.descriptor.landings {
            let why = "its transport has no landings";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        qp.core.lands = true;
        qp.landing = Some(landing);
        Ok(())
    }

    /// Sets how an XP QP receives. Call it before ready to receive, and again after a reset.
    pub fn set_xp(&mut self, qpn: Qpn, options: &XpOptions) -> Result<(), ControlError> {
        let qp = self.qp_mut(qpn)?;
        if !options.is_valid() {
            let why = "the window is 1, 2, 4, 8 or 16";
            return Err(ControlError::Invalid { what: "XP options", why });
        }
        if !matches!(qp.core.state, QpState::Reset | QpState::Init) {
            let why = "it is ready to receive: set them before";
            return Err(ControlError::Invalid { what: "XP options", why });
        }
        if !qp.core.descriptor.deadlines {
            let why = "it is not of type XP";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        qp.transport.set_options(options);
        Ok(())
    }

    /// What was missing of the oldest partial receive or READ that an XP QP still has on record
    /// ([`XpOptions::loss_log`]).
    pub fn take_loss(&mut self, qpn: Qpn) -> Option<LossRecord> {
        self.qp_mut(qpn).ok()?.transport.take_loss()
    }

    /// Creates a completion queue for `depth` completions.
    pub fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        at_most("completion queue depth", depth, 1, self.config.max_cqe)?;
        self.shared.cqs.create(depth)
    }

    /// Changes a queue's depth. Completions that it holds stay, and must fit.
    pub fn resize_cq(&mut self, cq: CqId, depth: u32) -> Result<(), ControlError> {
        at_most("completion queue depth", depth, 1, self.config.max_cqe)?;
        self.shared.cqs.resize(cq, depth)
    }

    /// How many completions a queue holds, readable without access to the engine.
    pub fn cq_level(&mut self, cq: CqId) -> Result<CqLevel, ControlError> {
        self.shared.cqs.level(cq)
    }

    /// Destroys a completion queue that no QP uses.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.shared.cqs.destroy(cq)
    }

    /// Asks for one [`Event::CqNotify`](crate::Event::CqNotify) at the next completion, or at the
    /// next that is solicited or failed. Completions already in the queue raise no event: poll once
    /// more after arming.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), ControlError> {
        self.shared.cqs.arm(cq, solicited_only)
    }

    /// Takes completions; returns how many.
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError> {
        self.shared.cqs.poll(cq, out)
    }

    /// Creates a shared receive queue.
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<SrqId, ControlError> {
        // Checked before allocating that much memory.
        at_most("max_wr", max_wr, 1, self.config.max_wr)?;
        self.adopt_srq(pd, &SharedSrq::new(max_wr, max_sge))
    }

    /// A handle to a shared receive queue, for posting to it without the engine and for QPs of
    /// another engine to take from it ([`Nic::adopt_srq`]).
    pub fn share_srq(&self, srq: SrqId) -> Result<SharedSrq, ControlError> {
        self.shared.srqs.share(srq)
    }

    /// Lets QPs of this engine take from a queue that was created on another. Its receives name
    /// memory that must be registered here under the same keys ([`Nic::register_as`]).
    pub fn adopt_srq(&mut self, pd: PdId, srq: &SharedSrq) -> Result<SrqId, ControlError> {
        self.insert_srq(pd, srq, None)
    }

    /// [`Nic::adopt_srq`] for a queue that peers of extended reliable connections can address.
    pub fn adopt_xrc_srq(
        &mut self,
        pd: PdId,
        srq: &SharedSrq,
        xrc: XrcSrq,
    ) -> Result<SrqId, ControlError> {
        self.shared.cqs.hold(xrc.cq)?;
        let made = self.insert_srq(pd, srq, Some(xrc));
        if made.is_err() {
            self.shared.cqs.release(xrc.cq);
        }
        made
    }

    fn insert_srq(
        &mut self,
        pd: PdId,
        srq: &SharedSrq,
        xrc: Option<XrcSrq>,
    ) -> Result<SrqId, ControlError> {
        at_most("max_wr", srq.max_wr(), 1, self.config.max_wr)?;
        at_most("max_sge", srq.max_sge().into(), 0, self.config.max_sge.into())?;
        self.shared.memory.hold_pd(pd)?;
        let made = self.shared.srqs.adopt(pd, srq.clone(), xrc);
        if made.is_err() {
            self.shared.memory.release_pd(pd);
        }
        made
    }

    /// Raises [`Event::SrqLimit`](crate::Event::SrqLimit) once, when fewer than `limit` receives
    /// are left.
    pub fn set_srq_limit(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        self.shared.srqs.set_limit(srq, limit)
    }

    /// Destroys a shared receive queue that no QP uses.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        let (pd, cq) = self.shared.srqs.destroy(srq)?;
        self.shared.memory.release_pd(pd);
        if let Some(cq) = cq {
            self.shared.cqs.release(cq);
        }
        Ok(())
    }

    /// Creates a QP, in the reset state.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        self.insert_qp(init, Qp::new)
    }

    /// Creates a QP without queues, to which another QP's are attached later: see
    /// [`Nic::attach_qp`]. The sizes in `init` are those of the other.
    pub fn create_spare_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        self.insert_qp(init, Qp::spare)
    }

    /// Creates queue pair 1, for management datagrams. Its number is 1 whatever the prefix of the
    /// others; in all other respects it is a UD QP.
    pub fn create_gsi_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        let slot = u32::from(Qpn::GSI.low16());
        if init.qp_type.descriptor().connected {
            let why = "queue pair 1 exchanges datagrams";
            return Err(ControlError::Invalid { what: "type of a QP", why });
        }
        if self.qps.get(slot as usize).is_some_and(Option::is_some) {
            return Err(ControlError::Exhausted {
                what: "queue pairs with the number 1",
                limit: 1,
            });
        }
        self.check_qp_init(init)?;
        self.insert_qp_at(slot, Qpn::GSI, init, Qp::new)
    }

    fn insert_qp(
        &mut self,
        init: &QpInit,
        make: impl FnOnce(Qpn, u32, &QpInit, &NicConfig) -> Qp,
    ) -> Result<Qpn, ControlError> {
        self.check_qp_init(init)?;
        let Some(slot) = self.free_slot() else {
            let limit = u64::from(self.config.max_qps);
            return Err(ControlError::Exhausted { what: "queue pairs", limit });
        };
        let qpn = Qpn::new(u32::from(self.config.qpn_prefix) << 16 | slot);
        let qpn = self.insert_qp_at(slot, qpn, init, make)?;
        self.next_slot = slot + 1;
        Ok(qpn)
    }

    fn insert_qp_at(
        &mut self,
        slot: u32,
        qpn: Qpn,
        init: &QpInit,
        make: impl FnOnce(Qpn, u32, &QpInit, &NicConfig) -> Qp,
    ) -> Result<Qpn, ControlError> {
        self.shared.memory.hold_pd(init.pd)?;
        if let Err(error) = self.hold_queues(init) {
            self.shared.memory.release_pd(init.pd);
            return Err(error);
        }
        if self.qps.len() <= slot as usize {
            self.qps.resize_with(slot as usize + 1, || None);
        }
        let mut qp = Box::new(make(qpn, slot, init, &self.config));
        qp.core.limits.controllers.clone_from(&self.controllers);
        let transport = init.qp_type.descriptor();
        if transport.shimmable {
            let made = self.shim_makers.iter().filter_map(|make| make(transport));
            made.for_each(|shim| qp.push_shim(shim));
        }
        self.qps[slot as usize] = Some(qp);
        self.qp_count += 1;
        Ok(qpn)
    }

    fn check_qp_init(&self, init: &QpInit) -> Result<(), ControlError> {
        let transport = init.qp_type.descriptor();
        if transport.addressed && init.srq.is_some() {
            let why = "the peer's messages name theirs";
            return Err(ControlError::Invalid { what: "shared receive queue of an XRC QP", why });
        }
        if transport.deadlines && init.srq.is_some() {
            let why = "its receives are numbered, and so cannot be shared";
            return Err(ControlError::Invalid { what: "shared receive queue of an XP QP", why });
        }
        // A QP that receives for the queues of an XRC domain may not need a send queue.
        let least = if transport.addressed && init.xrcd.is_some() { 0 } else { 1 };
        at_most("max_send_wr", init.max_send_wr, least, self.config.max_wr)?;
        at_most("max_recv_wr", init.max_recv_wr, 0, self.config.max_wr)?;
        at_most("max_send_sge", init.max_send_sge.into(), 0, self.config.max_sge.into())?;
        at_most("max_recv_sge", init.max_recv_sge.into(), 0, self.config.max_sge.into())?;
        at_most("max_inline", init.max_inline, 0, self.config.max_inline)
    }

    fn free_slot(&self) -> Option<u32> {
        if self.qp_count >= self.config.max_qps {
            return None;
        }
        let last = RESERVED_QPNS + self.config.max_qps;
        let is_free = |slot: &u32| self.qps.get(*slot as usize).is_none_or(Option::is_none);
        (self.next_slot..last).chain(RESERVED_QPNS..self.next_slot.min(last)).find(is_free)
    }

    /// Counts the queues of a new QP as used, all or none.
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

    /// Destroys a QP. Its outstanding requests vanish without completions.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        let Some(mut qp) = self.qps[slot as usize].take() else {
            return Ok(());
        };
        self.qp_count -= 1;
        // Resetting sends nothing and does not read the time.
        qp.reset(&mut self.shared.cx(&self.config, Time::ZERO));
        self.shared.sched.remove(slot);
        let init = qp.core.init;
        self.shared.cqs.release(init.send_cq);
        self.shared.cqs.release(init.recv_cq);
        if let Some(srq) = init.srq {
            self.shared.srqs.release(srq);
        }
        self.shared.memory.unbind_windows_of(qpn);
        if !self.groups.is_empty() {
            self.leave_groups(qpn);
        }
        self.shared.memory.release_pd(init.pd);
        self.shared.sched.wake_waiters(&mut self.qps);
        Ok(())
    }

    /// Changes a QP's state and attributes; on an error nothing changes.
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
        Some(QpInfo { state: core.state, attr: core.attrs.to_attr(core.state), init: core.init })
    }

    /// Sets the factory of a QP's rate controllers, `None` for no control. It builds one at once,
    /// and another whenever a connection begins.
    pub fn set_rate_controller(
        &mut self,
        now: Time,
        qpn: Qpn,
        factory: Option<Arc<dyn ControllerFactory>>,
    ) -> Result<(), ControlError> {
        let core = &mut self.qp_mut(qpn)?.core;
        core.limits.controllers = factory;
        core.build_controller(now);
        Ok(())
    }

    /// Sets the factory of rate controllers for QPs created from now on.
    pub fn set_default_rate_controller(&mut self, factory: Option<Arc<dyn ControllerFactory>>) {
        self.controllers = factory;
    }

    /// Passes feedback from a protocol above the QP to its rate controller.
    pub fn rate_feedback(
        &mut self,
        now: Time,
        qpn: Qpn,
        feedback: &Feedback,
    ) -> Result<(), ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        let pacer = &mut self.qp_mut(qpn)?.core.limits.pacer;
        pacer.tell(now, |controller| feedback.tell(controller, now));
        self.after(slot);
        Ok(())
    }

    /// The rate that a QP's controller allows now, in bits per second.
    pub fn rate_bps(&mut self, now: Time, qpn: Qpn) -> Option<u64> {
        self.qp_mut(qpn).ok()?.core.limits.pacer.rate_bps(now)
    }

    /// Gives a QP a window of its own, instead of a share of its path's.
    pub fn set_window(&mut self, qpn: Qpn, bytes: u32) -> Result<(), ControlError> {
        self.qp_mut(qpn)?.core.limits.window = Some(bytes);
        Ok(())
    }

    /// Adds a shim below a QP, outside of its existing shims. The QP must not have sent or received
    /// anything yet: see [`Shim`].
    pub fn add_shim(&mut self, qpn: Qpn, shim: Box<dyn Shim>) -> Result<(), ControlError> {
        let qp = self.qp_mut(qpn)?;
        if !qp.core.descriptor.shimmable {
            let why = "its transport takes no shims";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        if !matches!(qp.core.state, QpState::Reset | QpState::Init) {
            let why = "a shim goes under a QP before it is ready to receive";
            return Err(ControlError::Invalid { what: "state", why });
        }
        qp.push_shim(shim);
        Ok(())
    }

    /// Adds a shim below every QP created from now on for which `maker` makes one, outside of the
    /// shims of earlier makers.
    pub fn add_shim_maker(&mut self, maker: Box<ShimMaker>) {
        self.shim_makers.push(maker);
    }

    /// Number of QPs.
    pub fn qp_count(&self) -> u32 {
        self.qp_count
    }

    /// Smoothed round-trip times of the QPs whose transport measures them.
    pub fn round_trips_ns(&self) -> impl Iterator<Item = u64> {
        self.qps.iter().flatten().filter_map(|qp| qp.transport.round_trip_ns())
    }

    /// The device's counters.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// A QP's counters.
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> {
        Some(&self.qp(qpn)?.core.counters)
    }
}

/// Checks a size against its bounds.
fn at_most(what: &'static str, asked: u32, min: u32, max: u32) -> Result<(), ControlError> {
    if asked < min {
        return Err(ControlError::Invalid { what, why: "it must be at least 1" });
    }
    if asked > max {
        return Err(ControlError::TooLarge { what, asked: asked.into(), max: max.into() });
    }
    Ok(())
}
