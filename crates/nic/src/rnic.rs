//! The interface that protocols above queue pairs need from a NIC of any make.
//!
//! SDR and the collectives run on Bowline's soft NIC and on verbs devices alike. They use this
//! trait, whose methods have the names and the meaning of [`Nic`]'s own. By default, features of
//! the soft NIC alone are refused with a reason.

use std::sync::Arc;

use bowline_wire::{Psn, Qpn};

use crate::config::NicConfig;
use crate::connect::Connect;
use crate::counters::QpCounters;
use crate::error::{ControlError, ModifyError, PostError};
use crate::landing::Landing;
use crate::memory::Region;
use crate::nic::Nic;
use crate::rate::{ControllerFactory, Feedback};
use crate::seal::PacketSeal;
use crate::time::Time;
use crate::types::{
    Access, Completion, CqId, LossRecord, MrKey, PdId, QpAttr, QpInit, QpType, RecvWr, SendWr, Sge,
    SrqId, XpOptions,
};

/// A computation over registered memory: it gets the pieces to be read and those to be written.
pub type Compute<'a> = dyn FnMut(&[&[u8]], &mut [&mut [u8]]) + 'a;

/// Refuses a feature that only the soft NIC has.
fn soft_only<T>(what: &'static str) -> Result<T, ControlError> {
    let why = "a verbs device has none: open the device by its IP address instead of verbs:NAME";
    Err(ControlError::Invalid { what, why })
}

/// A NIC, as protocols above queue pairs see it: see [`Nic`]'s method of each name.
pub trait Rnic {
    /// Limits, address, the largest MTU.
    fn config(&self) -> &NicConfig;

    /// Receives to keep posted for the datagrams of one channel: as many as may arrive before the
    /// protocol runs again.
    fn datagram_receives(&self) -> u32;

    /// See [`Nic::create_cq`].
    fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError>;

    /// See [`Nic::destroy_cq`].
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError>;

    /// See [`Nic::poll_cq`].
    fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError>;

    /// See [`Nic::create_srq`].
    fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u8) -> Result<SrqId, ControlError>;

    /// See [`Nic::destroy_srq`].
    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError>;

    /// See [`Nic::post_srq_recv`].
    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError>;

    /// See [`Nic::create_qp`].
    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError>;

    /// See [`Nic::destroy_qp`].
    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError>;

    /// The transport of a QP.
    fn qp_type(&self, qpn: Qpn) -> Option<QpType>;

    /// See [`Nic::modify_qp`].
    fn modify_qp(&mut self, now: Time, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError>;

    /// See [`Nic::connect`].
    fn connect(&mut self, now: Time, qpn: Qpn, to: &Connect) -> Result<(), ModifyError> {
        let qp_type = self.qp_type(qpn).ok_or(ModifyError::NoSuchQp(qpn))?;
        to.steps(qp_type).iter().try_for_each(|step| self.modify_qp(now, qpn, step))
    }

    /// See [`Nic::activate`].
    fn activate(&mut self, now: Time, qpn: Qpn, qkey: u32) -> Result<(), ModifyError> {
        let steps = Connect::datagram_steps(qkey, Psn::new(0));
        steps.iter().try_for_each(|step| self.modify_qp(now, qpn, step))
    }

    /// See [`Nic::post_send`].
    fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError>;

    /// See [`Nic::post_recv`].
    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError>;

    /// See [`Nic::register`].
    fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError>;

    /// See [`Nic::deregister`].
    fn deregister(&mut self, key: MrKey) -> Result<(), ControlError>;

    /// The key that peers use for a region. The soft NIC has one key for both ends; verbs have two.
    fn rkey(&self, key: MrKey) -> MrKey {
        key
    }

    /// The object-safe form of `with_slices`.
    fn compute(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: &mut Compute<'_>,
    ) -> Result<(), ControlError>;

    /// Checks that messages can be placed in `len` bytes of a region: see [`Nic::check_bindable`].
    fn check_bindable(
        &self,
        pd: PdId,
        key: MrKey,
        addr: u64,
        len: usize,
    ) -> Result<(), ControlError>;

    /// Fills a slice with unpredictable bytes: see [`Nic::draw_secret`].
    fn fill_secret(&mut self, out: &mut [u8]);

    /// See [`Nic::set_rate_controller`].
    fn set_rate_controller(
        &mut self,
        now: Time,
        qpn: Qpn,
        factory: Option<Arc<dyn ControllerFactory>>,
    ) -> Result<(), ControlError>;

    /// See [`Nic::rate_feedback`].
    fn rate_feedback(
        &mut self,
        now: Time,
        qpn: Qpn,
        feedback: &Feedback,
    ) -> Result<(), ControlError>;

    /// See [`Nic::qp_counters`].
    fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters>;

    /// Whether it has indirect keys and landings, which SDR over UC needs.
    fn has_indirect_keys(&self) -> bool {
        false
    }

    /// See [`Nic::register_indirect`].
    fn register_indirect(
        &mut self,
        pd: PdId,
        slots: u32,
        slot_shift: u32,
    ) -> Result<MrKey, ControlError> {
        let _ = (pd, slots, slot_shift);
        let why = "a verbs device has no indirect keys: use SDR over UD there, at both ends";
        Err(ControlError::Invalid { what: "transport UC of SDR", why })
    }

    /// See [`Nic::bind_slot`].
    fn bind_slot(
        &mut self,
        root: MrKey,
        slot: u64,
        to: Option<(MrKey, u64, usize)>,
    ) -> Result<(), ControlError> {
        let _ = (root, slot, to);
        soft_only("indirect key")
    }

    /// See [`Nic::set_landing`].
    fn set_landing(&mut self, qpn: Qpn, landing: Box<dyn Landing>) -> Result<(), ControlError> {
        let _ = (qpn, landing);
        soft_only("landing")
    }

    /// See [`Nic::seal_qp`].
    fn seal_qp(&mut self, qpn: Qpn, seal: PacketSeal) -> Result<(), ControlError> {
        let _ = (qpn, seal);
        soft_only("seal")
    }

    /// See [`Nic::set_xp`].
    fn set_xp(&mut self, qpn: Qpn, options: &XpOptions) -> Result<(), ControlError> {
        let _ = (qpn, options);
        soft_only("XP queue pair")
    }

    /// See [`Nic::take_loss`].
    fn take_loss(&mut self, qpn: Qpn) -> Option<LossRecord> {
        let _ = qpn;
        None
    }

    /// See [`Nic::hasten_recv`].
    fn hasten_recv(
        &mut self,
        now: Time,
        qpn: Qpn,
        wr_id: u64,
        deadline: Time,
    ) -> Result<bool, PostError> {
        let _ = (now, wr_id, deadline);
        Err(PostError::UnsupportedOp(self.qp_type(qpn).ok_or(PostError::NotFound)?))
    }

    /// See [`Nic::resend`]. A NIC that lacks it waits for its own timer.
    fn resend(&mut self, now: Time, qpn: Qpn) -> Result<(), PostError> {
        let _ = (now, qpn);
        Ok(())
    }
}

impl dyn Rnic + '_ {
    /// See [`Nic::with_slices`].
    pub fn with_slices<R>(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R,
    ) -> Result<R, ControlError> {
        let (mut f, mut result) = (Some(f), None);
        self.compute(pd, reads, writes, &mut |reads, writes| {
            result = f.take().map(|f| f(reads, writes));
        })?;
        let why = "nothing was computed";
        result.ok_or(ControlError::Invalid { what: "memory", why })
    }

    /// See [`Nic::draw_secret`].
    pub fn draw_secret<const N: usize>(&mut self) -> [u8; N] {
        let mut secret = [0; N];
        self.fill_secret(&mut secret);
        secret
    }
}

/// Receives for a channel of datagrams: more than a lane reads from its socket between two runs of
/// a protocol.
const DATAGRAM_RECEIVES: u32 = 512;

impl Rnic for Nic {
    #[inline]
    fn config(&self) -> &NicConfig {
        Nic::config(self)
    }

    fn datagram_receives(&self) -> u32 {
        DATAGRAM_RECEIVES
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, ControlError> {
        Nic::create_cq(self, depth)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        Nic::destroy_cq(self, cq)
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId, out: &mut [Completion]) -> Result<usize, ControlError> {
        Nic::poll_cq(self, cq, out)
    }

    fn create_srq(&mut self, pd: PdId, max_wr: u32, max_sge: u8) -> Result<SrqId, ControlError> {
        Nic::create_srq(self, pd, max_wr, max_sge)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<(), ControlError> {
        Nic::destroy_srq(self, srq)
    }

    #[inline]
    fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        Nic::post_srq_recv(self, srq, wr)
    }

    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, ControlError> {
        Nic::create_qp(self, init)
    }

    fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        Nic::destroy_qp(self, qpn)
    }

    fn qp_type(&self, qpn: Qpn) -> Option<QpType> {
        Some(self.query_qp(qpn)?.init.qp_type)
    }

    fn modify_qp(&mut self, now: Time, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError> {
        Nic::modify_qp(self, now, qpn, attr)
    }

    #[inline]
    fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        Nic::post_send(self, now, qpn, wr)
    }

    #[inline]
    fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        Nic::post_recv(self, qpn, wr)
    }

    fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        Nic::register(self, pd, region, iova, access)
    }

    fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> {
        Nic::deregister(self, key)
    }

    fn compute(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: &mut Compute<'_>,
    ) -> Result<(), ControlError> {
        Nic::with_slices(self, pd, reads, writes, f)
    }

    fn check_bindable(
        &self,
        pd: PdId,
        key: MrKey,
        addr: u64,
        len: usize,
    ) -> Result<(), ControlError> {
        Nic::check_bindable(self, pd, key, addr, len)
    }

    fn fill_secret(&mut self, out: &mut [u8]) {
        Nic::fill_secret(self, out);
    }

    fn set_rate_controller(
        &mut self,
        now: Time,
        qpn: Qpn,
        factory: Option<Arc<dyn ControllerFactory>>,
    ) -> Result<(), ControlError> {
        Nic::set_rate_controller(self, now, qpn, factory)
    }

    fn rate_feedback(
        &mut self,
        now: Time,
        qpn: Qpn,
        feedback: &Feedback,
    ) -> Result<(), ControlError> {
        Nic::rate_feedback(self, now, qpn, feedback)
    }

    #[inline]
    fn qp_counters(&self, qpn: Qpn) -> Option<&QpCounters> {
        Nic::qp_counters(self, qpn)
    }

    fn has_indirect_keys(&self) -> bool {
        true
    }

    fn register_indirect(
        &mut self,
        pd: PdId,
        slots: u32,
        slot_shift: u32,
    ) -> Result<MrKey, ControlError> {
        Nic::register_indirect(self, pd, slots, slot_shift)
    }

    fn bind_slot(
        &mut self,
        root: MrKey,
        slot: u64,
        to: Option<(MrKey, u64, usize)>,
    ) -> Result<(), ControlError> {
        Nic::bind_slot(self, root, slot, to)
    }

    fn set_landing(&mut self, qpn: Qpn, landing: Box<dyn Landing>) -> Result<(), ControlError> {
        Nic::set_landing(self, qpn, landing)
    }

    fn seal_qp(&mut self, qpn: Qpn, seal: PacketSeal) -> Result<(), ControlError> {
        Nic::seal_qp(self, qpn, seal)
    }

    fn set_xp(&mut self, qpn: Qpn, options: &XpOptions) -> Result<(), ControlError> {
        Nic::set_xp(self, qpn, options)
    }

    fn take_loss(&mut self, qpn: Qpn) -> Option<LossRecord> {
        Nic::take_loss(self, qpn)
    }

    fn hasten_recv(
        &mut self,
        now: Time,
        qpn: Qpn,
        wr_id: u64,
        deadline: Time,
    ) -> Result<bool, PostError> {
        Nic::hasten_recv(self, now, qpn, wr_id, deadline)
    }

    fn resend(&mut self, now: Time, qpn: Qpn) -> Result<(), PostError> {
        Nic::resend(self, now, qpn)
    }
}
