//! The two devices, as the agent sees them.

use core::any::Any;
use core::net::IpAddr;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bowline_failover::{Body, Rail, RailNic, Rails};
use bowline_ibverbs::{Context, Pd, VerbsNic};
use bowline_nic::{Carry, ControlError, CqId, Fence, PdId, Resume, Rnic, Time};
use bowline_wire::{Psn, Qpn};

use crate::qp::{Left, Qp};

/// The devices that carry the agent's own datagrams.
pub(crate) struct Nics {
    pub(crate) nics: [VerbsNic; 2],
    pub(crate) pds: Vec<Arc<Pd>>,
}

/// Lends both devices to the agent.
pub(crate) struct HwRails<'a> {
    pub(crate) contexts: &'a [Arc<Context>; 2],
    pub(crate) qps: &'a RwLock<HashMap<(Rail, u32), Arc<Qp>>>,
    pub(crate) nics: &'a mut Nics,
    pub(crate) now: Time,
}

impl Rails for HwRails<'_> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut dyn RailNic, Time)) {
        let context = &self.contexts[rail.index()];
        f(&mut HwRail { rail, context, qps: self.qps, nics: self.nics }, self.now);
    }
}

/// One of the two devices, lent to the agent.
struct HwRail<'a> {
    rail: Rail,
    context: &'a Arc<Context>,
    qps: &'a RwLock<HashMap<(Rail, u32), Arc<Qp>>>,
    nics: &'a mut Nics,
}

/// A connection on its way between two devices. Its requests stay in the rings.
struct HwBody {
    qp: Arc<Qp>,
    left: Left,
}

impl Body for HwBody {
    fn received(&self) -> u64 {
        self.left.received
    }

    fn outstanding(&self) -> u64 {
        self.left.outstanding
    }

    fn progress(&self) -> u64 {
        self.left.progress
    }

    fn has_atomic_in_flight(&self) -> bool {
        self.left.has_atomic
    }

    fn expected_psn(&self) -> Psn {
        self.left.psn
    }
}

impl HwRail<'_> {
    fn qp(&self, qpn: Qpn) -> Result<Arc<Qp>, ControlError> {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        let qp = qps.get(&(self.rail, qpn.get())).cloned();
        qp.ok_or(ControlError::NotFound { what: "queue pair" })
    }

    fn nic(&mut self) -> &mut VerbsNic {
        &mut self.nics.nics[self.rail.index()]
    }
}

/// The error for something that a provider refused.
fn refused(why: &'static str) -> ControlError {
    ControlError::Invalid { what: "queue pair", why }
}

impl RailNic for HwRail<'_> {
    fn rnic(&mut self) -> &mut dyn Rnic {
        self.nic()
    }

    fn is_up(&self) -> bool {
        self.context.is_up()
    }

    fn alloc_pd(&mut self) -> Result<PdId, ControlError> {
        let pd = Arc::new(Pd::alloc(self.context)?);
        let id = self.nic().admit(&pd);
        self.nics.pds.push(pd);
        Ok(id)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        self.nics.pds.retain(|kept| kept.id() != pd);
        Ok(())
    }

    fn arm_cq(&mut self, _cq: CqId) -> Result<(), ControlError> {
        Ok(self.nic().arm()?)
    }

    fn aim_spare_qp(&mut self, qpn: Qpn, to: IpAddr, dest_qpn: Qpn) -> Result<(), ControlError> {
        self.qp(qpn)?.attrs().spare_peer = Some((to, dest_qpn));
        Ok(())
    }

    fn set_peer_keys_differ(&mut self, _qpn: Qpn, _differ: bool) -> Result<(), ControlError> {
        // Queue pairs translate keys themselves.
        Ok(())
    }

    fn guard_qp(&mut self, qpn: Qpn, guarded: bool) -> Result<(), ControlError> {
        self.qp(qpn)?.guard(guarded);
        Ok(())
    }

    fn is_held(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_ok_and(|qp| qp.is_held())
    }

    fn silence_ns(&self, _now: Time, _qpn: Qpn) -> Option<u64> {
        None
    }

    fn is_connected(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_ok_and(|qp| !qp.has_failed() && qp.attrs().rtr.is_some())
    }

    fn hold_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        self.qp(qpn)?.hold();
        Ok(())
    }

    fn detach_qp(
        &mut self,
        _now: Time,
        qpn: Qpn,
        carry: Carry,
    ) -> Result<Box<dyn Body>, ControlError> {
        let qp = self.qp(qpn)?;
        // Transport state belongs to the device and cannot move. If it must move, end the
        // connection.
        let Some(left) = qp.detach(carry == Carry::Transport) else {
            qp.fail();
            return Err(refused("more requests are outstanding than its queue has room for"));
        };
        Ok(Box::new(HwBody { qp, left }))
    }

    fn attach_qp(
        &mut self,
        _now: Time,
        _qpn: Qpn,
        body: Box<dyn Body>,
    ) -> Result<(), (ControlError, Box<dyn Body>)> {
        let any: &dyn Any = &*body;
        let Some(HwBody { qp, left }) = any.downcast_ref::<HwBody>() else {
            return Err((refused("a connection of a soft NIC does not fit a verbs device"), body));
        };
        match qp.attach(self.rail, left) {
            Ok(()) => Ok(()),
            Err(_) => Err((refused("the provider does not take the connection"), body)),
        }
    }

    fn release_sends(&mut self, qpn: Qpn, resume: Option<Resume>) -> Result<(), ControlError> {
        let qp = self.qp(qpn)?;
        qp.release_sends(resume).map_err(|_| {
            qp.fail();
            refused("the provider does not take its requests")
        })
    }

    fn fence_sends(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        self.qp(qpn)?.fence_sends();
        Ok(())
    }

    fn fence(&self, qpn: Qpn) -> Fence {
        self.qp(qpn).map_or(Fence::None, |qp| qp.fence())
    }

    fn outstanding(&self, qpn: Qpn) -> u64 {
        self.qp(qpn).map_or(0, |qp| qp.outstanding())
    }

    fn fail_qp(&mut self, _now: Time, qpn: Qpn) -> Result<(), ControlError> {
        self.qp(qpn)?.fail();
        Ok(())
    }
}
