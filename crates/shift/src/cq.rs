//! Completion queues: the program's own, its counterpart on the second device, and completions that
//! wait for the program (the paper's WC buffer).

use core::cell::{Cell, UnsafeCell};
use core::ffi::{c_int, c_uint};
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;

use bowline_failover::Rail;
use bowline_verbs_types::{IBV_WC_RECV, ibv_comp_channel, ibv_cq, ibv_wc};

use crate::gate::{Gate, GateGuard};
use crate::qp::Qp;
use crate::table::{Held, Seat};
use crate::verbs::CQS;

/// A provider's `poll_cq` and `req_notify_cq`.
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type NotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// `IBV_WC_SUCCESS` and failures that matter here.
const SUCCESS: c_uint = 0;
/// Completions taken at once when nobody has asked for them.
const BATCH: usize = 32;

/// Set in the opcodes of receives.
const RECV: u64 = IBV_WC_RECV as u64;

/// What the data path touches of a completion queue. The gate guards the rest.
#[repr(C, align(128))]
pub(crate) struct CqSeat {
    gate: Gate,
    poll: Cell<Option<PollCq>>,
    /// Always 1. Compared with a field the answer of the provider stays where it is, and is ours.
    one: Cell<c_int>,
    /// The queue pair whose completions are counted here, and how many were, sends and receives.
    qpn: AtomicU32,
    done: [AtomicU64; 2],
    owner: AtomicPtr<Cq>,
}

// SAFETY: what is not atomic is touched by who is inside the gate alone, or before it is opened.
unsafe impl Sync for CqSeat {}

impl Seat for CqSeat {
    type Owner = Cq;
    const EMPTY: CqSeat = CqSeat {
        gate: Gate::new(),
        poll: Cell::new(None),
        one: Cell::new(1),
        qpn: AtomicU32::new(u32::MAX),
        done: [const { AtomicU64::new(0) }; 2],
        owner: AtomicPtr::new(null_mut()),
    };

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn owner(&self) -> &AtomicPtr<Cq> {
        &self.owner
    }

    fn of(owner: &Cq) -> &CqSeat {
        &owner.seat
    }
}

impl CqSeat {
    /// Enters the gate if this is the seat of that queue. Where completions go is kept as the
    /// gate's mark: in a register it would have to be saved and restored.
    #[inline(always)]
    pub(crate) fn enter(&self, cq: *mut ibv_cq, wc: *mut ibv_wc) -> bool {
        self.gate.enter(cq as usize, wc.expose_provenance())
    }

    #[inline(always)]
    fn wc(&self) -> *mut ibv_wc {
        core::ptr::with_exposed_provenance_mut(self.gate.mark())
    }

    /// `ibv_poll_cq`, inside the gate, which is left.
    ///
    /// # Safety
    /// As that. The gate was entered as this queue's, with the same place for completions.
    #[inline(always)]
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: the caller's promise; the function is set before the gate is opened.
        let got = unsafe { self.poll.get().unwrap_unchecked()(cq, count, wc) };
        if got != self.one.get() {
            return self.sift(got);
        }
        // SAFETY: the provider has filled one in. Status and opcode lie side by side.
        let is_plain = unsafe {
            let wc = self.wc();
            (&raw const (*wc).status).cast::<u64>().read_unaligned() & NOT_PLAIN == 0
                && (*wc).qp_num == self.qpn.load(Ordering::Relaxed)
        };
        if !is_plain {
            return self.sift(got);
        }
        self.count(0);
        self.gate.leave();
        got
    }

    /// Written by who is inside the gate, and read by others.
    #[inline(always)]
    fn count(&self, which: usize) {
        let count = &self.done[which];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Other completions than a send's that has succeeded, or several, or none.
    #[inline(never)]
    fn sift(&self, got: c_int) -> c_int {
        let Ok(got @ 1..) = usize::try_from(got) else {
            self.gate.leave();
            return got;
        };
        // SAFETY: the provider has filled in as many.
        let polled = unsafe { core::slice::from_raw_parts_mut(self.wc(), got) };
        let qpn = self.qpn.load(Ordering::Relaxed);
        if polled.iter().all(|wc| wc.status == SUCCESS && wc.qp_num == qpn) {
            polled.iter().for_each(|wc| self.count(usize::from(wc.opcode & IBV_WC_RECV != 0)));
            self.gate.leave();
            return got as c_int;
        }
        // SAFETY: set before the gate was opened; it lives as long as the program may poll.
        let cq = unsafe { &*self.owner.load(Ordering::Relaxed) };
        cq.sift(&cq.locked(self.gate.adopt()), Rail::Default, polled)
    }
}

/// Status and opcode, as they lie in memory, of what is not simply a send that has succeeded.
const NOT_PLAIN: u64 = if cfg!(target_endian = "little") {
    RECV << 32 | u32::MAX as u64
} else {
    RECV | (u32::MAX as u64) << 32
};
const _: () = assert!(offset_of!(ibv_wc, opcode) == offset_of!(ibv_wc, status) + 4);

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) raw: *mut ibv_cq,
    poll: PollCq,
    seat: Held<CqSeat>,
    /// More is to be done than to ask the provider: see [`Cq::poll_special`].
    special: AtomicBool,
    /// The queue pair whose completions the seat counts. It is the only one as long as the data
    /// path may poll.
    counted: AtomicPtr<Qp>,
    backup: AtomicPtr<ibv_cq>,
    backup_poll: PollCq,
    inner: UnsafeCell<Inner>,
    /// The channel that the program gave it.
    pub(crate) channel: *mut ibv_comp_channel,
    /// The program waits for an event that only we can give.
    pub(crate) armed: AtomicBool,
    /// Events that we gave, and that are not acknowledged.
    pub(crate) given: AtomicU32,
}

#[derive(Default)]
struct Inner {
    users: Vec<*const Qp>,
    /// Completions that were taken off the provider's queue, and wait for the program.
    buffer: VecDeque<ibv_wc>,
}

/// A completion queue that is locked.
struct Locked<'a> {
    cq: &'a Cq,
    inside: GateGuard<'a>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let users = &self.cq.inner(self).users;
        let counted = self.cq.counted.load(Ordering::Relaxed);
        let is_alone = matches!(users[..], [user] if user == counted.cast_const());
        self.inside.set_slow(!is_alone || self.cq.is_special());
    }
}

// SAFETY: verbs objects may be used from any thread; `inner` is only touched under the lock.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(raw: *mut ibv_cq, channel: *mut ibv_comp_channel, polls: [PollCq; 2]) -> Cq {
        let seat = CQS.claim(raw);
        seat.poll.set(Some(polls[0]));
        // Until one queue pair completes here, and no other.
        seat.gate.lock().set_slow(true);
        Cq {
            raw,
            poll: polls[0],
            seat,
            special: AtomicBool::new(false),
            counted: AtomicPtr::new(null_mut()),
            backup: AtomicPtr::new(null_mut()),
            backup_poll: polls[1],
            inner: UnsafeCell::default(),
            channel,
            armed: AtomicBool::new(false),
            given: AtomicU32::new(0),
        }
    }

    pub(crate) fn backup(&self) -> *mut ibv_cq {
        self.backup.load(Ordering::Acquire)
    }

    pub(crate) fn set_backup(&self, backup: *mut ibv_cq) {
        self.backup.store(backup, Ordering::Release);
    }

    fn lock(&self) -> Locked<'_> {
        self.locked(self.seat.gate.lock())
    }

    /// As [`Cq::lock`], by who is inside its gate.
    fn locked<'a>(&'a self, inside: GateGuard<'a>) -> Locked<'a> {
        Locked { cq: self, inside }
    }

    /// How many completions of a queue pair its seat has counted, sends or receives.
    pub(crate) fn counted(&self, qp: &Qp, which: usize) -> u64 {
        match self.counts(qp) {
            true => self.seat.done[which].load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Begins anew.
    pub(crate) fn forget_counted(&self, qp: &Qp, which: usize) {
        if self.counts(qp) {
            self.seat.done[which].store(0, Ordering::Relaxed);
        }
    }

    fn counts(&self, qp: &Qp) -> bool {
        core::ptr::eq(self.counted.load(Ordering::Relaxed), qp)
    }

    /// What the lock guards.
    #[expect(clippy::mut_from_ref, reason = "the guard shows that nobody else has it")]
    fn inner<'a>(&'a self, _locked: &'a Locked<'_>) -> &'a mut Inner {
        // SAFETY: whoever has the guard of this lock is alone with it.
        unsafe { &mut *self.inner.get() }
    }

    /// A queue pair completes here. It leaves before it ends.
    pub(crate) fn join(&self, qp: &Qp) {
        let locked = self.lock();
        let users = &mut self.inner(&locked).users;
        if users.iter().any(|user| core::ptr::eq(*user, qp)) {
            return;
        }
        users.push(qp);
        if users.len() == 1 {
            // What is counted for one is never another's.
            self.seat.done.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            self.seat.qpn.store(qp.qpn(Rail::Default), Ordering::Relaxed);
            self.counted.store(core::ptr::from_ref(qp).cast_mut(), Ordering::Relaxed);
        }
    }

    /// A queue pair completes here no more; what it has left goes with it.
    pub(crate) fn leave(&self, qp: &Qp) {
        let locked = self.lock();
        let inner = self.inner(&locked);
        inner.users.retain(|user| !core::ptr::eq(*user, qp));
        let qpn = qp.qpn(Rail::Default);
        inner.buffer.retain(|wc| wc.qp_num != qpn);
        if self.counts(qp) {
            self.counted.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// From now on every poll looks twice.
    pub(crate) fn make_special(&self) {
        let _locked = self.lock();
        self.special.store(true, Ordering::Relaxed);
    }

    /// `ibv_poll_cq`, where the data path keeps out.
    ///
    /// # Safety
    /// As that: there is room for `count` completions at `wc`.
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        let locked = self.lock();
        let got = if self.is_special() {
            // SAFETY: the caller's promise.
            unsafe { self.poll_special(&locked, count, wc) }
        } else {
            // SAFETY: the caller's promise.
            let got = unsafe { (self.poll)(cq, count, wc) };
            match usize::try_from(got) {
                Ok(some @ 1..) => {
                    // SAFETY: the provider has filled in as many.
                    let polled = unsafe { core::slice::from_raw_parts_mut(wc, some) };
                    self.sift(&locked, Rail::Default, polled)
                }
                _ => got,
            }
        };
        drop(locked);
        self.seat.gate.give_way();
        got
    }

    /// Takes a provider's completions in, and keeps those that are for the program.
    #[inline(never)]
    fn sift(&self, locked: &Locked<'_>, rail: Rail, polled: &mut [ibv_wc]) -> c_int {
        let mut kept = 0;
        for index in 0..polled.len() {
            let mut wc = polled[index];
            if self.take(locked, rail, &mut wc) {
                polled[kept] = wc;
                kept += 1;
            }
        }
        kept as c_int
    }

    /// Whether a completion is for the program, as it should see it.
    fn take(&self, locked: &Locked<'_>, rail: Rail, wc: &mut ibv_wc) -> bool {
        let users = &self.inner(locked).users;
        // SAFETY: queue pairs leave, under this lock, before they end.
        let mut all = users.iter().map(|user| unsafe { &**user });
        let Some(qp) = all.find(|qp| qp.qpn(rail) == wc.qp_num) else { return true };
        if wc.status == SUCCESS {
            return qp.succeeded(rail, wc);
        }
        if qp.failed_with(rail, wc) {
            return true;
        }
        self.special.store(true, Ordering::Relaxed);
        false
    }

    /// Polls while completions wait here, or a queue pair is moving or away.
    #[cold]
    #[inline(never)]
    unsafe fn poll_special(&self, locked: &Locked<'_>, count: c_int, wc: *mut ibv_wc) -> c_int {
        let Ok(count @ 1..) = usize::try_from(count) else { return 0 };
        // SAFETY: the caller's promise: there is room for so many, whatever is there now.
        let out = unsafe { core::slice::from_raw_parts_mut(wc, count) };
        let mut taken = 0;
        while taken < count
            && let Some(next) = self.inner(locked).buffer.pop_front()
        {
            out[taken] = next;
            taken += 1;
        }
        for (rail, raw, poll) in self.sources() {
            if taken == count {
                return taken as c_int;
            }
            let room = &mut out[taken..];
            // SAFETY: a live queue, and room for as many.
            let got = unsafe { poll(raw, room.len() as c_int, room.as_mut_ptr()) };
            if got > 0 {
                taken += self.sift(locked, rail, &mut room[..got as usize]) as usize;
            } else if got < 0 && taken == 0 {
                return got;
            }
        }
        let inner = self.inner(locked);
        // SAFETY: queue pairs leave, under this lock, before they end.
        let ordinary = inner.users.iter().all(|user| unsafe { (**user).is_home() });
        if taken < count && ordinary && inner.buffer.is_empty() {
            self.special.store(false, Ordering::Relaxed);
        }
        taken as c_int
    }

    /// The provider's queues, the second device's too if there is one.
    fn sources(&self) -> impl Iterator<Item = (Rail, *mut ibv_cq, PollCq)> + use<> {
        let first = (Rail::Default, self.raw, self.poll);
        let backup = self.backup();
        let second = (!backup.is_null()).then_some((Rail::Backup, backup, self.backup_poll));
        core::iter::once(first).chain(second)
    }

    /// Takes what providers have into the buffer; how many completions wait there.
    pub(crate) fn drain(&self) -> usize {
        let locked = self.lock();
        for (rail, raw, poll) in self.sources() {
            loop {
                let mut batch = [ibv_wc::default(); BATCH];
                // SAFETY: a live queue, and room for as many.
                let got = unsafe { poll(raw, BATCH as c_int, batch.as_mut_ptr()) };
                let Ok(got @ 1..) = usize::try_from(got) else { break };
                let kept = self.sift(&locked, rail, &mut batch[..got]) as usize;
                self.inner(&locked).buffer.extend(&batch[..kept]);
                if got < BATCH {
                    break;
                }
            }
        }
        let waiting = self.inner(&locked).buffer.len();
        if waiting > 0 {
            self.special.store(true, Ordering::Relaxed);
        }
        waiting
    }

    /// Completions that we make up: of a connection that has failed.
    pub(crate) fn add(&self, made_up: impl IntoIterator<Item = ibv_wc>) {
        let locked = self.lock();
        self.inner(&locked).buffer.extend(made_up);
        self.special.store(true, Ordering::Relaxed);
    }

    /// Whether a poll would look twice.
    pub(crate) fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed)
    }
}
