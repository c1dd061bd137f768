//! One connection, or one resolution of a service.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::Qpn;

use crate::mad::{CommId, MAD_LEN};
use crate::{CmTimeout, ServiceId};

/// The shortest and the longest time between retransmissions, whatever a peer asks for.
const MIN_INTERVAL: CmTimeout = CmTimeout::new(12);
const MAX_INTERVAL: CmTimeout = CmTimeout::new(21);
/// The longest time that an MRA can make us wait.
const MAX_SERVICE: CmTimeout = CmTimeout::new(25);

/// The state of a connection. In any of these the application may have let go of it
/// (`Connection::owned`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Active: REQ is being retransmitted.
    ReqSent,
    /// Active: the application has yet to establish or reject.
    RepReceived,
    /// Passive: the application has yet to accept or reject.
    ReqReceived,
    /// Passive: REP is being retransmitted.
    RepSent,
    /// In use.
    Established,
    /// DREQ is being retransmitted.
    DreqSent,
    /// Ended by both ends; kept to answer duplicates.
    TimeWait,
    /// Rejected or given up by this end; kept to reject again.
    Refused,
    /// Active: SIDR_REQ is being retransmitted.
    SidrSent,
    /// Passive: the application has yet to answer.
    SidrReceived,
    /// Passive: kept to answer again.
    SidrReplied,
    /// Over. Only the application still holds its ID.
    Closed,
}

impl State {
    /// Whether the connection occupies the peer's queue pair.
    pub(super) fn holds_peer_qp(self) -> bool {
        matches!(self, State::Established | State::DreqSent)
    }

    /// Whether it counts against its listener's backlog.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, State::ReqReceived | State::SidrReceived)
    }
}

/// Who asked whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Passive,
}

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) peer: IpAddr,
    pub(super) service: ServiceId,
    /// The listener whose backlog it counts against.
    pub(super) listener: u64,
    /// The transaction of the handshake.
    pub(super) tid: u64,
    /// That of this end's DREQ.
    pub(super) dreq_tid: u64,
    /// The peer's ID of the connection; 0 until it is known.
    pub(super) remote_id: CommId,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// Whether the application still wants its events.
    pub(super) owned: bool,
    /// What to retransmit: by the timer, or because the peer repeats what this answers.
    pub(super) repeat: Option<Box<[u8; MAD_LEN]>>,
    pub(super) retries_left: u8,
    pub(super) max_retries: u8,
    pub(super) interval_ns: u64,
    pub(super) deadline: Option<Time>,
}

impl Connection {
    pub(super) fn new(role: Role, peer: IpAddr, service: ServiceId, tid: u64) -> Connection {
        Connection {
            role,
            state: State::Closed,
            peer,
            service,
            listener: 0,
            tid,
            dreq_tid: 0,
            remote_id: CommId(0),
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            owned: true,
            repeat: None,
            retries_left: 0,
            max_retries: 0,
            interval_ns: 0,
            deadline: None,
        }
    }

    /// Sets the interval and number of retransmissions, within bounds.
    pub(super) fn pace(&mut self, interval: CmTimeout, retries: u8) {
        self.interval_ns = interval.clamp(MIN_INTERVAL, MAX_INTERVAL).nanos();
        self.max_retries = retries;
        self.retries_left = retries;
    }

    /// Stores a message for retransmission, with all its retries.
    pub(super) fn repeat(&mut self, mad: [u8; MAD_LEN]) {
        self.repeat = Some(Box::new(mad));
        self.retries_left = self.max_retries;
    }

    /// When to retransmit after an MRA.
    pub(super) fn after_mra(&self, now: Time, service: CmTimeout) -> Time {
        now.plus_nanos(service.min(MAX_SERVICE).nanos()).plus_nanos(self.interval_ns)
    }
}
