//! Work requests, remembered in few bytes and without their payload.
//!
//! A request is written once, over one that was posted more than a whole queue before: a provider
//! has no room for more, so that one is done. Nothing is removed when something completes. What is
//! outstanding is found when it matters, from the newest request backwards: as many requests with a
//! completion as have been posted and not polled, and the requests without one between them.

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

/// The pieces of memory of a request.
///
/// # Safety
/// It is the list of a request that the program posts.
unsafe fn pieces<'a>(list: *const ibv_sge, count: i32) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the caller's promise.
        Ok(count @ 1..) => unsafe { core::slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

/// What a program has put into pieces of memory that it may reuse after the call.
fn inline_bytes(sges: &[ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        // SAFETY: inline bytes are the program's own memory, which the provider reads as well.
        bytes.extend_from_slice(unsafe {
            core::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
        });
    }
    bytes
}
