//! Queue pairs: what is remembered of them, and how they change devices.

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

/// Failures as the header numbers them.
const LOC_QP_OP_ERR: c_uint = 2;
const LOC_PROT_ERR: c_uint = 4;
const WR_FLUSH_ERR: c_uint = 5;
const RETRY_EXC_ERR: c_uint = 12;
const FATAL_ERR: c_uint = 19;
const RESP_TIMEOUT_ERR: c_uint = 20;

/// A queue pair of the program's, with its counterpart on the second device.
pub(crate) struct Qp {
    /// With the lock of the rest.
    seat: Held<QpSeat>,
    /// Under the lock.
    state: UnsafeCell<State>,
    raw: [AtomicPtr<ibv_qp>; 2],
    qpns: [AtomicU32; 2],
    /// Requests with a completion, and receives, that have completed well, besides those that
    /// their completion queue has counted by itself. Written under the lock of that.
    done: [AtomicU64; 2],
    home: AtomicU8,
    /// Nothing is carried out: what is posted is remembered, and failures are not the program's.
    held: AtomicBool,
    /// The program was told of a failure: it has its provider's queue pair for itself.
    failed: AtomicBool,
    /// A failed path holds it.
    guarded: AtomicBool,
    /// Failures that the program was not told of.
    dropped: AtomicU64,
    /// The request by whose failure the program knows, where its provider's queue pair does not.
    culprit: Mutex<Option<u64>>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    session: Weak<Session>,
    pub(crate) attrs: Mutex<Attrs>,
}

struct State {
    sends: SendRing,
    recvs: RecvRing,
    /// Posting is more than to remember and to call the provider.
    slow_sends: bool,
    slow_recvs: bool,
    /// Sends are remembered, and not handed on.
    withheld: bool,
    /// Sends are withheld behind the next one with a completion.
    fence_wanted: bool,
    /// From which on sends are withheld by a fence.
    fence_at: u64,
    /// A key is not known yet that a request needs on the second device.
    starved: bool,
    /// Sends and receives that the device where the connection is has had.
    sends_given: u64,
    recvs_given: u64,
}

/// How the program has set the queue pair up, and where its peer is.
#[derive(Default)]
pub(crate) struct Attrs {
    pub(crate) init: Option<InitAttrs>,
    pub(crate) rtr: Option<RecvAttrs>,
    pub(crate) rts: Option<SendAttrs>,
    /// The peer as the program knows it.
    pub(crate) peer: Option<(IpAddr, Qpn)>,
    /// Where the keys of the peer's memory on its second device are found.
    pub(crate) peer_keys: Option<PeerKeys>,
    /// How many of the keys that requests have named were asked for.
    pub(crate) keys_asked: usize,
    /// Its counterpart on the second device.
    pub(crate) spare_peer: Option<(IpAddr, Qpn)>,
}

/// The keys of a peer's memory on its second device.
#[derive(Clone, Copy)]
pub(crate) enum PeerKeys {
    /// Those of the first: it is a soft NIC.
    Same,
    /// In the store, under the address of the first.
    Of(IpAddr),
}

/// What a queue pair needs to be initialised: as there is one of each for every queue pair, not the
/// whole of the verbs' structure.
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

/// The same for becoming ready to receive.
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

/// The same for becoming ready to send.
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
    /// Something is outstanding that must not be repeated, or cannot be elsewhere.
    pub(crate) has_atomic: bool,
    pub(crate) psn: Psn,
    /// It is not to be set up where it goes: it is about to end.
    pub(crate) ends: bool,
}

/// Why a request did not reach a device.
enum Refused {
    /// A key is not known there yet.
    Starved,
    /// The provider's errno.
    Errno(c_int),
}

/// A queue pair that is locked.
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

// SAFETY: verbs objects may be used from any thread; `state` is only touched under the lock.
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
            // SAFETY: the seat is given back after the rings, and its lock is theirs.
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
        // SAFETY: a queue pair that was just made.
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

    /// As [`Qp::lock`], by who is inside its gate.
    fn locked<'a>(&'a self, inside: GateGuard<'a>) -> Locked<'a> {
        Locked { qp: self, inside }
    }

    #[expect(clippy::mut_from_ref, reason = "the guard shows that nobody else has it")]
    fn state<'a>(&'a self, _locked: &'a Locked<'_>) -> &'a mut State {
        // SAFETY: whoever has the guard of this lock is alone with it.
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

    /// It has a counterpart on the second device.
    pub(crate) fn set_spare(&self, raw: *mut ibv_qp) {
        // SAFETY: a queue pair that was just made, or none.
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

    /// Whether nothing is to be done but what its provider does.
    pub(crate) fn is_home(&self) -> bool {
        !self.is_held() && self.home() == Rail::Default
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(crate) fn guard(&self, guarded: bool) {
        self.guarded.store(guarded, Ordering::Release);
    }

    /// Begins anew, as the program has reset it.
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

    /// Keys of the peer's memory that its requests have named, without the first `from`.
    pub(crate) fn rkeys_from(&self, from: usize) -> Vec<u32> {
        let locked = self.lock();
        self.state(&locked).sends.rkeys().get(from..).unwrap_or_default().to_vec()
    }

    /// A request has completed well: whether the program is to hear of it. Under the completion
    /// queue's lock.
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
                // What was executed before was repeated as an empty WRITE.
                if let Some(number) = head.and_then(|head| sends.next_signaled(head)) {
                    wc.opcode = sends.wc_opcode(number);
                }
            }
            self.count(0);
        }
        wc.qp_num = self.qpn(Rail::Default);
        true
    }

    /// A request has failed: whether the program is to hear of it. Under the completion queue's
    /// lock.
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
        // The program's own mistake, or nothing to move to: it hears of everything from now on.
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

    /// Nothing is carried out from now on.
    pub(crate) fn hold(&self) {
        let locked = self.lock();
        let state = self.state(&locked);
        if self.has_failed() || self.is_held() {
            return;
        }
        if self.home() == Rail::Default && !state.slow_sends {
            // On this way everything that is remembered has been handed on.
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

/// Whether a failure may be the path's: retries exhausted, or everything flushed by a failure that
/// was not seen. The port's own trouble looks like a mistake of the program's on some devices.
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
