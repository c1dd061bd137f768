//! What a manager tells its application.

use core::net::IpAddr;

use crate::ServiceId;
use crate::mad::{CommId, Rej, RejectReason, Rep, Req, Rtu, SidrRep, SidrReq};

/// What has happened to a connection, or to a resolution of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection with a listener: accept or reject it.
    Request {
        /// Its number, which is the application's now.
        id: CommId,
        /// The peer.
        from: IpAddr,
        /// What the peer says.
        req: Box<Req>,
    },
    /// The peer has accepted: establish or reject.
    Reply {
        /// The connection.
        id: CommId,
        /// What the peer says.
        rep: Box<Rep>,
    },
    /// The peer is ready: the passive end may send.
    Established {
        /// The connection.
        id: CommId,
        /// What the peer's application says; zeros if its RTU has not come.
        private_data: Box<[u8; Rtu::PRIVATE_LEN]>,
    },
    /// The peer has refused, or given up.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        reason: RejectReason,
        /// What the peer's application says.
        private_data: Box<[u8; Rej::PRIVATE_LEN]>,
    },
    /// The peer does not answer.
    Unreachable {
        /// The connection.
        id: CommId,
    },
    /// The connection has ended.
    Disconnected {
        /// The connection.
        id: CommId,
        /// How.
        how: Ended,
    },
    /// Nothing of the connection is on its way any more.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// A peer asks for the queue pair of a datagram service: answer it.
    SidrRequest {
        /// Its number, which is the application's now.
        id: CommId,
        /// The peer.
        from: IpAddr,
        /// What the peer says.
        req: Box<SidrReq>,
    },
    /// The answer to a resolution, whatever its status.
    SidrReply {
        /// The resolution.
        id: CommId,
        /// What the peer says.
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// What it is about.
    pub fn id(&self) -> CommId {
        match *self {
            Event::Request { id, .. }
            | Event::Reply { id, .. }
            | Event::Established { id, .. }
            | Event::Rejected { id, .. }
            | Event::Unreachable { id }
            | Event::Disconnected { id, .. }
            | Event::TimewaitExit { id }
            | Event::SidrRequest { id, .. }
            | Event::SidrReply { id, .. } => id,
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The peer asked for it.
    ByPeer,
    /// This end asked for it, and the peer agrees.
    ByUs,
    /// The peer does not answer: this end asked for it, or its transport found out.
    PeerSilent,
    /// The peer had given up before the RTU reached it.
    Rejected(RejectReason),
    /// The peer uses the queue pair for another connection.
    Replaced,
}

/// Why a call is refused. The caller's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The number is not the application's.
    #[error("there is no connection {:#010x}", .0.0)]
    Unknown(CommId),
    /// Not in this state.
    #[error("connection {:#010x} is not in a state for {call}", .id.0)]
    State {
        /// The connection.
        id: CommId,
        /// What was asked for.
        call: &'static str,
    },
    /// The service has a listener.
    #[error("somebody listens for service {:#018x} already", .0.0)]
    InUse(ServiceId),
    /// No more connections.
    #[error("no more than {0} connections")]
    Full(usize),
}

/// What a manager has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages sent.
    pub sent: u64,
    /// Of those, sent again by a timer.
    pub retransmitted: u64,
    /// Messages received.
    pub received: u64,
    /// Messages that repeat what was answered before.
    pub duplicates: u64,
    /// Not a message of the CM.
    pub malformed: u64,
    /// IDs, address or transaction are not those of a connection.
    pub drop_unknown: u64,
    /// The state does not allow for it.
    pub drop_state: u64,
    /// The listener's backlog is full.
    pub drop_backlog: u64,
    /// Requests from a queue pair that is in use.
    pub stale: u64,
}
