//! What an agent needs from a NIC of any kind: the soft NIC, or a verbs device whose queues Bowline
//! tracks.

use core::any::Any;
use core::net::IpAddr;

use bowline_nic::{
    AddressVector, Carry, ControlError, CqId, Fence, Nic, PdId, QpBody, QpState, Resume, Rnic, Time,
};
use bowline_wire::{Psn, Qpn};

/// A connection on its way between two NICs.
pub trait Body: Any {
    /// Number of two-sided messages completely received since the connection began.
    fn received(&self) -> u64;
    /// Number of outstanding requests.
    fn outstanding(&self) -> u64;
    /// Number of completed requests and received messages since the connection began.
    fn progress(&self) -> u64;
    /// Whether an atomic may have been executed whose response has not arrived.
    fn has_atomic_in_flight(&self) -> bool;
    /// The PSN that the peer's next request must have.
    fn expected_psn(&self) -> Psn;
}

/// A NIC whose connections can move. Methods have the names and meanings of those of [`Nic`].
pub trait RailNic {
    /// Its queues, for the agent's own datagrams.
    fn rnic(&mut self) -> &mut dyn Rnic;

    /// Whether its port carries packets, as far as it knows.
    fn is_up(&self) -> bool;

    /// See [`Nic::alloc_pd`].
    fn alloc_pd(&mut self) -> Result<PdId, ControlError>;

    /// See [`Nic::dealloc_pd`].
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError>;

    /// Asks for an event at the next completion of one of the agent's queues.
    fn arm_cq(&mut self, cq: CqId) -> Result<(), ControlError>;

    /// Sets the address of a spare's peer: see [`Nic::aim_spare_qp`].
    fn aim_spare_qp(&mut self, qpn: Qpn, to: IpAddr, dest_qpn: Qpn) -> Result<(), ControlError>;

    /// See [`Nic::set_peer_keys_differ`].
    fn set_peer_keys_differ(&mut self, qpn: Qpn, differ: bool) -> Result<(), ControlError>;

    /// See [`Nic::guard_qp`].
    fn guard_qp(&mut self, qpn: Qpn, guarded: bool) -> Result<(), ControlError>;

    /// See [`Nic::is_held`].
    fn is_held(&self, qpn: Qpn) -> bool;

    /// How long a QP has made no progress; `None` if unknown.
    fn silence_ns(&self, now: Time, qpn: Qpn) -> Option<u64>;

    /// Whether a QP has a connection that has not failed.
    fn is_connected(&self, qpn: Qpn) -> bool;

    /// See [`Nic::hold_qp`].
    fn hold_qp(&mut self, qpn: Qpn) -> Result<(), ControlError>;

    /// See [`Nic::detach_qp`].
    fn detach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        carry: Carry,
    ) -> Result<Box<dyn Body>, ControlError>;

    /// See [`Nic::attach_qp`].
    fn attach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        body: Box<dyn Body>,
    ) -> Result<(), (ControlError, Box<dyn Body>)>;

    /// See [`Nic::release_sends`].
    fn release_sends(&mut self, qpn: Qpn, resume: Option<Resume>) -> Result<(), ControlError>;

    /// See [`Nic::fence_sends`].
    fn fence_sends(&mut self, qpn: Qpn) -> Result<(), ControlError>;

    /// See [`Nic::fence`].
    fn fence(&self, qpn: Qpn) -> Fence;

    /// See [`Nic::outstanding`].
    fn outstanding(&self, qpn: Qpn) -> u64;

    /// See [`Nic::fail_qp`].
    fn fail_qp(&mut self, now: Time, qpn: Qpn) -> Result<(), ControlError>;
}

impl Body for QpBody {
    fn received(&self) -> u64 {
        QpBody::received(self)
    }

    fn outstanding(&self) -> u64 {
        QpBody::outstanding(self)
    }

    fn progress(&self) -> u64 {
        QpBody::progress(self)
    }

    fn has_atomic_in_flight(&self) -> bool {
        QpBody::has_atomic_in_flight(self)
    }

    fn expected_psn(&self) -> Psn {
        QpBody::expected_psn(self)
    }
}

impl RailNic for Nic {
    fn rnic(&mut self) -> &mut dyn Rnic {
        self
    }

    fn is_up(&self) -> bool {
        true
    }

    fn alloc_pd(&mut self) -> Result<PdId, ControlError> {
        Nic::alloc_pd(self)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        Nic::dealloc_pd(self, pd)
    }

    fn arm_cq(&mut self, cq: CqId) -> Result<(), ControlError> {
        Nic::arm_cq(self, cq, false)
    }

    fn aim_spare_qp(&mut self, qpn: Qpn, to: IpAddr, dest_qpn: Qpn) -> Result<(), ControlError> {
        Nic::aim_spare_qp(self, qpn, AddressVector::new(to), dest_qpn)
    }

    fn set_peer_keys_differ(&mut self, qpn: Qpn, differ: bool) -> Result<(), ControlError> {
        Nic::set_peer_keys_differ(self, qpn, differ)
    }

    fn guard_qp(&mut self, qpn: Qpn, guarded: bool) -> Result<(), ControlError> {
        Nic::guard_qp(self, qpn, guarded)
    }

    fn is_held(&self, qpn: Qpn) -> bool {
        Nic::is_held(self, qpn)
    }

    fn silence_ns(&self, now: Time, qpn: Qpn) -> Option<u64> {
        Nic::last_progress(self, qpn).map(|at| now.nanos_since(at))
    }

    fn is_connected(&self, qpn: Qpn) -> bool {
        let state = self.query_qp(qpn).map(|info| info.state);
        matches!(state, Some(QpState::Rtr | QpState::Rts | QpState::Sqd))
    }

    fn hold_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        Nic::hold_qp(self, qpn)
    }

    fn detach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        carry: Carry,
    ) -> Result<Box<dyn Body>, ControlError> {
        Nic::detach_qp(self, now, qpn, carry).map(|body| body as Box<dyn Body>)
    }

    fn attach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        body: Box<dyn Body>,
    ) -> Result<(), (ControlError, Box<dyn Body>)> {
        if !(&*body as &dyn Any).is::<QpBody>() {
            let why = "a connection of a verbs device does not fit a soft NIC";
            return Err((ControlError::Invalid { what: "connection", why }, body));
        }
        match (body as Box<dyn Any>).downcast::<QpBody>() {
            Ok(body) => Nic::attach_qp(self, now, qpn, body)
                .map_err(|(error, body)| (error, body as Box<dyn Body>)),
            Err(_) => unreachable!("its type was checked"),
        }
    }

    fn release_sends(&mut self, qpn: Qpn, resume: Option<Resume>) -> Result<(), ControlError> {
        Nic::release_sends(self, qpn, resume)
    }

    fn fence_sends(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        Nic::fence_sends(self, qpn)
    }

    fn fence(&self, qpn: Qpn) -> Fence {
        Nic::fence(self, qpn)
    }

    fn outstanding(&self, qpn: Qpn) -> u64 {
        Nic::outstanding(self, qpn)
    }

    fn fail_qp(&mut self, now: Time, qpn: Qpn) -> Result<(), ControlError> {
        Nic::fail_qp(self, now, qpn)
    }
}
