//! Completion events. The program's channel belongs to the kernel, and only the kernel can raise an
//! event on it. So `ibv_get_cq_event` waits in short slices, and checks in between whether a queue
//! has completions that the first device does not know about.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bowline_ibverbs::Library;
use bowline_verbs_types::{ibv_comp_channel, ibv_cq};

use crate::cq::Cq;

/// Length of a slice: while a queue needs checking, and otherwise.
const BUSY_MS: c_int = 2;
const IDLE_MS: c_int = 50;

fn queues() -> MutexGuard<'static, HashMap<usize, Vec<Arc<Cq>>>> {
    static QUEUES: OnceLock<Mutex<HashMap<usize, Vec<Arc<Cq>>>>> = OnceLock::new();
    QUEUES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a queue that reports to a channel.
pub(crate) fn join(cq: &Arc<Cq>) {
    if !cq.channel.is_null() {
        queues().entry(cq.channel as usize).or_default().push(Arc::clone(cq));
    }
}

/// Removes a queue.
pub(crate) fn leave(cq: &Cq) {
    let mut queues = queues();
    if let Some(of_channel) = queues.get_mut(&(cq.channel as usize)) {
        of_channel.retain(|other| !std::ptr::eq(&**other, cq));
    }
}

fn of(channel: *mut ibv_comp_channel) -> Vec<Arc<Cq>> {
    queues().get(&(channel as usize)).cloned().unwrap_or_default()
}

/// `ibv_get_cq_event`.
///
/// # Safety
/// Same as for that function.
pub(crate) unsafe fn get(
    library: &Library,
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    tag: *mut *mut c_void,
) -> c_int {
    // SAFETY: upheld by the caller.
    let real = || unsafe { (library.ibv_get_cq_event)(channel, cq, tag) };
    let watched = of(channel);
    if watched.is_empty() {
        return real();
    }
    // SAFETY: the program passed a valid channel; neither call touches our memory.
    let (fd, blocks) = unsafe {
        let fd = (*channel).fd;
        (fd, libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0)
    };
    loop {
        let special = watched.iter().any(|cq| cq.is_special());
        let waiting =
            |cq: &&Arc<Cq>| cq.is_special() && cq.armed.load(Ordering::Acquire) && cq.drain() > 0;
        if let Some(found) = watched.iter().find(waiting) {
            found.armed.store(false, Ordering::Release);
            found.given.fetch_add(1, Ordering::AcqRel);
            // SAFETY: the caller provided both places, and the program has not destroyed the queue.
            unsafe {
                *cq = found.raw;
                *tag = (*found.raw).cq_context;
            }
            return 0;
        }
        let slice = if special { BUSY_MS } else { IDLE_MS };
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is ours.
        let ready = unsafe { libc::poll(&raw mut poll, 1, if blocks { slice } else { 0 }) };
        if ready > 0 || !blocks {
            let code = real();
            if code == 0 {
                // SAFETY: the library has filled it in.
                let raw = unsafe { *cq };
                let told = watched.iter().filter(|cq| cq.raw == raw);
                told.for_each(|cq| cq.armed.store(false, Ordering::Release));
            }
            return code;
        }
        // SAFETY: errno belongs to this thread.
        if ready < 0 && unsafe { *libc::__errno_location() } == libc::EINTR {
            return -1;
        }
    }
}

/// `ibv_ack_cq_events`. Events that this library delivered are not acknowledged to libibverbs.
///
/// # Safety
/// Same as for that function.
pub(crate) unsafe fn ack(library: &Library, known: Option<&Cq>, cq: *mut ibv_cq, count: u32) {
    let ours = known.map_or(0, |known| {
        let given = known.given.load(Ordering::Acquire).min(count);
        known.given.fetch_sub(given, Ordering::AcqRel);
        given
    });
    if count > ours {
        // SAFETY: upheld by the caller.
        unsafe { (library.ibv_ack_cq_events)(cq, count - ours) };
    }
}
