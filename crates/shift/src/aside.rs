//! Objects that have no counterpart on the second device. They work as without failover, and a
//! warning tells the user, once for each kind.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::null_mut;

use bowline_verbs_types::{
    IBV_QPT_RC, ibv_context, ibv_mw, ibv_mw_bind, ibv_qp, ibv_qp_init_attr_ex, verbs_context,
};

use crate::session::{self, Session};
use crate::verbs::{QPS, behind};

type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
type BindMw = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;

/// The entries of a context's tables that are interposed for this.
pub(crate) struct Aside {
    create_qp_ex: Option<CreateQpEx>,
    bind_mw: Option<BindMw>,
}

/// The value that marks a context as part of a larger table.
const IS_EXTENDED: usize = usize::MAX;

/// The address of the `create_qp_ex` entry in a context's larger table, if it has one.
///
/// # Safety
/// The context is open.
unsafe fn create_qp_ex_of(context: *mut ibv_context) -> Option<*mut Option<CreateQpEx>> {
    // SAFETY: upheld by the caller; a context with this mark is inside a larger table.
    unsafe {
        if (*context).abi_compat as usize != IS_EXTENDED {
            return None;
        }
        let whole = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        // Tables grow at the front.
        let needed = size_of::<verbs_context>() - offset_of!(verbs_context, create_qp_ex);
        ((*whole).sz >= needed).then(|| (&raw mut (*whole).create_qp_ex).cast())
    }
}

impl Aside {
    /// # Safety
    /// The context is open.
    pub(crate) unsafe fn of(context: *mut ibv_context) -> Aside {
        // SAFETY: upheld by the caller; an entry may be null.
        unsafe {
            let create_qp_ex = create_qp_ex_of(context).and_then(|entry| entry.read());
            let bind_mw = (&raw const (*context).ops.bind_mw).cast::<Option<BindMw>>().read();
            Aside { create_qp_ex, bind_mw }
        }
    }

    /// Interposes the entries that exist.
    ///
    /// # Safety
    /// The context is open, and no thread calls through it yet.
    pub(crate) unsafe fn stand_before(&self, context: *mut ibv_context) {
        // SAFETY: upheld by the caller.
        unsafe {
            if let (Some(entry), Some(_)) = (create_qp_ex_of(context), self.create_qp_ex) {
                entry.write(Some(create_qp_ex));
            }
            if self.bind_mw.is_some() {
                (*context).ops.bind_mw = bind_mw;
            }
        }
    }
}

impl Session {
    /// Warns once that a kind of object has no backup.
    pub(crate) fn tell_once(&self, what: &'static str) {
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.insert(what) {
            self.log.warn(&format!("failover: {what}"));
        }
    }
}

/// `ibv_create_qp_ex`, for options that `ibv_create_qp` does not have.
unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let Some(session) = session::of(context) else { return null_mut() };
    let Some(real) = session.aside.create_qp_ex else { return null_mut() };
    // SAFETY: upheld by the caller.
    let qp = unsafe { real(context, init) };
    // SAFETY: the caller passed valid attributes.
    if !qp.is_null() && unsafe { (*init).qp_type } == IBV_QPT_RC {
        behind(|| session.tell_once("a queue pair created with ibv_create_qp_ex has no backup"));
    }
    qp
}

/// `ibv_bind_mw`. It completes like a request that was never posted, so outstanding requests could
/// no longer be counted.
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the program passed a valid queue pair.
    let Some(session) = session::of(unsafe { (*qp).context }) else { return libc::EINVAL };
    let Some(real) = session.aside.bind_mw else { return libc::EOPNOTSUPP };
    if let Some(known) = QPS.hold(qp) {
        if !known.is_home() && !known.has_failed() {
            return libc::EOPNOTSUPP;
        }
        behind(|| {
            session.shadow.flush();
            session.end(&known);
            session.tell_once("a queue pair that binds memory windows has no backup");
        });
    }
    // SAFETY: upheld by the caller.
    unsafe { real(qp, mw, bind) }
}
