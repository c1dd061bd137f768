//! Queue pairs: what is recorded about them, and how they change devices.

mod moving;
mod post;
mod seat;

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::net::IpAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bowline_failover::Rail;
use bowline_verbs_types::{
    IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT,
    IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT,
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_WC_RECV, ibv_ah_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_wc,
};
use bowline_wire::{Psn, Qpn};

use crate::cq::Cq;
use crate::gate::GateGuard;
use crate::ring::{RecvRing, SendRing};
use crate::session::Session;
use crate::table::Held;
use crate::verbs::QPS;

pub(crate) use seat::QpSeat;

/// A provider's `post_send` and `post_recv`.
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(crate) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// Status codes as in the header.
const LOC_QP_OP_ERR: c_uint = 2;
const LOC_PROT_ERR: c_uint = 4;
const WR_FLUSH_ERR: c_uint = 5;
const RETRY_EXC_ERR: c_uint = 12;
const FATAL_ERR: c_uint = 19;
const RESP_TIMEOUT_ERR: c_uint = 20;

/// A queue pair of the program, with its counterpart on the second device.
pub(crate) struct Qp {
    /// Contains the lock for the rest.
    seat: Held<QpSeat>,
    /// Protected by the lock.
    state: UnsafeCell<State>,
    raw: [AtomicPtr<ibv_qp>; 2],
    qpns: [AtomicU32; 2],
    /// Number of signaled sends, and of receives, that have completed successfully, besides those
    /// that their completion queue has counted itself. Written under the lock of that queue.
    done: [AtomicU64; 2],
    home: AtomicU8,
    /// Nothing is executed: posted requests are only recorded, and failures are kept from the
    /// program.
    held: AtomicBool,
    /// The program has been told of a failure, and uses its provider's queue pair directly.
    failed: AtomicBool,
    /// If the path fails, hold the queue pair.
    guarded: AtomicBool,
    /// Number of failures that were kept from the program.
    dropped: AtomicU64,
    /// The request whose failure the program has seen, while its provider's queue pair has not
    /// failed.
    culprit: Mutex<Option<u64>>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    session: Weak<Session>,
    pub(crate) attrs: Mutex<Attrs>,
}

struct State {
    sends: SendRing,
    recvs: RecvRing,
    /// Posting takes more than recording the request and calling the provider.
    slow_sends: bool,
    slow_recvs: bool,
    /// Sends are recorded, but not passed to the device.
    withheld: bool,
    /// Withhold sends after the next signaled one.
    fence_wanted: bool,
    /// The first send that is withheld by a fence.
    fence_at: u64,
    /// A request needs a key on the second device that is not known yet.
    starved: bool,
    /// How many sends and receives have been passed to the device that the connection is on.
    sends_given: u64,
    recvs_given: u64,
}

/// How the program has set up the queue pair, and its peer.
#[derive(Default)]
pub(crate) struct Attrs {
    pub(crate) init: Option<InitAttrs>,
    pub(crate) rtr: Option<RecvAttrs>,
    pub(crate) rts: Option<SendAttrs>,
    /// The peer, as the program knows it.
    pub(crate) peer: Option<(IpAddr, Qpn)>,
    /// Where to find the keys of the peer's memory on its second device.
    pub(crate) peer_keys: Option<PeerKeys>,
    /// How many of the keys that requests have used were looked up.
    pub(crate) keys_asked: usize,
    /// The peer's counterpart on the second device.
    pub(crate) spare_peer: Option<(IpAddr, Qpn)>,
}

/// The keys of a peer's memory on its second device.
#[derive(Clone, Copy)]
pub(crate) enum PeerKeys {
    /// The same as on the first: the peer is a soft NIC.
    Same,
    /// In the store, under the address of the peer's first device.
    Of(IpAddr),
}

/// The attributes for initialising a queue pair. Every queue pair keeps these, so they are not the
/// whole verbs structure.
#[derive(Clone, Copy)]
pub(crate) struct InitAttrs {
    access: c_uint,
    pkey_index: u16,
    port: u8,
    mask: c_int,
}

impl InitAttrs {
    pub(crate) fn new(attr: &ibv_qp_attr, mask: c_int) -> InitAttrs {
        let known = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        let (access, pkey_index) = (attr.qp_access_flags, attr.pkey_index);
        InitAttrs { access, pkey_index, port: attr.port_num, mask: mask & known }
    }

    fn expand(self) -> (ibv_qp_attr, c_int) {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            qp_access_flags: self.access,
            pkey_index: self.pkey_index,
            port_num: self.port,
            ..ibv_qp_attr::default()
        };
        (attr, self.mask)
    }
}

/// The same for the transition to ready-to-receive.
#[derive(Clone, Copy)]
pub(crate) struct RecvAttrs {
    pub(crate) route: ibv_ah_attr,
    path_mtu: c_uint,
    dest_qp_num: u32,
    access: c_uint,
    pkey_index: u16,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    mask: c_int,
}

impl RecvAttrs {
    pub(crate) fn new(attr: &ibv_qp_attr, mask: c_int) -> RecvAttrs {
        let known = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER
            | IBV_QP_ACCESS_FLAGS
            | IBV_QP_PKEY_INDEX;
        RecvAttrs {
            route: attr.ah_attr,
            path_mtu: attr.path_mtu,
            dest_qp_num: attr.dest_qp_num,
            access: attr.qp_access_flags,
            pkey_index: attr.pkey_index,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            mask: mask & known,
        }
    }

    fn expand(self, psn: Psn) -> (ibv_qp_attr, c_int) {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            rq_psn: psn.get(),
            ah_attr: self.route,
            path_mtu: self.path_mtu,
            dest_qp_num: self.dest_qp_num,
            qp_access_flags: self.access,
            pkey_index: self.pkey_index,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..ibv_qp_attr::default()
        };
        (attr, self.mask)
    }
}

/// The same for the transition to ready-to-send.
#[derive(Clone, Copy)]
pub(crate) struct SendAttrs {
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    mask: c_int,
}

impl SendAttrs {
    pub(crate) fn new(attr: &ibv_qp_attr, mask: c_int) -> SendAttrs {
        let known = IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC;
        SendAttrs {
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic,
            mask: mask & known,
        }
    }

    fn expand(self, psn: Psn) -> (ibv_qp_attr, c_int) {
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: psn.get(),
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            ..ibv_qp_attr::default()
        };
        (attr, self.mask)
    }
}

/// A connection that has left a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) received: u64,
    pub(crate) outstanding: u64,
    pub(crate) progress: u64,
    /// A request is outstanding that must not be repeated, or cannot run elsewhere.
    pub(crate) has_atomic: bool,
    pub(crate) psn: Psn,
    /// Do not set it up on the other device: it is about to be destroyed.
    pub(crate) ends: bool,
}

/// Why a request was not passed to a device.
enum Refused {
    /// A key on that device is not known yet.
    Starved,
    /// The provider's errno.
    Errno(c_int),
}

/// A locked queue pair.
struct Locked<'a> {
    qp: &'a Qp,
    inside: GateGuard<'a>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let state = self.qp.state(self);
        self.inside.set_slow(state.slow_sends || state.slow_recvs);
    }
}

// SAFETY: verbs objects may be used from any thread; `state` is accessed only under the lock.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    pub(crate) fn new(
        session: &Arc<Session>,
        raw: *mut ibv_qp,
        init: &ibv_qp_init_attr,
        cqs: [Arc<Cq>; 2],
    ) -> Qp {
        let [send_cq, recv_cq] = cqs;
        let seat = QPS.claim(raw);
        let provider = &session.providers[0];
        seat.set_provider(provider.post_send, provider.post_recv);
        let (max_sends, signals_all) = (init.cap.max_send_wr, init.sq_sig_all != 0);
        let state = State {
            // SAFETY: the seat is freed after the rings, and its lock protects them.
            sends: unsafe { SendRing::new(max_sends, signals_all, seat.sends()) },
            // SAFETY: as above.
            recvs: unsafe { RecvRing::new(init.cap.max_recv_wr, seat.recvs()) },
            slow_sends: false,
            slow_recvs: false,
            withheld: false,
            fence_wanted: false,
            fence_at: 0,
            starved: false,
            sends_given: 0,
            recvs_given: 0,
        };
        // SAFETY: a queue pair that was just created.
        let qpn = unsafe { (*raw).qp_num };
        Qp {
            seat,
            state: UnsafeCell::new(state),
            raw: [AtomicPtr::new(raw), AtomicPtr::new(null_mut())],
            qpns: [AtomicU32::new(qpn), AtomicU32::new(u32::MAX)],
            done: [const { AtomicU64::new(0) }; 2],
            home: AtomicU8::new(0),
            held: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            culprit: Mutex::default(),
            send_cq,
            recv_cq,
            session: Arc::downgrade(session),
            attrs: Mutex::default(),
        }
    }

    fn lock(&self) -> Locked<'_> {
        self.locked(self.seat.gate.lock())
    }

    /// Like [`Qp::lock`], for a thread that is already inside the gate.
    fn locked<'a>(&'a self, inside: GateGuard<'a>) -> Locked<'a> {
        Locked { qp: self, inside }
    }

    #[expect(clippy::mut_from_ref, reason = "the guard shows that nobody else has it")]
    fn state<'a>(&'a self, _locked: &'a Locked<'_>) -> &'a mut State {
        // SAFETY: the guard of this lock gives exclusive access.
        unsafe { &mut *self.state.get() }
    }

    pub(crate) fn attrs(&self) -> MutexGuard<'_, Attrs> {
        self.attrs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn qpn(&self, rail: Rail) -> u32 {
        self.qpns[rail.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn raw(&self, rail: Rail) -> *mut ibv_qp {
        self.raw[rail.index()].load(Ordering::Acquire)
    }

    /// Sets its counterpart on the second device.
    pub(crate) fn set_spare(&self, raw: *mut ibv_qp) {
        // SAFETY: null, or a queue pair that was just created.
        let qpn = unsafe { raw.as_ref() }.map_or(u32::MAX, |qp| qp.qp_num);
        self.qpns[1].store(qpn, Ordering::Relaxed);
        self.raw[1].store(raw, Ordering::Release);
    }

    fn home(&self) -> Rail {
        Rail::ALL[usize::from(self.home.load(Ordering::Relaxed) & 1)]
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether it is on its own device and not held, so that the provider handles everything.
    pub(crate) fn is_home(&self) -> bool {
        !self.is_held() && self.home() == Rail::Default
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn guard(&self, guarded: bool) {
        self.guarded.store(guarded, Ordering::Release);
    }

    /// Starts over, after the program has reset it.
    pub(crate) fn begin_anew(&self) {
        let locked = self.lock();
        let state = self.state(&locked);
        state.sends.clear();
        state.recvs.clear();
        (state.withheld, state.fence_wanted, state.starved) = (false, false, false);
        (state.slow_sends, state.slow_recvs) = (false, false);
        self.done.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.send_cq.forget_counted(self, 0);
        self.recv_cq.forget_counted(self, 1);
        self.home.store(0, Ordering::Relaxed);
        self.held.store(false, Ordering::Release);
        self.failed.store(false, Ordering::Release);
    }

    fn count(&self, which: usize) {
        let count = &self.done[which];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn sent(&self) -> u64 {
        self.done[0].load(Ordering::Relaxed) + self.send_cq.counted(self, 0)
    }

    fn received(&self) -> u64 {
        self.done[1].load(Ordering::Relaxed) + self.recv_cq.counted(self, 1)
    }

    /// The peer's memory keys that its requests have used, except for the first `from`.
    pub(crate) fn rkeys_from(&self, from: usize) -> Vec<u32> {
        let locked = self.lock();
        self.state(&locked).sends.rkeys().get(from..).unwrap_or_default().to_vec()
    }

    /// A request has completed successfully. Returns whether to tell the program. Called under the
    /// completion queue's lock.
    pub(crate) fn succeeded(&self, rail: Rail, wc: &mut ibv_wc) -> bool {
        if self.home() != rail {
            return self.has_failed() && rail == Rail::Default;
        }
        if wc.opcode & IBV_WC_RECV != 0 {
            self.count(1);
        } else {
            if rail == Rail::Backup || self.is_held() {
                let locked = self.lock();
                let sends = &self.state(&locked).sends;
                let head = sends.head(self.sent());
                // A request that was already executed was repeated as an empty WRITE.
                if let Some(number) = head.and_then(|head| sends.next_signaled(head)) {
                    wc.opcode = sends.wc_opcode(number);
                }
            }
            self.count(0);
        }
        wc.qp_num = self.qpn(Rail::Default);
        true
    }

    /// A request has failed. Returns whether to tell the program. Called under the completion
    /// queue's lock.
    pub(crate) fn failed_with(&self, rail: Rail, wc: &mut ibv_wc) -> bool {
        if self.has_failed() {
            return rail == Rail::Default;
        }
        if self.is_held() || self.home() != rail {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let session = self.session.upgrade();
        let movable = self.guarded.load(Ordering::Acquire)
            && session.as_ref().is_some_and(|session| session.is_path_failure(rail, wc.status));
        if let (true, Some(session)) = (movable, session) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.hold();
            session.path_failed(rail, Qpn::new(self.qpn(rail)));
            return false;
        }
        // The program made a mistake, or there is no backup to move to: it sees everything from now
        // on.
        wc.qp_num = self.qpn(Rail::Default);
        if let (Rail::Backup, Some(session)) = (rail, self.session.upgrade()) {
            *self.culprit.lock().unwrap_or_else(PoisonError::into_inner) = Some(wc.wr_id);
            self.hold();
            session.broken(Qpn::new(self.qpn(Rail::Default)));
            return true;
        }
        let locked = self.lock();
        let state = self.state(&locked);
        (state.slow_sends, state.slow_recvs) = (true, true);
        self.failed.store(true, Ordering::Release);
        true
    }

    /// Holds the queue pair: nothing is executed from now on.
    pub(crate) fn hold(&self) {
        let locked = self.lock();
        let state = self.state(&locked);
        if self.has_failed() || self.is_held() {
            return;
        }
        if self.home() == Rail::Default && !state.slow_sends {
            // On the fast path, every recorded request has been passed to the device.
            state.sends_given = state.sends.tail();
        }
        state.withheld = true;
        (state.slow_sends, state.slow_recvs) = (true, true);
        self.held.store(true, Ordering::Release);
    }

    pub(crate) fn outstanding(&self) -> u64 {
        let locked = self.lock();
        let state = self.state(&locked);
        let head = state.sends.head(self.sent());
        head.map_or(u64::MAX, |head| state.sends.tail() - head)
    }
}

/// Whether the path may have caused a failure: retries are exhausted, or everything was flushed by
/// a failure that was not seen. On some devices a port problem looks like a mistake of the program.
pub(crate) fn is_path_failure(status: c_uint, port_is_up: impl FnOnce() -> bool) -> bool {
    match status {
        RETRY_EXC_ERR | WR_FLUSH_ERR | FATAL_ERR | RESP_TIMEOUT_ERR => true,
        LOC_QP_OP_ERR | LOC_PROT_ERR => !port_is_up(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Seat;

    #[test]
    fn queues_of_512_and_256_take_24_kib_at_most() {
        let seat = QpSeat::EMPTY;
        // SAFETY: the seat outlives both.
        let rings = unsafe {
            SendRing::new(512, false, seat.sends()).bytes()
                + RecvRing::new(256, seat.recvs()).bytes()
        };
        let rest = size_of::<Qp>() + size_of::<QpSeat>();
        assert!(rings + rest <= 24 << 10, "{rings} + {rest}");
    }

    #[test]
    fn a_path_fails_by_silence_and_a_port_that_is_down() {
        assert!(is_path_failure(RETRY_EXC_ERR, || true));
        assert!(is_path_failure(LOC_QP_OP_ERR, || false));
        assert!(!is_path_failure(LOC_QP_OP_ERR, || true), "a mistake of the program's");
        assert!(is_path_failure(LOC_PROT_ERR, || false), "rxe, of a READ whose request it lost");
        assert!(!is_path_failure(LOC_PROT_ERR, || true), "a mistake of the program's");
        let remote_access = 10;
        assert!(!is_path_failure(remote_access, || false));
    }
}
