//! Posting: directly to the provider, or to whichever device the connection is on.

use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::Arc;

use bowline_failover::Rail;
use bowline_verbs_types::{ibv_qp, ibv_recv_wr, ibv_send_wr};

use super::{PeerKeys, PostRecv, PostSend, Qp, Refused, State};
use crate::gate::{Gate, GateGuard};
use crate::ring::is_movable;
use crate::session::Session;

impl Qp {
    /// `ibv_post_send`, when the data path cannot handle it.
    ///
    /// # Safety
    /// Same as for that function.
    pub(crate) unsafe fn post_send(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: upheld by the caller.
        let code = unsafe { self.post_send_inside(self.seat.gate.lock(), qp, wr, bad) };
        self.seat.gate.give_way();
        code
    }

    /// The same, inside the gate.
    ///
    /// # Safety
    /// Same as for that function.
    pub(super) unsafe fn post_send_inside(
        &self,
        inside: GateGuard<'_>,
        qp: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        let locked = self.locked(inside);
        let state = self.state(&locked);
        if state.slow_sends {
            // SAFETY: upheld by the caller.
            return unsafe { self.post_send_slowly(state, wr, bad) };
        }
        // SAFETY: upheld by the caller.
        let code = unsafe { self.seat.call_send(qp, wr, bad) };
        // Record only now: requests that a full queue refuses must not replace the oldest.
        // SAFETY: the program passed a valid list, and the provider has reported where it stopped.
        unsafe { state.sends.remember_until(wr, if code == 0 { null_mut() } else { *bad }) };
        self.announce_keys(state);
        code
    }

    /// The cursor of sends has reached the end of their ring. The gate was entered, and is left
    /// here.
    #[cold]
    #[inline(never)]
    pub(super) fn wrap_sends(&self, gate: &Gate) {
        let locked = self.locked(gate.adopt());
        self.state(&locked).sends.wrap();
    }

    /// Like [`Qp::wrap_sends`].
    #[cold]
    #[inline(never)]
    pub(super) fn wrap_recvs(&self, gate: &Gate) {
        let locked = self.locked(gate.adopt());
        self.state(&locked).recvs.wrap();
    }

    /// Requests a lookup of keys that requests have used for the first time.
    fn announce_keys(&self, state: &mut State) {
        if std::mem::take(&mut state.sends.has_new_rkey)
            && let Some(session) = self.session.upgrade()
        {
            session.wake();
        }
    }

    /// Posts sends of a connection that is moving, is on the backup or has failed.
    #[cold]
    #[inline(never)]
    unsafe fn post_send_slowly(
        &self,
        state: &mut State,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        if self.has_failed() {
            // SAFETY: upheld by the caller.
            return unsafe { self.seat.call_send(self.raw(Rail::Default), wr, bad) };
        }
        let mut next = wr;
        while !next.is_null() {
            let refuse = |code| {
                // SAFETY: the caller provided a place for the refused request.
                unsafe { *bad = next };
                code
            };
            let head = state.sends.head(self.sent());
            if head.is_none_or(|head| state.sends.tail() - head >= state.sends.capacity()) {
                return refuse(libc::ENOMEM);
            }
            // SAFETY: the program passed a valid list.
            if !is_movable(unsafe { (*next).opcode }) {
                return refuse(libc::EOPNOTSUPP);
            }
            // SAFETY: the program passed a valid list.
            unsafe { state.sends.remember(next) };
            self.announce_keys(state);
            if let Err(Refused::Errno(code)) = self.give_sends(state) {
                state.sends.undo();
                return refuse(code);
            }
            if state.fence_wanted
                && !state.withheld
                && state.sends.is_signaled(state.sends.tail() - 1)
            {
                state.fence_wanted = false;
                state.withheld = true;
                state.fence_at = state.sends.tail();
            }
            // SAFETY: the program passed a valid list.
            next = unsafe { (*next).next };
        }
        0
    }

    /// `ibv_post_recv`, when the data path cannot handle it.
    ///
    /// # Safety
    /// Same as for that function.
    pub(crate) unsafe fn post_recv(
        &self,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        // SAFETY: upheld by the caller.
        let code = unsafe { self.post_recv_inside(self.seat.gate.lock(), qp, wr, bad) };
        self.seat.gate.give_way();
        code
    }

    /// The same, inside the gate.
    ///
    /// # Safety
    /// Same as for that function.
    pub(super) unsafe fn post_recv_inside(
        &self,
        inside: GateGuard<'_>,
        qp: *mut ibv_qp,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        let locked = self.locked(inside);
        let state = self.state(&locked);
        if state.slow_recvs {
            // SAFETY: upheld by the caller.
            return unsafe { self.post_recv_slowly(state, wr, bad) };
        }
        // SAFETY: upheld by the caller.
        let code = unsafe { self.seat.call_recv(qp, wr, bad) };
        // As for sends.
        // SAFETY: the program passed a valid list, and the provider has reported where it stopped.
        unsafe { state.recvs.remember_until(wr, if code == 0 { null_mut() } else { *bad }) };
        code
    }

    #[cold]
    #[inline(never)]
    unsafe fn post_recv_slowly(
        &self,
        state: &mut State,
        wr: *mut ibv_recv_wr,
        bad: *mut *mut ibv_recv_wr,
    ) -> c_int {
        if self.has_failed() {
            // SAFETY: upheld by the caller.
            return unsafe { self.seat.call_recv(self.raw(Rail::Default), wr, bad) };
        }
        let mut next = wr;
        while !next.is_null() {
            let refuse = |code| {
                // SAFETY: the caller provided a place for the refused request.
                unsafe { *bad = next };
                code
            };
            if state.recvs.tail() - self.received() >= state.recvs.capacity() {
                return refuse(libc::ENOMEM);
            }
            // SAFETY: the program passed a valid list.
            unsafe { state.recvs.remember(next) };
            if let Err(Refused::Errno(code)) = self.give_recvs(state) {
                state.recvs.undo();
                return refuse(code);
            }
            // SAFETY: the program passed a valid list.
            next = unsafe { (*next).next };
        }
        0
    }

    /// Passes sends to the device that the connection is on, as far as they may go.
    pub(super) fn give_sends(&self, state: &mut State) -> Result<(), Refused> {
        if state.withheld || self.is_held() {
            return Ok(());
        }
        let home = self.home();
        let keys = Keys::new(self, home);
        while state.sends_given < state.sends.tail() {
            let again = state.sends.resend(
                state.sends_given,
                |key| keys.local(key),
                |key| keys.remote(key),
            );
            let Some(mut again) = again else {
                state.starved = true;
                return Err(Refused::Starved);
            };
            let mut bad = null_mut();
            let Some(post) = keys.post_send() else { return Err(Refused::Errno(libc::ENODEV)) };
            // SAFETY: a live queue pair, and a request whose list outlives the call.
            let code = unsafe { post(self.raw(home), again.request(), &raw mut bad) };
            if code != 0 {
                return Err(Refused::Errno(code));
            }
            state.sends_given += 1;
        }
        Ok(())
    }

    /// Passes receives to the device that the connection is on.
    pub(super) fn give_recvs(&self, state: &mut State) -> Result<(), Refused> {
        if self.is_held() {
            return Ok(());
        }
        let home = self.home();
        let keys = Keys::new(self, home);
        while state.recvs_given < state.recvs.tail() {
            let again = state.recvs.resend(state.recvs_given, |key| keys.local(key));
            let Some((wr_id, mut sges)) = again else {
                state.starved = true;
                return Err(Refused::Starved);
            };
            let num_sge = sges.len() as c_int;
            let mut wr =
                ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_mut_ptr(), num_sge };
            let mut bad = null_mut();
            let Some(post) = keys.post_recv() else { return Err(Refused::Errno(libc::ENODEV)) };
            // SAFETY: a live queue pair, and a request whose list outlives the call.
            let code = unsafe { post(self.raw(home), &raw mut wr, &raw mut bad) };
            if code != 0 {
                return Err(Refused::Errno(code));
            }
            state.recvs_given += 1;
        }
        Ok(())
    }

    /// Keys have become known: passes on the requests that waited for them.
    pub(crate) fn feed(&self) {
        let locked = self.lock();
        let state = self.state(&locked);
        if std::mem::take(&mut state.starved) {
            // A request that is refused now makes the queue pair fail by itself.
            let _ = self.give_recvs(state);
            let _ = self.give_sends(state);
        }
    }
}

/// Keys for requests on a device, and its provider.
struct Keys {
    session: Option<Arc<Session>>,
    peer: Option<PeerKeys>,
    rail: Rail,
}

impl Keys {
    fn new(qp: &Qp, rail: Rail) -> Keys {
        let peer = match rail {
            Rail::Default => None,
            Rail::Backup => qp.attrs().peer_keys,
        };
        Keys { session: qp.session.upgrade(), peer, rail }
    }

    fn post_send(&self) -> Option<PostSend> {
        Some(self.session.as_ref()?.providers[self.rail.index()].post_send)
    }

    fn post_recv(&self) -> Option<PostRecv> {
        Some(self.session.as_ref()?.providers[self.rail.index()].post_recv)
    }

    fn local(&self, key: u32) -> Option<u32> {
        match self.rail {
            Rail::Default => Some(key),
            Rail::Backup => self.session.as_ref()?.backup_lkey(key),
        }
    }

    fn remote(&self, key: u32) -> Option<u32> {
        match self.rail {
            Rail::Default => Some(key),
            Rail::Backup => match self.peer? {
                PeerKeys::Same => Some(key),
                PeerKeys::Of(peer) => self.session.as_ref()?.backup_rkey(peer, key),
            },
        }
    }
}
