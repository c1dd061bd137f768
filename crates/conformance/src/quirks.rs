//! Where Linux's rxe departs from the standard, and how that was established.
//!
//! Each function describes an end of this [`Maker`]; ours follows the standard. All of it was
//! observed with rxe of Linux 6.1 (Debian 12).

use bowline_nic::WcStatus;

use crate::Maker;

/// Whether SEND with invalidate can only revoke the keys of memory windows.
///
/// A SEND with invalidate that names an ordinary region of the guest's failed its receive with
/// "remote invalid request", and the guest's kernel logged `rxe_invalidate_mr: mr->type (3) is
/// wrong type`: rxe revokes fast-registered regions, which only the kernel can make, and windows.
pub fn revokes_windows_only(responder: Maker) -> bool {
    responder == Maker::Rxe
}

/// Whether a request that breaks the access rules raises an event at the responder.
///
/// The standard requires an affiliated asynchronous error. rxe's queue pair went to the error state
/// and its NAK (syndrome 0x62) arrived, but `ibv_get_async_event` returned nothing, however long we
/// waited.
pub fn raises_access_events(responder: Maker) -> bool {
    responder == Maker::Bowline
}

/// The statuses of a message that is longer than its receive: at the requester, and of the receive.
///
/// The standard requires "remote invalid request" (NAK 0x61) and "local length error". rxe sends
/// NAK 0x63, seen in a capture, which means "remote operation error", and completes the receive
/// with a "local QP operation error".
pub fn too_long_for_receive(responder: Maker) -> [WcStatus; 2] {
    match responder {
        Maker::Bowline => [WcStatus::RemInvReqErr, WcStatus::LocLenErr],
        Maker::Rxe => [WcStatus::RemOpErr, WcStatus::LocQpOpErr],
    }
}

/// The status of a send whose local key does not exist any more.
///
/// The standard requires "local protection error"; rxe's requester reports a "local QP operation
/// error" and sends nothing, so Bowline is not the cause.
pub fn dead_local_key(requester: Maker) -> WcStatus {
    match requester {
        Maker::Bowline => WcStatus::LocProtErr,
        Maker::Rxe => WcStatus::LocQpOpErr,
    }
}

/// Whether a receive posted to a queue pair already in error is flushed.
///
/// rxe's user library puts receives into a queue that it shares with the kernel without a system
/// call, so nobody processes them: the completion had not come after ten seconds. (Sends do call.)
pub fn flushes_late_receives(end: Maker) -> bool {
    end == Maker::Bowline
}

/// Whether a completion marks a revoked key with bit 4 of its flags, where the verbs API has 8.
///
/// rxe writes the kernel's own flags into the queue that it shares with programs. There 4 means
/// "with invalidate"; to a program it means "IP checksum is right". Seen in the completion of a
/// receive that a SEND with invalidate consumed: its flags were 4, and the word that holds
/// immediate data or a key held the revoked key.
pub fn marks_invalidation_wrongly(responder: Maker) -> bool {
    responder == Maker::Rxe
}

/// Whether a queue pair of an unreliable connection can revoke keys.
///
/// The standard has local invalidation for reliable and unreliable connections. A UC queue pair of
/// rxe completed it with a "local QP operation error" and went to the error state; an RC queue pair
/// of the same domain revoked the window that the UC one had bound.
pub fn revokes_on_uc(end: Maker) -> bool {
    end == Maker::Bowline
}

/// Whether a retry count of 7 means infinite.
///
/// In the standard, only an RNR retry count of 7 does. A guest's `ibv_rc_pingpong`, which sets 7,
/// waited for thirty seconds for a peer that had left, until it was killed, with a timeout of 67
/// ms; with a count of 2 rxe gave up as it should.
pub fn seven_retries_never_end(requester: Maker) -> bool {
    requester == Maker::Rxe
}

/// Whether an end supports the opcodes of XP.
///
/// The standard leaves them to the manufacturer; rxe drops packets with unknown opcodes.
pub fn speaks_xp(end: Maker) -> bool {
    end == Maker::Bowline
}
