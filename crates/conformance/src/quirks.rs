//! Where Linux's rxe departs from the standard, and how that was established.
//!
//! Each function says what an end of this [`Maker`] does; for ours it is what the standard says.
//! All of it was seen with rxe of Linux 6.1 (Debian 12).

use bowline_nic::WcStatus;

use crate::Maker;

/// Whether SEND with invalidate can revoke the keys of memory windows only.
///
/// A SEND with invalidate that names an ordinary region of the guest's failed its receive with
/// "remote invalid request", and the guest's kernel logged `rxe_invalidate_mr: mr->type (3) is
/// wrong type`: rxe revokes fast-registered regions, which only the kernel can make, and windows.
pub fn revokes_windows_only(responder: Maker) -> bool {
    responder == Maker::Rxe
}

/// Whether a request that breaks the access rules raises an event at the responder.
///
/// The standard wants an affiliated asynchronous error. rxe's queue pair went to the error state
/// and its NAK (syndrome 0x62) arrived, but `ibv_get_async_event` had nothing, however long it was
/// asked.
pub fn raises_access_events(responder: Maker) -> bool {
    responder == Maker::Bowline
}

/// How a message ends that is longer than the receive it meets: for the requester, and for the
/// receive.
///
/// The standard has "remote invalid request" (NAK 0x61) and "local length error". rxe sends NAK
/// 0x63, seen in a capture, which makes it "remote operation error", and completes the receive as
/// a "local QP operation error".
pub fn too_long_for_receive(responder: Maker) -> [WcStatus; 2] {
    match responder {
        Maker::Bowline => [WcStatus::RemInvReqErr, WcStatus::LocLenErr],
        Maker::Rxe => [WcStatus::RemOpErr, WcStatus::LocQpOpErr],
    }
}

/// How a send ends whose local key does not exist any more.
///
/// The standard has "local protection error"; rxe's requester reports a "local QP operation error"
/// and sends nothing, so this is not Bowline's doing.
pub fn dead_local_key(requester: Maker) -> WcStatus {
    match requester {
        Maker::Bowline => WcStatus::LocProtErr,
        Maker::Rxe => WcStatus::LocQpOpErr,
    }
}

/// Whether a receive is flushed that is posted to a queue pair already in error.
///
/// rxe's user library puts receives into a queue that it shares with the kernel and does not call
/// it, so nobody looks there: the completion had not come after ten seconds. (Sends do call.)
pub fn flushes_late_receives(end: Maker) -> bool {
    end == Maker::Bowline
}

/// Whether a completion marks a revoked key by the bit 4 of its flags, where the verbs API has 8.
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
/// rxe's completed it as a "local QP operation error" and was in the error state then; an RC queue
/// pair of the same domain revoked the window that the UC one had bound.
pub fn revokes_on_uc(end: Maker) -> bool {
    end == Maker::Bowline
}

/// Whether a retry count of 7 is without end.
///
/// To the standard only an RNR retry count is. A guest's `ibv_rc_pingpong`, which sets 7, whose
/// peer had left waited for thirty seconds until it was killed, with a timeout of 67 ms; with a
/// count of 2 rxe gave up as it should.
pub fn seven_retries_never_end(requester: Maker) -> bool {
    requester == Maker::Rxe
}

/// Whether an end knows the opcodes of XP.
///
/// The standard leaves them to the manufacturer; rxe drops packets of opcodes that it does not
/// know.
pub fn speaks_xp(end: Maker) -> bool {
    end == Maker::Bowline
}
