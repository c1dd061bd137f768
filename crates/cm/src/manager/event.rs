//! Events and errors for the application.

use core::net::IpAddr;

use crate::ServiceId;
use crate::mad::{CommId, Rej, RejectReason, Rep, Req, Rtu, SidrRep, SidrReq};

/// What has happened to a connection, or to a resolution of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer asks for a connection with a listener: accept or reject it.
    Request {
        /// Its ID, which the application now owns.
        id: CommId,
        /// The peer.
        from: IpAddr,
        /// The peer's request.
        req: Box<Req>,
    },
    /// The peer has accepted: establish or reject.
    Reply {
        /// The connection.
        id: CommId,
        /// The peer's reply.
        rep: Box<Rep>,
    },
    /// The peer is ready: the passive end may send.
    Established {
        /// The connection.
        id: CommId,
        /// The private data of the peer's application; zeros if its RTU has not arrived.
        private_data: Box<[u8; Rtu::PRIVATE_LEN]>,
    },
    /// The peer has rejected, or given up.
    Rejected {
        /// The connection.
        id: CommId,
        /// Why.
        reason: RejectReason,
        /// The private data of the peer's application.
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
    /// No packet of the connection can be in flight any more.
    TimewaitExit {
        /// The connection.
        id: CommId,
    },
    /// A peer asks for the queue pair of a datagram service: answer it.
    SidrRequest {
        /// Its ID, which the application now owns.
        id: CommId,
        /// The peer.
        from: IpAddr,
        /// The peer's request.
        req: Box<SidrReq>,
    },
    /// The answer to a resolution, whatever its status.
    SidrReply {
        /// The resolution.
        id: CommId,
        /// The peer's response.
        rep: Box<SidrRep>,
    },
}

impl Event {
    /// The ID of its connection or resolution.
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
    /// The peer does not respond: this end disconnected, or its transport noticed.
    PeerSilent,
    /// The peer had given up before the RTU reached it.
    Rejected(RejectReason),
    /// The peer uses the queue pair for another connection.
    Replaced,
}

/// Why a call fails. The caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The application does not own this ID.
    #[error("there is no connection {:#010x}", .0.0)]
    Unknown(CommId),
    /// The state does not allow it.
    #[error("connection {:#010x} is not in a state for {call}", .id.0)]
    State {
        /// The connection.
        id: CommId,
        /// What was asked for.
        call: &'static str,
    },
    /// The service already has a listener.
    #[error("somebody listens for service {:#018x} already", .0.0)]
    InUse(ServiceId),
    /// The connection limit is reached.
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
    /// IDs, address or transaction do not match a connection.
    pub drop_unknown: u64,
    /// The state does not allow it.
    pub drop_state: u64,
    /// The listener's backlog is full.
    pub drop_backlog: u64,
    /// Requests from a queue pair that is in use.
    pub stale: u64,
}
