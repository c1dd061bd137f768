//! Where a provider departs from the header it implements, and how that was established.

use crate::Caps;

/// The flag of a completion that says that a key was revoked.
///
/// The header has 8. rxe writes the kernel's own flags into the queue that it shares with programs,
/// and there it is 4: seen in the completion of a receive that a SEND with invalidate consumed
/// (Linux 6.1).
pub(crate) fn invalidation_flag(vendor_id: u32) -> u32 {
    match vendor_id {
        Caps::RXE => 4,
        _ => bowline_verbs_types::IBV_WC_WITH_INV,
    }
}
