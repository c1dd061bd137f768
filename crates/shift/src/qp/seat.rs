//! What the data path touches of a queue pair, and the data path itself.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use bowline_verbs_types::{ibv_qp, ibv_recv_wr, ibv_send_wr};

use super::{PostRecv, PostSend, Qp};
use crate::gate::Gate;
use crate::ring::{RecvCursor, SendCursor};
use crate::table::Seat;

/// The gate guards the rest.
#[repr(C, align(128))]
pub(crate) struct QpSeat {
    pub(super) gate: Gate,
    sends: UnsafeCell<SendCursor>,
    post_send: Cell<Option<PostSend>>,
    recvs: UnsafeCell<RecvCursor>,
    post_recv: Cell<Option<PostRecv>>,
    owner: AtomicPtr<Qp>,
}

// SAFETY: all but the gate and the owner is touched by who is inside the gate alone, or before it
// is opened.
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
    /// The provider's functions. Before the gate is opened.
    pub(super) fn set_provider(&self, post_send: PostSend, post_recv: PostRecv) {
        self.post_send.set(Some(post_send));
        self.post_recv.set(Some(post_recv));
    }

    /// Calls the provider.
    ///
    /// # Safety
    /// As `ibv_post_send`; inside the gate, with the provider set.
    #[inline(always)]
    pub(super) unsafe fn call_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self.post_send.get().unwrap_unchecked()(qp, wr, bad) }
    }

    /// As [`QpSeat::call_send`].
    ///
    /// # Safety
    /// As that.
    #[inline(always)]
    pub(super) unsafe fn call_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: the caller's promise.
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

    /// `ibv_post_send`, inside the gate, which is left.
    ///
    /// # Safety
    /// As that. The gate was entered as this queue pair's.
    #[inline(always)]
    pub(crate) unsafe fn post_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        let cursor = self.sends.get();
        // SAFETY: who is inside the gate is alone with it, and the program's own request. The
        // provider's functions are set.
        unsafe {
            if !(*cursor).note::<true>(wr) {
                return post_other_send(qp, wr, bad, self);
            }
            let code = self.call_send(qp, wr, bad);
            // One request that is refused leaves nothing behind.
            if code == 0 && (*cursor).advance() {
                self.qp().wrap_sends(&self.gate);
            } else {
                self.gate.leave();
            }
            code
        }
    }

    /// `ibv_post_recv`, inside the gate, which is left.
    ///
    /// # Safety
    /// As [`QpSeat::post_send`].
    #[inline(always)]
    pub(crate) unsafe fn post_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        let cursor = self.recvs.get();
        // SAFETY: as with sends.
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

/// Posts what the data path does not, inside the gate, which is left. The seat comes last: so the
/// data path leaves its arguments where they are.
#[cold]
#[inline(never)]
unsafe fn post_other_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    seat: &QpSeat,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { seat.qp().post_send_inside(seat.gate.adopt(), qp, wr, bad) }
}

/// As [`post_other_send`].
#[cold]
#[inline(never)]
unsafe fn post_other_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    seat: &QpSeat,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { seat.qp().post_recv_inside(seat.gate.adopt(), qp, wr, bad) }
}
