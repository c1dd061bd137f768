//! Moving between devices: the operations that the agent asks for.

use core::ffi::{c_int, c_uint};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bowline_failover::Rail;
use bowline_ibverbs::gid;
use bowline_nic::{Fence, Resume};
use bowline_verbs_types::{
    IBV_QP_RQ_PSN, IBV_QP_STATE, IBV_QPS_ERR, IBV_QPS_RESET, IBV_WC_RECV, ibv_qp_attr,
    ibv_qp_init_attr, ibv_wc,
};
use bowline_wire::Psn;

use super::{Left, Qp, RETRY_EXC_ERR, Refused, WR_FLUSH_ERR};

/// How far the PSNs of a restarted connection are ahead of the old ones: more than can be in
/// flight.
const RESTART_AHEAD: u32 = 1 << 22;
/// How long a queue pair in the error state may take to flush its requests, and how long a silence
/// means that it has flushed all.
const FLUSH_LIMIT: Duration = Duration::from_millis(200);
const FLUSH_QUIET: Duration = Duration::from_millis(20);
const FLUSH_LOOK: Duration = Duration::from_micros(500);

impl Qp {
    fn modify(&self, rail: Rail, mut attr: ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
        let session = self.session.upgrade().ok_or(libc::ENODEV)?;
        let raw = self.raw(rail);
        if raw.is_null() {
            return Err(libc::ENODEV);
        }
        // SAFETY: a live queue pair, and attributes that are read during the call.
        match unsafe { (session.library.ibv_modify_qp)(raw, &raw mut attr, mask) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    fn enter(&self, rail: Rail, state: c_uint) -> Result<(), c_int> {
        let attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() };
        self.modify(rail, attr, IBV_QP_STATE)
    }

    /// Takes the connection off its current device. Unpolled completions go to the buffer.
    pub(crate) fn detach(&self, ends: bool) -> Option<Left> {
        self.hold();
        let home = self.home();
        self.send_cq.make_special();
        self.recv_cq.make_special();
        let psn = self.expected_psn(home);
        let dropped = self.dropped.load(Ordering::Relaxed);
        // From here on no incoming request is executed, and all requests complete, most of them by
        // failing.
        let _ = self.enter(home, IBV_QPS_ERR);
        self.await_flush(dropped);
        let _ = self.enter(home, IBV_QPS_RESET);
        self.send_cq.drain();
        self.recv_cq.drain();
        let locked = self.lock();
        let state = self.state(&locked);
        let done = self.sent();
        let head = state.sends.head(done)?;
        let received = self.received();
        let given = state.sends_given.max(head);
        let left = Left {
            received,
            outstanding: state.sends.tail() - head,
            progress: head + received,
            has_atomic: (head..given).any(|number| state.sends.is_atomic(number))
                || (head..state.sends.tail()).any(|number| !state.sends.is_movable(number)),
            psn: psn.add(RESTART_AHEAD),
            ends,
        };
        state.sends_given = head;
        state.recvs_given = received;
        Some(left)
    }

    /// Waits until everything outstanding has completed, within limits, so that the failures are
    /// counted.
    fn await_flush(&self, dropped: u64) {
        let expected = {
            let locked = self.lock();
            let state = self.state(&locked);
            let head = state.sends.head(self.sent()).unwrap_or(0);
            let sends = state.sends_given.saturating_sub(head);
            dropped + sends + state.recvs.tail().saturating_sub(self.received())
        };
        let begin = Instant::now();
        let (mut last, mut changed) = (dropped, begin);
        while begin.elapsed() < FLUSH_LIMIT && changed.elapsed() < FLUSH_QUIET {
            self.send_cq.drain();
            self.recv_cq.drain();
            let now = self.dropped.load(Ordering::Relaxed);
            if now >= expected {
                return;
            }
            if now != last {
                (last, changed) = (now, Instant::now());
            }
            std::thread::sleep(FLUSH_LOOK);
        }
    }

    /// The PSN that the device expects next, as far as the provider reports it.
    fn expected_psn(&self, rail: Rail) -> Psn {
        let mut attr = ibv_qp_attr::default();
        // SAFETY: numbers and pointers, which may be zero.
        let mut init: ibv_qp_init_attr = unsafe { core::mem::zeroed() };
        let raw = self.raw(rail);
        if let (Some(session), false) = (self.session.upgrade(), raw.is_null()) {
            // SAFETY: a live queue pair, and room for the result. Fields that are not filled in
            // stay zero, which is also a valid starting point.
            let _ = unsafe {
                let query = session.library.ibv_query_qp;
                query(raw, &raw mut attr, IBV_QP_RQ_PSN, &raw mut init)
            };
        }
        Psn::new(attr.rq_psn & 0xff_ffff)
    }

    /// Sets up the connection on a device. It accepts the peer's requests; its own are withheld.
    pub(crate) fn attach(&self, rail: Rail, left: &Left) -> Result<(), c_int> {
        if self.has_failed() {
            return Err(libc::ENOTCONN);
        }
        if left.ends || left.has_atomic {
            self.home.store(rail.index() as u8, Ordering::Relaxed);
            return Ok(());
        }
        self.set_up(rail, left).inspect_err(|_| {
            // Nothing else would tell the program.
            self.fail();
        })
    }

    fn set_up(&self, rail: Rail, left: &Left) -> Result<(), c_int> {
        self.bring_up(rail, left.psn)?;
        self.send_cq.make_special();
        self.recv_cq.make_special();
        let locked = self.lock();
        let state = self.state(&locked);
        self.home.store(rail.index() as u8, Ordering::Relaxed);
        self.held.store(false, Ordering::Release);
        state.withheld = true;
        (state.fence_wanted, state.starved) = (false, false);
        match self.give_recvs(state) {
            Ok(()) | Err(Refused::Starved) => {}
            Err(Refused::Errno(code)) => {
                self.held.store(true, Ordering::Release);
                return Err(code);
            }
        }
        // On the first device, receives need no key translation.
        state.slow_recvs = rail == Rail::Backup;
        Ok(())
    }

    /// Moves the queue pair from reset to ready-to-receive.
    fn bring_up(&self, rail: Rail, psn: Psn) -> Result<(), c_int> {
        let (init, rtr, spare) = {
            let attrs = self.attrs();
            (attrs.init, attrs.rtr, attrs.spare_peer)
        };
        let (init, rtr) = init.zip(rtr).ok_or(libc::ENOTCONN)?;
        let (mut init, init_mask) = init.expand();
        let (mut rtr, rtr_mask) = rtr.expand(psn);
        if rail == Rail::Backup {
            let session = self.session.upgrade().ok_or(libc::ENODEV)?;
            let (addr, qpn) = spare.ok_or(libc::ENOTCONN)?;
            let (port, sgid_index) = session.contexts[1].port();
            init.port_num = port;
            rtr.ah_attr.port_num = port;
            rtr.ah_attr.is_global = 1;
            rtr.ah_attr.grh.dgid = gid(addr);
            rtr.ah_attr.grh.sgid_index = sgid_index;
            rtr.dest_qp_num = qpn.get();
        }
        // A queue pair that has never been used is already in reset.
        let _ = self.enter(rail, IBV_QPS_RESET);
        self.modify(rail, init, init_mask)?;
        self.modify(rail, rtr, rtr_mask)
    }

    /// Releases the sends. `resume` is for a connection that starts over.
    pub(crate) fn release_sends(&self, resume: Option<Resume>) -> Result<(), c_int> {
        let home = self.home();
        if let Some(resume) = resume {
            let rts = self.attrs().rts;
            if let Some(rts) = rts {
                let (attr, mask) = rts.expand(resume.psn);
                self.modify(home, attr, mask)?;
            }
        }
        let locked = self.lock();
        let state = self.state(&locked);
        if let Some(resume) = resume {
            let head = state.sends.head(self.sent());
            state.sends.mark_executed(head.unwrap_or(state.sends.tail()), resume.received);
        }
        (state.withheld, state.fence_wanted) = (false, false);
        let given = self.give_sends(state);
        state.slow_sends = home == Rail::Backup;
        match given {
            Ok(()) | Err(Refused::Starved) => Ok(()),
            Err(Refused::Errno(code)) => {
                // If this fails the connection, its completions will say so.
                state.slow_sends = true;
                state.starved = true;
                Err(code)
            }
        }
    }

    /// Sets a fence in its sends.
    pub(crate) fn fence_sends(&self) {
        let locked = self.lock();
        let state = self.state(&locked);
        let head = state.sends.head(self.sent());
        let given = state.sends_given;
        let idle = head == Some(state.sends.tail());
        // A send that waits for a key here must not prevent the connection from moving to where it
        // needs no key.
        let is_last = head == Some(given) || given > 0 && state.sends.is_signaled(given - 1);
        let stuck = state.starved && given < state.sends.tail() && is_last;
        state.slow_sends = true;
        state.fence_wanted = !idle && !stuck;
        if idle || stuck {
            state.withheld = true;
            state.fence_at = if idle { state.sends.tail() } else { given };
        }
    }

    pub(crate) fn fence(&self) -> Fence {
        let locked = self.lock();
        let state = self.state(&locked);
        let head = state.sends.head(self.sent());
        match head {
            _ if state.fence_wanted => Fence::WaitSignaled,
            _ if !state.withheld => Fence::None,
            Some(head) if head >= state.fence_at => Fence::Drained,
            _ => Fence::WaitDrained,
        }
    }

    /// Fails the connection as if its retries were exhausted.
    pub(crate) fn fail(&self) {
        self.hold();
        let locked = self.lock();
        let state = self.state(&locked);
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.held.store(false, Ordering::Release);
        self.home.store(0, Ordering::Relaxed);
        let qp_num = self.qpn(Rail::Default);
        let done = self.sent();
        let mut first = state.sends.head(done).unwrap_or(state.sends.tail());
        let culprit = self.culprit.lock().unwrap_or_else(PoisonError::into_inner).take();
        let named = culprit.and_then(|wr_id| {
            (first..state.sends.tail()).find(|number| state.sends.wr_id(*number) == wr_id)
        });
        if let Some(number) = named {
            first = number + 1;
        }
        let is_told = named.is_some();
        let sends: Vec<ibv_wc> = (first..state.sends.tail())
            .map(|number| ibv_wc {
                wr_id: state.sends.wr_id(number),
                status: if number == first && !is_told { RETRY_EXC_ERR } else { WR_FLUSH_ERR },
                opcode: state.sends.wc_opcode(number),
                qp_num,
                ..ibv_wc::default()
            })
            .collect();
        let received = self.received();
        let recvs: Vec<ibv_wc> = (received..state.recvs.tail())
            .map(|number| ibv_wc {
                wr_id: state.recvs.wr_id(number),
                status: WR_FLUSH_ERR,
                opcode: IBV_WC_RECV,
                qp_num,
                ..ibv_wc::default()
            })
            .collect();
        drop(locked);
        self.send_cq.add(sends);
        self.recv_cq.add(recvs);
        // Requests that the program posts from now on fail in its provider.
        let _ = self.enter(Rail::Default, IBV_QPS_ERR);
    }
}
