//! The part of a queue pair that the data path touches, and the data path itself.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use bowline_verbs_types::{ibv_qp, ibv_recv_wr, ibv_send_wr};

use super::{PostRecv, PostSend, Qp};
use crate::gate::Gate;
use crate::ring::{RecvCursor, SendCursor};
use crate::table::Seat;

/// The gate protects the other fields.
#[repr(C, align(128))]
pub(crate) struct QpSeat {
    pub(super) gate: Gate,
    sends: UnsafeCell<SendCursor>,
    post_send: Cell<Option<PostSend>>,
    recvs: UnsafeCell<RecvCursor>,
    post_recv: Cell<Option<PostRecv>>,
    owner: AtomicPtr<Qp>,
}

// SAFETY: everything but the gate and the owner is accessed only inside the gate, or before it is
// opened.
unsafe impl Sync for QpSeat {}

impl Seat for QpSeat {
    type Owner = Qp;
    const EMPTY: QpSeat = QpSeat {
        gate: Gate::new(),
        sends: UnsafeCell::new(SendCursor::EMPTY),
        post_send: Cell::new(None),
        recvs: UnsafeCell::new(RecvCursor::EMPTY),
        post_recv: Cell::new(None),
        owner: AtomicPtr::new(core::ptr::null_mut()),
    };

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn owner(&self) -> &AtomicPtr<Qp> {
        &self.owner
    }

    fn of(owner: &Qp) -> &QpSeat {
        &owner.seat
    }
}

impl QpSeat {
    /// Sets the provider's functions, before the gate is opened.
    pub(super) fn set_provider(&self, post_send: PostSend, post_recv: PostRecv) {
        self.post_send.set(Some(post_send));
        self.post_recv.set(Some(post_recv));
    }

    /// Calls the provider.
    ///
    /// # Safety
    /// Same as for `ibv_post_send`. The caller is inside the gate, and the provider is set.
    #[inline(always)]
    pub(super) unsafe fn call_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: upheld by the caller.
        unsafe { self.post_send.get().unwrap_unchecked()(qp, wr, bad) }
    }

    /// Like [`QpSeat::call_send`].
    ///
    /// # Safety
    /// Same as for that function.
    #[inline(always)]
    pub(super) unsafe fn call_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: upheld by the caller.
        unsafe { self.post_recv.get().unwrap_unchecked()(qp, wr, bad) }
    }

    pub(super) fn sends(&self) -> NonNull<SendCursor> {
        NonNull::from(&self.sends).cast()
    }

    pub(super) fn recvs(&self) -> NonNull<RecvCursor> {
        NonNull::from(&self.recvs).cast()
    }

    fn qp(&self) -> &Qp {
        // SAFETY: set before the gate was opened; it lives as long as the program may post.
        unsafe { &*self.owner.load(Ordering::Relaxed) }
    }

    /// Enters the gate if this is the seat of that queue pair.
    #[inline(always)]
    pub(crate) fn enter(&self, qp: *mut ibv_qp) -> bool {
        self.gate.enter(qp as usize, core::ptr::from_ref(self) as usize)
    }

    /// `ibv_post_send` inside the gate. Leaves the gate.
    ///
    /// # Safety
    /// Same as for that function. The gate was entered for this queue pair.
    #[inline(always)]
    pub(crate) unsafe fn post_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        let cursor = self.sends.get();
        // SAFETY: being inside the gate gives exclusive access to the cursor, and the program
        // passed a valid request. The provider's functions are set.
        unsafe {
            if !(*cursor).note::<true>(wr) {
                return post_other_send(qp, wr, bad, self);
            }
            let code = self.call_send(qp, wr, bad);
            // A single request that is refused leaves nothing behind.
            if code == 0 && (*cursor).advance() {
                self.qp().wrap_sends(&self.gate);
            } else {
                self.gate.leave();
            }
            code
        }
    }

    /// `ibv_post_recv` inside the gate. Leaves the gate.
    ///
    /// # Safety
    /// Same as for [`QpSeat::post_send`].
    #[inline(always)]
    pub(crate) unsafe fn post_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        let cursor = self.recvs.get();
        // SAFETY: as for sends.
        unsafe {
            if !(*cursor).note::<true>(wr) {
                return post_other_recv(qp, wr, bad, self);
            }
            let code = self.call_recv(qp, wr, bad);
            if code == 0 && (*cursor).advance() {
                self.qp().wrap_recvs(&self.gate);
            } else {
                self.gate.leave();
            }
            code
        }
    }
}

/// Posts what the data path cannot handle, inside the gate, which it leaves. The seat is the last
/// argument, so that the data path can leave its arguments in their registers.
#[cold]
#[inline(never)]
unsafe fn post_other_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    seat: &QpSeat,
) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe { seat.qp().post_send_inside(seat.gate.adopt(), qp, wr, bad) }
}

/// Like [`post_other_send`].
#[cold]
#[inline(never)]
unsafe fn post_other_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    seat: &QpSeat,
) -> c_int {
    // SAFETY: upheld by the caller.
    unsafe { seat.qp().post_recv_inside(seat.gate.adopt(), qp, wr, bad) }
}
