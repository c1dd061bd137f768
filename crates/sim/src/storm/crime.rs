//! Bad requests, and how they must fail.

use bowline_nic::WcStatus;

/// A bad request, on its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crime {
    /// WRITE with a key that names nothing.
    WriteBadKey,
    /// READ with a key that names nothing.
    ReadBadKey,
    /// WRITE that begins inside a region and ends outside.
    WriteOutOfBounds,
    /// READ that begins inside a region and ends outside.
    ReadOutOfBounds,
    /// WRITE to a region without that access right.
    WriteNoRight,
    /// READ from a region without that access right.
    ReadNoRight,
    /// Atomic on a region without that access right.
    AtomicNoRight,
    /// WRITE over a QP whose peer does not allow it.
    WriteNoQpRight,
    /// SEND that is longer than the receive.
    SendTooLong,
    /// SEND from memory whose key names nothing.
    SendBadLocalKey,
    /// SEND into a receive whose key names nothing.
    RecvBadLocalKey,
    /// SEND to a peer that never posts a receive, with few retries.
    NeverReady,
    /// WRITE to a QP that was destroyed.
    PeerGone,
    /// WRITE with a key that a SEND just before it has revoked.
    WriteRevokedKey,
    /// Completions into a queue that holds one and is never polled.
    CqOverflow,
    /// WRITEs to a region that is deregistered meanwhile.
    RemoteDereg,
    /// WRITEs from a region that is deregistered meanwhile.
    LocalDereg,
}

impl Crime {
    /// All of them.
    pub const ALL: [Crime; 17] = [
        Crime::WriteBadKey,
        Crime::ReadBadKey,
        Crime::WriteOutOfBounds,
        Crime::ReadOutOfBounds,
        Crime::WriteNoRight,
        Crime::ReadNoRight,
        Crime::AtomicNoRight,
        Crime::WriteNoQpRight,
        Crime::SendTooLong,
        Crime::SendBadLocalKey,
        Crime::RecvBadLocalKey,
        Crime::NeverReady,
        Crime::PeerGone,
        Crime::WriteRevokedKey,
        Crime::CqOverflow,
        Crime::RemoteDereg,
        Crime::LocalDereg,
    ];

    /// How the bad request may complete at its requester, besides exceeding its retries: a NAK can
    /// be lost, and a responder in the error state answers nothing.
    pub fn statuses(self) -> &'static [WcStatus] {
        match self {
            Crime::WriteBadKey
            | Crime::ReadBadKey
            | Crime::WriteOutOfBounds
            | Crime::ReadOutOfBounds
            | Crime::WriteNoRight
            | Crime::ReadNoRight
            | Crime::AtomicNoRight
            | Crime::WriteRevokedKey
            | Crime::RemoteDereg => &[WcStatus::RemAccessErr],
            // The standard calls this an invalid request; some devices call it an access error.
            Crime::WriteNoQpRight => &[WcStatus::RemInvReqErr, WcStatus::RemAccessErr],
            Crime::SendTooLong => &[WcStatus::RemInvReqErr],
            Crime::SendBadLocalKey | Crime::LocalDereg => &[WcStatus::LocProtErr],
            Crime::RecvBadLocalKey => &[WcStatus::RemOpErr],
            Crime::NeverReady => &[WcStatus::RnrRetryExcErr],
            Crime::PeerGone | Crime::CqOverflow => &[],
        }
    }

    /// How the receive that the bad request hit may complete at the victim, apart from a flush.
    pub fn victim_statuses(self) -> &'static [WcStatus] {
        match self {
            Crime::SendTooLong => &[WcStatus::LocLenErr],
            Crime::RecvBadLocalKey => &[WcStatus::LocProtErr, WcStatus::LocAccessErr],
            _ => &[],
        }
    }

    /// Whether the request becomes bad at some time, rather than being bad from the start.
    pub fn is_gradual(self) -> bool {
        matches!(self, Crime::RemoteDereg | Crime::LocalDereg | Crime::PeerGone)
    }
}
