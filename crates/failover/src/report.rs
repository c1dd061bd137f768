//! What has happened to connections, for logs, counters and timelines.

use core::time::Duration;

use bowline_nic::Time;
use bowline_wire::Qpn;

use crate::rail::Rail;

/// Why a connection moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The link of our own port went down.
    LocalPort,
    /// The link of the peer's port went down, as it says.
    PeerPort,
    /// No answer, though both ends say that their ports are up: something in between.
    Path,
    /// The default rail is good again.
    Return,
}

impl Cause {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Cause::LocalPort => "local port down",
            Cause::PeerPort => "peer's port down",
            Cause::Path => "path dead",
            Cause::Return => "default rail good again",
        }
    }
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on over the other rail.
    Moved {
        /// From the failure's being noticed to sending again.
        handover_ns: u64,
        /// Requests that were not done and went along.
        requests: u64,
    },
    /// It failed: the peer answered on neither rail.
    NoAnswer,
    /// It failed: an atomic was in flight, which cannot be repeated ([`crate::Mode::Shift`]).
    AtomicInFlight,
    /// It failed: nothing is known of a backup of the peer's.
    NoBackup,
    /// It failed: it moved from rail to rail without getting anything done.
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

/// Something that happened to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// When it was over.
    pub at: Time,
    /// The QPN that the program knows.
    pub qpn: Qpn,
    /// Counts the connection's moves.
    pub epoch: u32,
    /// Where it was.
    pub from: Rail,
    /// Where it is now.
    pub to: Rail,
    /// Why.
    pub cause: Cause,
    /// How long nothing had been heard when it was noticed; `None` where no silence told.
    pub detect_ns: Option<u64>,
    /// What became of it.
    pub outcome: Outcome,
}
