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
/// How many completions to take at once when the program has not asked for them.
const BATCH: usize = 32;

/// Set in the opcodes of receives.
const RECV: u64 = IBV_WC_RECV as u64;

/// The part of a completion queue that the data path touches. The gate protects the other fields.
#[repr(C, align(128))]
pub(crate) struct CqSeat {
    gate: Gate,
    poll: Cell<Option<PollCq>>,
    /// Always 1. Comparing with a field lets the provider's return value stay in its register,
    /// which is also ours.
    one: Cell<c_int>,
    /// The queue pair whose completions are counted here, and how many there were: sends and
    /// receives.
    qpn: AtomicU32,
    done: [AtomicU64; 2],
    owner: AtomicPtr<Cq>,
}

// SAFETY: non-atomic fields are accessed only inside the gate, or before it is opened.
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
    /// Enters the gate if this is the seat of that queue. The gate's mark holds the pointer to the
    /// program's array of completions: a register would have to be saved and restored.
    #[inline(always)]
    pub(crate) fn enter(&self, cq: *mut ibv_cq, wc: *mut ibv_wc) -> bool {
        self.gate.enter(cq as usize, wc.expose_provenance())
    }

    #[inline(always)]
    fn wc(&self) -> *mut ibv_wc {
        core::ptr::with_exposed_provenance_mut(self.gate.mark())
    }

    /// `ibv_poll_cq` inside the gate. Leaves the gate.
    ///
    /// # Safety
    /// Same as for that function. The gate was entered for this queue, with the same `wc`.
    #[inline(always)]
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        // SAFETY: upheld by the caller; the function is set before the gate is opened.
        let got = unsafe { self.poll.get().unwrap_unchecked()(cq, count, wc) };
        if got != self.one.get() {
            return self.sift(got);
        }
        // SAFETY: the provider has filled in one completion. Status and opcode are adjacent.
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

    /// Called only inside the gate; other threads may read the count.
    #[inline(always)]
    fn count(&self, which: usize) {
        let count = &self.done[which];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Handles everything but a single successful send: other completions, several, or none.
    #[inline(never)]
    fn sift(&self, got: c_int) -> c_int {
        let Ok(got @ 1..) = usize::try_from(got) else {
            self.gate.leave();
            return got;
        };
        // SAFETY: the provider has filled in this many completions.
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

/// Mask over status and opcode, as laid out in memory, of everything that is not a successful send.
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
    /// A poll must do more than call the provider: see [`Cq::poll_special`].
    special: AtomicBool,
    /// The queue pair whose completions the seat counts. While the data path may poll, it is the
    /// only queue pair on this queue.
    counted: AtomicPtr<Qp>,
    backup: AtomicPtr<ibv_cq>,
    backup_poll: PollCq,
    inner: UnsafeCell<Inner>,
    /// The program's completion channel for it.
    pub(crate) channel: *mut ibv_comp_channel,
    /// The program waits for an event that only this library can deliver.
    pub(crate) armed: AtomicBool,
    /// Number of events that this library delivered and that are not acknowledged.
    pub(crate) given: AtomicU32,
}

#[derive(Default)]
struct Inner {
    users: Vec<*const Qp>,
    /// Completions that were taken from the provider's queue and wait for the program.
    buffer: VecDeque<ibv_wc>,
}

/// A locked completion queue.
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

// SAFETY: verbs objects may be used from any thread; `inner` is accessed only under the lock.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(raw: *mut ibv_cq, channel: *mut ibv_comp_channel, polls: [PollCq; 2]) -> Cq {
        let seat = CQS.claim(raw);
        seat.poll.set(Some(polls[0]));
        // Slow until exactly one queue pair completes here.
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

    /// Like [`Cq::lock`], for a thread that is already inside the gate.
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

    /// Resets the count.
    pub(crate) fn forget_counted(&self, qp: &Qp, which: usize) {
        if self.counts(qp) {
            self.seat.done[which].store(0, Ordering::Relaxed);
        }
    }

    fn counts(&self, qp: &Qp) -> bool {
        core::ptr::eq(self.counted.load(Ordering::Relaxed), qp)
    }

    /// The data that the lock protects.
    #[expect(clippy::mut_from_ref, reason = "the guard shows that nobody else has it")]
    fn inner<'a>(&'a self, _locked: &'a Locked<'_>) -> &'a mut Inner {
        // SAFETY: the guard of this lock gives exclusive access.
        unsafe { &mut *self.inner.get() }
    }

    /// Registers a queue pair that completes here. It must leave before it is destroyed.
    pub(crate) fn join(&self, qp: &Qp) {
        let locked = self.lock();
        let users = &mut self.inner(&locked).users;
        if users.iter().any(|user| core::ptr::eq(*user, qp)) {
            return;
        }
        users.push(qp);
        if users.len() == 1 {
            // Counts of one queue pair must never be taken for another's.
            self.seat.done.iter().for_each(|count| count.store(0, Ordering::Relaxed));
            self.seat.qpn.store(qp.qpn(Rail::Default), Ordering::Relaxed);
            self.counted.store(core::ptr::from_ref(qp).cast_mut(), Ordering::Relaxed);
        }
    }

    /// Removes a queue pair, and the completions that it has left.
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

    /// Makes every poll take the slow path from now on.
    pub(crate) fn make_special(&self) {
        let _locked = self.lock();
        self.special.store(true, Ordering::Relaxed);
    }

    /// `ibv_poll_cq`, when the data path cannot handle it.
    ///
    /// # Safety
    /// Same as for that function: there is room for `count` completions at `wc`.
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        let locked = self.lock();
        let got = if self.is_special() {
            // SAFETY: upheld by the caller.
            unsafe { self.poll_special(&locked, count, wc) }
        } else {
            // SAFETY: upheld by the caller.
            let got = unsafe { (self.poll)(cq, count, wc) };
            match usize::try_from(got) {
                Ok(some @ 1..) => {
                    // SAFETY: the provider has filled in this many completions.
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

    /// Processes a provider's completions, and keeps those that are for the program.
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

    /// Whether a completion is for the program. Adjusts it to what the program should see.
    fn take(&self, locked: &Locked<'_>, rail: Rail, wc: &mut ibv_wc) -> bool {
        let users = &self.inner(locked).users;
        // SAFETY: queue pairs leave, under this lock, before they are destroyed.
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

    /// Polls while completions wait here, or a queue pair is moving or on the backup.
    #[cold]
    #[inline(never)]
    unsafe fn poll_special(&self, locked: &Locked<'_>, count: c_int, wc: *mut ibv_wc) -> c_int {
        let Ok(count @ 1..) = usize::try_from(count) else { return 0 };
        // SAFETY: the caller guarantees room for this many completions, whatever the memory holds
        // now.
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
            // SAFETY: a live queue, and room for this many completions.
            let got = unsafe { poll(raw, room.len() as c_int, room.as_mut_ptr()) };
            if got > 0 {
                taken += self.sift(locked, rail, &mut room[..got as usize]) as usize;
            } else if got < 0 && taken == 0 {
                return got;
            }
        }
        let inner = self.inner(locked);
        // SAFETY: queue pairs leave, under this lock, before they are destroyed.
        let ordinary = inner.users.iter().all(|user| unsafe { (**user).is_home() });
        if taken < count && ordinary && inner.buffer.is_empty() {
            self.special.store(false, Ordering::Relaxed);
        }
        taken as c_int
    }

    /// The provider's queues: the first device's, and the second's if there is one.
    fn sources(&self) -> impl Iterator<Item = (Rail, *mut ibv_cq, PollCq)> + use<> {
        let first = (Rail::Default, self.raw, self.poll);
        let backup = self.backup();
        let second = (!backup.is_null()).then_some((Rail::Backup, backup, self.backup_poll));
        core::iter::once(first).chain(second)
    }

    /// Moves the providers' completions into the buffer. Returns how many wait there.
    pub(crate) fn drain(&self) -> usize {
        let locked = self.lock();
        for (rail, raw, poll) in self.sources() {
            loop {
                let mut batch = [ibv_wc::default(); BATCH];
                // SAFETY: a live queue, and room for this many completions.
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

    /// Adds completions made up by this library, for a connection that has failed.
    pub(crate) fn add(&self, made_up: impl IntoIterator<Item = ibv_wc>) {
        let locked = self.lock();
        self.inner(&locked).buffer.extend(made_up);
        self.special.store(true, Ordering::Relaxed);
    }

    /// Whether a poll takes the slow path.
    pub(crate) fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed)
    }
}
