//! Reports of what happened to connections, for logs, counters and timelines.

use core::time::Duration;

use bowline_nic::Time;
use bowline_wire::Qpn;

use crate::rail::Rail;

/// Why a connection moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The link of our own port went down.
    LocalPort,
    /// The link of the peer's port went down, as the peer reports.
    PeerPort,
    /// No answer, although both ends report that their ports are up: the path between them failed.
    Path,
    /// The default rail works again.
    Return,
}

impl Cause {
    /// The cause in words.
    pub fn text(self) -> &'static str {
        match self {
            Cause::LocalPort => "local port down",
            Cause::PeerPort => "peer's port down",
            Cause::Path => "path dead",
            Cause::Return => "default rail works again",
        }
    }
}

/// How a move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection continues over the other rail.
    Moved {
        /// Time from noticing the failure to sending again.
        handover_ns: u64,
        /// Number of outstanding requests that moved along.
        requests: u64,
    },
    /// It failed: the peer answered on neither rail.
    NoAnswer,
    /// It failed: an atomic was in flight, which cannot be repeated ([`crate::Mode::Shift`]).
    AtomicInFlight,
    /// It failed: no backup of the peer is known.
    NoBackup,
    /// It failed: it moved from rail to rail without making progress.
    NoProgress,
}

impl Outcome {
    /// How long the connection could not send; `None` if it failed.
    pub fn handover(self) -> Option<Duration> {
        match self {
            Outcome::Moved { handover_ns, .. } => Some(Duration::from_nanos(handover_ns)),
            _ => None,
        }
    }
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it ended.
    pub at: Time,
    /// The QPN that the program knows.
    pub qpn: Qpn,
    /// Number of the connection's moves so far.
    pub epoch: u32,
    /// The rail that it was on.
    pub from: Rail,
    /// The rail that it is on now.
    pub to: Rail,
    /// Why.
    pub cause: Cause,
    /// How long the peer had been silent when the failure was noticed; `None` if it was not noticed
    /// by silence.
    pub detect_ns: Option<u64>,
    /// How the move ended.
    pub outcome: Outcome,
}
