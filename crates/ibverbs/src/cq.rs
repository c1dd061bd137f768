//! Completion queues.

use core::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use bowline_io::EventChannel;
use bowline_nic::{Completion, CqId};
use bowline_verbs_types::{ibv_cq, ibv_wc};

use crate::wc::completion;
use crate::{Context, VerbsError};

/// Completions taken from the provider at a time.
const BATCH: usize = 16;

/// A completion queue.
pub struct Cq {
    context: Arc<Context>,
    pub(crate) raw: *mut ibv_cq,
    id: CqId,
    poll: PollCq,
    request: RequestNotify,
}

// SAFETY: verbs objects may be used from any thread, and from several at once.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type RequestNotify = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

impl Cq {
    /// Makes a queue for `depth` completions. Its events go to a channel, under a token.
    pub fn create(
        context: &Arc<Context>,
        depth: u32,
        notify: Option<(Arc<EventChannel<u64>>, u64)>,
    ) -> Result<Cq, VerbsError> {
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        let channel = if notify.is_some() { context.channel } else { null_mut() };
        // SAFETY: the context is open and the channel its own.
        let raw =
            unsafe { (context.library.ibv_create_cq)(context.raw, depth, null_mut(), channel, 0) };
        if raw.is_null() {
            return Err(VerbsError::last("create a completion queue"));
        }
        // SAFETY: an open context has its table, in which every provider has these.
        let (poll, request) = unsafe {
            let ops = &raw const (*context.raw).ops;
            ((&raw const (*ops).poll_cq).read(), (&raw const (*ops).req_notify_cq).read())
        };
        let id = context.watched.add_cq(raw, notify);
        Ok(Cq { context: Arc::clone(context), raw, id, poll, request })
    }

    /// Its identifier, as [`Event::CqOverflow`](bowline_nic::Event::CqOverflow) names it.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Takes completions; returns how many.
    pub fn poll(&self, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let mut taken = 0;
        while taken < out.len() {
            let room = (out.len() - taken).min(BATCH);
            let mut wcs = [ibv_wc::default(); BATCH];
            // SAFETY: the queue lives, and there is room for so many.
            let got = unsafe { (self.poll)(self.raw, room as c_int, wcs.as_mut_ptr()) };
            let Ok(got) = usize::try_from(got) else {
                return Err(VerbsError::last("poll a completion queue"));
            };
            let got = got.min(room);
            for (out, wc) in out[taken..].iter_mut().zip(&wcs[..got]) {
                *out = completion(wc, self.context.invalidation_flag);
            }
            taken += got;
            if got < room {
                break;
            }
        }
        Ok(taken)
    }

    /// Asks for one event at the next completion, or at the next that is solicited or failed.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        // SAFETY: the queue lives.
        let code = unsafe { (self.request)(self.raw, c_int::from(solicited_only)) };
        VerbsError::check("ask for a completion event", code)
    }

    /// Changes how many completions there is room for.
    pub fn resize(&self, depth: u32) -> Result<(), VerbsError> {
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives.
        let code = unsafe { (self.context.library.ibv_resize_cq)(self.raw, depth) };
        VerbsError::check("resize a completion queue", code)
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.context.watched.remove_cq(self.raw);
        // SAFETY: the queue pairs that use it hold it, so that none is left; it ends once.
        let _ = unsafe { (self.context.library.ibv_destroy_cq)(self.raw) };
    }
}
