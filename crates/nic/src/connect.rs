//! Taking a QP from reset to ready to send in one call.
//!
//! Verbs programs do this in three `modify_qp` steps, and users of an engine can too. Most have
//! nothing to do in between, and know beforehand everything that the steps ask for.

use core::net::IpAddr;

use bowline_wire::{Psn, Qpn};

use crate::error::ModifyError;
use crate::nic::Nic;
use crate::time::Time;
use crate::types::{Access, AddressVector, Mtu, QpAttr, QpState, QpType};

/// Attributes for connecting a QP. An unreliable one ignores those about acknowledgements, READs
/// and atomics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// What the peer may do to memory through the QP.
    pub access: Access,
    /// Where the peer is.
    pub av: AddressVector,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics that we may have outstanding there.
    pub max_rd_atomic: u8,
    /// RNR NAK timer code that we ask the peer to wait.
    pub min_rnr_timer: u8,
    /// Retransmission timeout: 4.096 µs times 2 to this power.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
}

impl Connect {
    /// Connects to a QP of an engine at `peer`: PSNs from 0, an MTU of 1024 bytes, and the timeout
    /// and retry counts that most verbs programs use. The peer may read, write and do atomics.
    pub fn new(peer: IpAddr, dest_qpn: Qpn) -> Connect {
        Connect {
            access: Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
            av: AddressVector::new(peer),
            dest_qpn,
            path_mtu: Mtu::B1024,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 16,
            max_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
        }
    }

    /// The three `modify_qp` steps for a connected QP of this type.
    pub fn steps(&self, qp_type: QpType) -> [QpAttr; 3] {
        let reliable = qp_type.descriptor().reliable;
        let init = QpAttr { access: Some(self.access), ..to_init() };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(self.av),
            path_mtu: Some(self.path_mtu),
            dest_qpn: Some(self.dest_qpn),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: reliable.then_some(self.max_dest_rd_atomic),
            min_rnr_timer: reliable.then_some(self.min_rnr_timer),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            timeout: reliable.then_some(self.timeout),
            retry_count: reliable.then_some(self.retry_count),
            rnr_retry: reliable.then_some(self.rnr_retry),
            max_rd_atomic: reliable.then_some(self.max_rd_atomic),
            ..to_rts(self.sq_psn)
        };
        [init, rtr, rts]
    }

    /// The three `modify_qp` steps for a QP without a peer.
    pub fn datagram_steps(qkey: u32, sq_psn: Psn) -> [QpAttr; 3] {
        let init = QpAttr { qkey: Some(qkey), ..to_init() };
        let rtr = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        [init, rtr, to_rts(sq_psn)]
    }
}

fn to_init() -> QpAttr {
    QpAttr { state: Some(QpState::Init), pkey_index: Some(0), port: Some(1), ..QpAttr::default() }
}

fn to_rts(sq_psn: Psn) -> QpAttr {
    QpAttr { state: Some(QpState::Rts), sq_psn: Some(sq_psn), ..QpAttr::default() }
}

impl Nic {
    /// Takes a connected QP from reset to ready to send.
    ///
    /// # Errors
    /// Those of [`Nic::modify_qp`]; the QP then stays in the state that the last good step reached.
    pub fn connect(&mut self, now: Time, qpn: Qpn, to: &Connect) -> Result<(), ModifyError> {
        let info = self.query_qp(qpn).ok_or(ModifyError::NoSuchQp(qpn))?;
        let steps = to.steps(info.init.qp_type);
        steps.iter().try_for_each(|step| self.modify_qp(now, qpn, step))
    }

    /// Takes a QP without a peer from reset to ready to send, with PSNs from 0.
    ///
    /// # Errors
    /// Those of [`Nic::modify_qp`]; the QP then stays in the state that the last good step reached.
    pub fn activate(&mut self, now: Time, qpn: Qpn, qkey: u32) -> Result<(), ModifyError> {
        let steps = Connect::datagram_steps(qkey, Psn::new(0));
        steps.iter().try_for_each(|step| self.modify_qp(now, qpn, step))
    }
}
