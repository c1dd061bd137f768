//! Moving connections between NICs, for failover.
//!
//! Both NICs have the same memory registered under the same keys ([`Nic::register_as`]), and the
//! one that a connection may move to has a spare QP for it ([`Nic::create_spare_qp`]). What moves
//! is a [`QpBody`]: the requests themselves, not copies of them.

use bowline_wire::Qpn;

use super::Nic;
use crate::error::ControlError;
use crate::qp::Hold;
use crate::qp::body::{Carry, QpBody, Resume};
use crate::qp::peer_memory::PeerKeys;
use crate::time::Time;
use crate::types::{AddressVector, QpState};

/// A fence in a QP's requests: see [`Nic::fence_sends`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// There is none.
    None,
    /// No request has asked for a completion since it was put up.
    WaitSignaled,
    /// Requests before it are not done yet.
    WaitDrained,
    /// All requests before it are done.
    Drained,
}

impl Nic {
    /// Makes a path that fails hold a movable QP, with an
    /// [`Event::PathFailed`](crate::Event::PathFailed), rather than fail it.
    pub fn guard_qp(&mut self, qpn: Qpn, guarded: bool) -> Result<(), ControlError> {
        self.movable(qpn)?.moving.guarded = guarded;
        Ok(())
    }

    /// Stops a QP: it sends nothing, and drops what arrives. What is posted queues up.
    pub fn hold_qp(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let qp = self.movable(qpn)?;
        if qp.moving.hold != Hold::Away {
            qp.moving.hold = Hold::All;
        }
        Ok(())
    }

    /// Whether a QP is stopped.
    pub fn is_held(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_some_and(|qp| qp.moving.hold == Hold::All)
    }

    /// Whether a QP's queues are elsewhere.
    pub fn is_away(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_some_and(|qp| qp.moving.hold == Hold::Away)
    }

    /// When a QP last heard that something it sent has arrived, or had nothing to hear of.
    pub fn last_progress(&self, qpn: Qpn) -> Option<Time> {
        Some(self.qp(qpn)?.transport.position().progress_at)
    }

    /// Requests of a QP that are not done.
    pub fn outstanding(&self, qpn: Qpn) -> u64 {
        self.qp(qpn).map_or(0, |qp| qp.core.sq.tail() - qp.core.sq.head())
    }

    /// Says where a spare's peer is. It counts from the next [`Nic::attach_qp`] on.
    pub fn aim_spare_qp(
        &mut self,
        qpn: Qpn,
        av: AddressVector,
        dest_qpn: Qpn,
    ) -> Result<(), ControlError> {
        if av.dst.is_ipv4() != self.config.addr.is_ipv4() {
            let why = "the destination must be of the device's address family";
            return Err(ControlError::Invalid { what: "av", why });
        }
        let qp = self.movable(qpn)?;
        qp.core.attrs.av = Some(av);
        qp.core.attrs.dest_qpn = dest_qpn;
        Ok(())
    }

    /// Says whether the peer's memory has other keys for a spare than for the QP that it stands in
    /// for. If so, requests wait for [`Nic::learn_peer_key`].
    pub fn set_peer_keys_differ(&mut self, qpn: Qpn, differ: bool) -> Result<(), ControlError> {
        let memory = &mut self.movable(qpn)?.core.peer_memory;
        if differ {
            memory.get_or_insert_default().keys = Some(PeerKeys::default());
        } else if let Some(memory) = memory {
            memory.keys = None;
        }
        Ok(())
    }

    /// Keys of the peer's memory that a QP's requests name, from the one with this number on, and
    /// the number of the next.
    pub fn named_keys(&self, qpn: Qpn, from: u64) -> (Vec<u32>, u64) {
        self.qp(qpn).map_or((Vec::new(), from), |qp| qp.named_keys(from))
    }

    /// Whether a spare knows its own key for one that requests name.
    pub fn knows_peer_key(&self, qpn: Qpn, named: u32) -> bool {
        self.qp(qpn)
            .is_some_and(|qp| qp.core.peer_keys().is_none_or(|keys| keys.contains_key(&named)))
    }

    /// The key, for a spare, of memory that requests name by another.
    pub fn learn_peer_key(&mut self, qpn: Qpn, named: u32, here: u32) -> Result<(), ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        self.movable(qpn)?.learn_key(named, here);
        self.after(slot);
        Ok(())
    }

    /// Takes the connection out of a QP, which is left without.
    pub fn detach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        carry: Carry,
    ) -> Result<Box<QpBody>, ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        let qp = self.movable(qpn)?;
        let connected = !matches!(qp.core.state, QpState::Reset | QpState::Init);
        if !connected || qp.moving.hold == Hold::Away {
            let why = "only a connection that is here can move";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(ControlError::NotFound { what: "queue pair" });
        };
        let body = qp.detach(&mut self.shared.cx(&self.config, now), carry);
        self.after(slot);
        Ok(body)
    }

    /// Puts a connection into a QP that has none. It answers the peer at once; its own requests
    /// wait for [`Nic::release_sends`].
    ///
    /// # Errors
    /// Gives the connection back if the QP is not one that can take it.
    pub fn attach_qp(
        &mut self,
        now: Time,
        qpn: Qpn,
        body: Box<QpBody>,
    ) -> Result<(), (ControlError, Box<QpBody>)> {
        let fits = self.qp(qpn).is_some_and(|qp| {
            qp.moving.hold == Hold::Away
                && qp.core.attrs.av.is_some()
                && body.attrs.mtu <= self.config.max_mtu
        });
        let (true, Some(slot)) = (fits, self.slot(qpn)) else {
            let why = "it has a connection, no peer, or a smaller MTU";
            return Err((ControlError::Invalid { what: "queue pair", why }, body));
        };
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            qp.attach(&mut self.shared.cx(&self.config, now), *body);
        }
        self.after(slot);
        Ok(())
    }

    /// Lets a QP send again. `resume` is for a connection that starts anew ([`Carry::Requests`]):
    /// what the peer has carried out is not sent again.
    pub fn release_sends(&mut self, qpn: Qpn, resume: Option<Resume>) -> Result<(), ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        let qp = self.movable(qpn)?;
        if qp.moving.hold == Hold::Away {
            let why = "its queues are elsewhere";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        if let Some(resume) = resume {
            qp.start_anew(&resume);
        }
        qp.moving.let_go();
        qp.core.sq.release();
        qp.starve(0);
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            // A queue that was draining has nothing under way in a new transport. That reads no
            // time.
            qp.finish_call(&mut self.shared.cx(&self.config, Time::ZERO));
        }
        self.after(slot);
        Ok(())
    }

    /// Puts a fence into a QP's requests: those that are posted behind the next one that asks for a
    /// completion queue up, and are not sent. If none is outstanding, the fence is here.
    pub fn fence_sends(&mut self, qpn: Qpn) -> Result<(), ControlError> {
        let qp = self.movable(qpn)?;
        let sq = &mut qp.core.sq;
        qp.moving.fence_wanted = !sq.is_empty();
        if sq.is_empty() {
            sq.withhold_from(sq.tail());
        }
        Ok(())
    }

    /// How far a QP is with its fence.
    pub fn fence(&self, qpn: Qpn) -> Fence {
        let Some(qp) = self.qp(qpn) else {
            return Fence::None;
        };
        match qp.core.sq.withheld_from() {
            _ if qp.moving.fence_wanted => Fence::WaitSignaled,
            None => Fence::None,
            Some(number) if qp.core.sq.head() < number => Fence::WaitDrained,
            Some(_) => Fence::Drained,
        }
    }

    /// Fails a QP as if its retries were exhausted: the oldest request gets that status, and
    /// everything else is flushed.
    pub fn fail_qp(&mut self, now: Time, qpn: Qpn) -> Result<(), ControlError> {
        let slot = self.slot(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(ControlError::NotFound { what: "queue pair" });
        };
        if qp.moving.hold == Hold::Away {
            let why = "its queues are elsewhere";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        qp.moving.hold = Hold::Nothing;
        qp.fail_unreachable(&mut self.shared.cx(&self.config, now));
        self.after(slot);
        Ok(())
    }

    fn movable(&mut self, qpn: Qpn) -> Result<&mut crate::qp::Qp, ControlError> {
        let qp = self.qp_mut(qpn)?;
        if !qp.core.descriptor.movable {
            let why = "its transport cannot move";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        Ok(qp)
    }
}
