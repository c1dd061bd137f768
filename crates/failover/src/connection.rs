//! A connection as its agent sees it.

use bowline_nic::{Resume, Time};
use bowline_wire::{Psn, Qpn};

use crate::entry::Entry;
use crate::rail::Rail;
use crate::report::Cause;

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Both ends are on its home rail.
    Settled,
    /// Moved, its sends withheld until the peer says that it has moved too.
    Waiting(Handover),
    /// On the way back to the default rail ([`crate::Mode::Shift`]): the requests before a fence
    /// are being finished, then the peer is asked to come along.
    Returning(Fencing),
    /// The peer wants to return: the requests before a fence are being finished for it.
    Draining {
        /// The peer's attempt.
        number: u32,
        /// When to call it off.
        until: Time,
    },
    /// Given up.
    Failed,
}

/// A move under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    /// When it was found necessary.
    pub(crate) since: Time,
    pub(crate) from: Rail,
    pub(crate) cause: Cause,
    pub(crate) detect_ns: Option<u64>,
    pub(crate) requests: u64,
    /// When to say it again.
    pub(crate) repeat_at: Time,
    /// How often it has been said.
    pub(crate) said: u32,
}

/// A return that waits for its fence, or for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fencing {
    /// When it began.
    pub(crate) since: Time,
    /// When the peer was first asked, or last heard of; `None` while requests are not done.
    pub(crate) heard: Option<Time>,
    /// When to look, or to ask, again.
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
    /// What it had received, and expects, since it came to where it is.
    pub(crate) resume: Resume,
    /// Its own latest attempt to return.
    pub(crate) attempt: u32,
    /// The peer's latest that was called off.
    pub(crate) refused: Option<u32>,
    /// How many of the peer's were called off since the connection last moved: each is given more
    /// time than the one before.
    pub(crate) refusals: u32,
    /// Until when it does not try to return.
    pub(crate) rests_until: Option<Time>,
    /// Requests done and messages received when it last moved, and how often that has not changed.
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

    /// Its QP on the rail where it is.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpns[self.home.index()]
    }

    /// When it wants to be looked at.
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
