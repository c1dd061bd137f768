//! A connection, as seen by its agent.

use bowline_nic::{Resume, Time};
use bowline_wire::{Psn, Qpn};

use crate::entry::Entry;
use crate::rail::Rail;
use crate::report::Cause;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Both ends are on its home rail.
    Settled,
    /// Moved; its sends are withheld until the peer says that it has moved too.
    Waiting(Handover),
    /// Returning to the default rail ([`crate::Mode::Shift`]): the requests before a fence are
    /// completing; then the peer is asked to return too.
    Returning(Fencing),
    /// The peer wants to return: the requests before a fence are completing.
    Draining {
        /// The number of the peer's attempt.
        number: u32,
        /// When to call it off.
        until: Time,
    },
    /// Failed.
    Failed,
}

/// A move in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    /// When the need for it was noticed.
    pub(crate) since: Time,
    pub(crate) from: Rail,
    pub(crate) cause: Cause,
    pub(crate) detect_ns: Option<u64>,
    pub(crate) requests: u64,
    /// When to repeat the message.
    pub(crate) repeat_at: Time,
    /// How often the message has been sent.
    pub(crate) said: u32,
}

/// A return that waits for its fence, or for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fencing {
    /// When it began.
    pub(crate) since: Time,
    /// When the peer was first asked, or last heard from; `None` while requests are outstanding.
    pub(crate) heard: Option<Time>,
    /// When to check, or to ask, again.
    pub(crate) next_at: Time,
}

/// A connection with its spare.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) qpns: [Qpn; 2],
    pub(crate) token: u128,
    pub(crate) peer: Option<Entry>,
    pub(crate) epoch: u32,
    pub(crate) home: Rail,
    pub(crate) phase: Phase,
    /// What it had received, and expected next, when it came to its current rail.
    pub(crate) resume: Resume,
    /// The number of its own latest attempt to return.
    pub(crate) attempt: u32,
    /// The number of the peer's latest attempt that was called off.
    pub(crate) refused: Option<u32>,
    /// How many of the peer's attempts were called off since the connection last moved. Each
    /// attempt gets more time than the one before.
    pub(crate) refusals: u32,
    /// It does not try to return before this time.
    pub(crate) rests_until: Option<Time>,
    /// Number of completed requests and received messages at the last move, and how many moves in a
    /// row have found it unchanged.
    pub(crate) progress: u64,
    pub(crate) idle_moves: u32,
}

impl Connection {
    pub(crate) fn new(qpns: [Qpn; 2], token: u128) -> Connection {
        Connection {
            qpns,
            token,
            peer: None,
            epoch: 0,
            home: Rail::Default,
            phase: Phase::Settled,
            resume: Resume { received: 0, psn: Psn::new(0) },
            attempt: 0,
            refused: None,
            refusals: 0,
            rests_until: None,
            progress: 0,
            idle_moves: 0,
        }
    }

    /// Its QP on its current rail.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpns[self.home.index()]
    }

    /// When it needs attention next.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::Settled => self.rests_until,
            Phase::Failed => None,
            Phase::Waiting(handover) => Some(handover.repeat_at),
            Phase::Returning(fencing) => Some(fencing.next_at),
            Phase::Draining { until, .. } => Some(until),
        }
    }
}
