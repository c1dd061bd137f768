//! Records of work requests, a few bytes each and without their payload.
//!
//! A new request overwrites one that was posted more than a whole queue earlier. A provider has no
//! room for more, so the old one has completed. Nothing is removed on completion. Outstanding
//! requests are found when needed, by going back from the newest request: as many signaled requests
//! as have been posted and not polled, and the unsignaled requests between them.

mod cursor;
mod forms;
mod recv;
mod send;
mod storage;
mod track;

#[cfg(test)]
mod tests;

use bowline_verbs_types::ibv_sge;

pub(crate) use cursor::{RecvCursor, SendCursor};
pub(crate) use recv::RecvRing;
pub(crate) use send::{SendRing, is_movable};

fn translate(mut sges: Vec<ibv_sge>, local: impl Fn(u32) -> Option<u32>) -> Option<Vec<ibv_sge>> {
    for sge in &mut sges {
        sge.lkey = local(sge.lkey)?;
    }
    Some(sges)
}

/// The scatter/gather entries of a request.
///
/// # Safety
/// It is the list of a request that the program posts.
unsafe fn pieces<'a>(list: *const ibv_sge, count: i32) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: upheld by the caller.
        Ok(count @ 1..) => unsafe { core::slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

/// Copies inline data, whose memory the program may reuse after the call.
fn inline_bytes(sges: &[ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        // SAFETY: inline data is in the program's memory, and the provider reads it too.
        bytes.extend_from_slice(unsafe {
            core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
        });
    }
    bytes
}
