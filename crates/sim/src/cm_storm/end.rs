//! What an application knows of its end of a connection, and what the checker keeps of it.

use bowline_cm::mad::{RejectReason, Rep, Req, SidrRep, SidrReq};
use bowline_cm::{CommId, Ended};
use bowline_nic::Time;
use bowline_wire::Qpn;

/// How an end finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its process died.
    Killed,
    /// The peer rejected it, with this reason.
    Rejected(RejectReason),
    /// It rejected the peer.
    Refused,
    /// The peer did not answer.
    Unreachable,
    /// The connection had been in use.
    Disconnected(Ended),
    /// The application forgot it.
    Forgot,
    /// The resolution is done.
    Resolved,
}

impl Why {
    /// Whether the other end may still be established: the message that would have told it can be
    /// lost.
    pub(super) fn may_be_unheard(self) -> bool {
        !matches!(
            self,
            Why::Rejected(_)
                | Why::Resolved
                | Why::Disconnected(Ended::ByUs | Ended::ByPeer | Ended::Rejected(_))
        )
    }
}

/// The state of an end as its application sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Active: waits for a reply. Passive: considers the request.
    Asked,
    /// Active: considers the reply.
    Replied,
    /// Passive: it has accepted.
    Accepted,
    /// In use.
    Established,
    /// It has asked to disconnect.
    Hanging,
    /// Over.
    Over(Why),
}

/// One end.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) host: usize,
    /// Which process of the host.
    pub(super) life: u32,
    pub(super) id: CommId,
    pub(super) active: bool,
    /// It is a resolution.
    pub(super) sidr: bool,
    /// The attempt it belongs to; none for a forged request.
    pub(super) attempt: Option<usize>,
    pub(super) qpn: Qpn,
    /// For an active end: the end whose reply it has.
    pub(super) peer: Option<usize>,
    pub(super) view: View,
    /// Whether it was ever in use.
    pub(super) was_established: bool,
    /// Whether it ever rejected or was forgotten.
    pub(super) said_no: bool,
    /// Whether it ever gave up waiting.
    pub(super) gave_up: bool,
    /// The reply with which it accepted.
    pub(super) rep: Option<Box<Rep>>,
    /// Its answer to a resolution.
    pub(super) sidr_rep: Option<Box<SidrRep>>,
}

impl End {
    pub(super) fn is_over(&self) -> bool {
        matches!(self.view, View::Over(_))
    }
}

/// A connect or a resolution, and the ends that took part.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) at: Time,
    pub(super) from: usize,
    pub(super) to: usize,
    /// What was asked for.
    pub(super) asked: Asked,
    /// The queue pair had been in another connection before.
    pub(super) reused: bool,
    /// It is made on a healed network, and must succeed.
    pub(super) strict: bool,
    pub(super) active: usize,
    pub(super) passives: Vec<usize>,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Connection(Box<Req>),
    Service(Box<SidrReq>),
}

/// Private data that encodes the attempt it belongs to.
pub(super) fn stamp<const N: usize>(attempt: usize, salt: u64) -> [u8; N] {
    let mut out = [0; N];
    out[..8].copy_from_slice(&(attempt as u64).to_be_bytes());
    out[8..16].copy_from_slice(&salt.to_be_bytes());
    out
}

/// The attempt that private data names.
pub(super) fn stamped(data: &[u8]) -> Option<usize> {
    let number = data.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))?;
    usize::try_from(number).ok()
}
