//! Shared receive queues.

use core::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use bowline_nic::{PostError, RecvWr, SrqId};
use bowline_verbs_types::{IBV_SRQ_LIMIT, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use crate::post::{post_error, recv_request};
use crate::{Pd, VerbsError};

/// A shared receive queue.
pub struct Srq {
    pub(crate) pd: Arc<Pd>,
    pub(crate) raw: *mut ibv_srq,
    id: SrqId,
    max_wr: u32,
    max_sge: usize,
    post: PostSrq,
}

// SAFETY: verbs objects may be used from any thread, and from several at once.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

type PostSrq = unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

impl Srq {
    /// Makes a queue for `max_wr` receives.
    pub fn create(pd: &Arc<Pd>, max_wr: u32, max_sge: u8) -> Result<Srq, VerbsError> {
        let attr = ibv_srq_attr { max_wr, max_sge: u32::from(max_sge), srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives, and the attributes are read during the call.
        let raw = unsafe { (pd.context.library.ibv_create_srq)(pd.raw, &raw mut init) };
        if raw.is_null() {
            return Err(VerbsError::last("create a shared receive queue"));
        }
        // SAFETY: an open context has its table; a provider that made the queue has this function.
        let post = unsafe { (&raw const (*pd.context.raw).ops.post_srq_recv).read() };
        let id = pd.context.watched.add_srq(raw);
        Ok(Srq {
            pd: Arc::clone(pd),
            raw,
            id,
            max_wr: init.attr.max_wr,
            max_sge: usize::from(max_sge),
            post,
        })
    }

    /// Its identifier, as [`Event::SrqLimit`](bowline_nic::Event::SrqLimit) names it.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// Receives that it has room for.
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Posts a receive.
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let mut request = recv_request(wr, self.max_sge)?;
        let mut bad = null_mut();
        // SAFETY: the queue lives, and the request and its list do for the call.
        let code = unsafe { (self.post)(self.raw, &raw mut request, &raw mut bad) };
        post_error(code)
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let mut attr = ibv_srq_attr { srq_limit: limit, ..ibv_srq_attr::default() };
        // SAFETY: the queue lives, and the attributes are read during the call.
        let code = unsafe {
            (self.pd.context.library.ibv_modify_srq)(self.raw, &raw mut attr, IBV_SRQ_LIMIT)
        };
        VerbsError::check("set the limit of a shared receive queue", code)
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.pd.context.watched.remove_srq(self.raw);
        // SAFETY: the queue pairs that use it hold it, so that none is left; it ends once.
        let _ = unsafe { (self.pd.context.library.ibv_destroy_srq)(self.raw) };
    }
}
