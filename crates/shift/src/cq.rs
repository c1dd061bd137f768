//! Completion queues: the program's own, its counterpart on the second device, and completions that
//! wait for the program (the paper's WC buffer).

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;

use bowline_failover::Rail;
use bowline_verbs_types::{ibv_comp_channel, ibv_cq, ibv_wc};

use crate::qp::Qp;
use crate::spin::{Spin, SpinGuard};

/// A provider's `poll_cq` and `req_notify_cq`.
pub(crate) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type NotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;

/// `IBV_WC_SUCCESS` and failures that matter here.
const SUCCESS: c_uint = 0;
/// Completions taken at once when nobody has asked for them.
const BATCH: usize = 32;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) raw: *mut ibv_cq,
    poll: PollCq,
    lock: Spin,
    /// More is to be done than to ask the provider: see [`Cq::poll_special`].
    special: AtomicBool,
    /// Where completions are counted, if those of one queue pair alone come here.
    single: AtomicPtr<[AtomicU64; 2]>,
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

// SAFETY: verbs objects may be used from any thread; `inner` is only touched under the lock.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(raw: *mut ibv_cq, channel: *mut ibv_comp_channel, polls: [PollCq; 2]) -> Cq {
        Cq {
            raw,
            poll: polls[0],
            lock: Spin::default(),
            special: AtomicBool::new(false),
            single: AtomicPtr::new(null_mut()),
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

    /// What the lock guards.
    #[expect(clippy::mut_from_ref, reason = "the guard shows that nobody else has it")]
    fn inner<'a>(&'a self, _locked: &'a SpinGuard<'_>) -> &'a mut Inner {
        // SAFETY: whoever has the guard of this lock is alone with it.
        unsafe { &mut *self.inner.get() }
    }

    /// A queue pair completes here. It leaves before it ends.
    pub(crate) fn join(&self, qp: &Qp) {
        self.change_users(|users| {
            if !users.iter().any(|user| std::ptr::eq(*user, qp)) {
                users.push(qp);
            }
        });
    }

    /// A queue pair completes here no more; what it has left goes with it.
    pub(crate) fn leave(&self, qp: &Qp) {
        self.change_users(|users| users.retain(|user| !std::ptr::eq(*user, qp)));
        let locked = self.lock.lock();
        let qpn = qp.qpn(Rail::Default);
        self.inner(&locked).buffer.retain(|wc| wc.qp_num != qpn);
    }

    fn change_users(&self, change: impl FnOnce(&mut Vec<*const Qp>)) {
        let locked = self.lock.lock();
        let users = &mut self.inner(&locked).users;
        change(users);
        let single = match users[..] {
            // SAFETY: queue pairs leave, under this lock, before they end.
            [user] => unsafe { (*user).counters() }.cast_mut(),
            _ => null_mut(),
        };
        self.single.store(single, Ordering::Relaxed);
    }

    /// From now on every poll looks twice.
    pub(crate) fn make_special(&self) {
        // Not under the lock: from then on a thread that polls gives way.
        self.special.store(true, Ordering::Relaxed);
    }

    /// `ibv_poll_cq`.
    ///
    /// # Safety
    /// As that: there is room for `count` completions at `wc`.
    #[inline(always)]
    pub(crate) unsafe fn poll(&self, cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
        let locked = self.lock.lock();
        if self.special.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            let got = unsafe { self.poll_special(&locked, count, wc) };
            drop(locked);
            self.lock.give_way();
            return got;
        }
        // SAFETY: the caller's promise.
        let got = unsafe { (self.poll)(cq, count, wc) };
        if got <= 0 {
            return got;
        }
        let single = self.single.load(Ordering::Relaxed);
        // SAFETY: the provider has filled in as many.
        let first = unsafe { &*wc };
        if got == 1 && first.status == SUCCESS && !single.is_null() {
            // SAFETY: a queue pair leaves, under this lock, before it ends.
            let count = unsafe { &(&*single)[(first.opcode >> 7 & 1) as usize] };
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return got;
        }
        // SAFETY: the provider has filled in as many.
        let polled = unsafe { core::slice::from_raw_parts_mut(wc, got as usize) };
        self.sift(&locked, Rail::Default, polled)
    }

    /// Takes a provider's completions in, and keeps those that are for the program.
    #[inline(never)]
    fn sift(&self, locked: &SpinGuard<'_>, rail: Rail, polled: &mut [ibv_wc]) -> c_int {
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
    fn take(&self, locked: &SpinGuard<'_>, rail: Rail, wc: &mut ibv_wc) -> bool {
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
    unsafe fn poll_special(&self, locked: &SpinGuard<'_>, count: c_int, wc: *mut ibv_wc) -> c_int {
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
        let locked = self.lock.lock();
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
        let locked = self.lock.lock();
        self.inner(&locked).buffer.extend(made_up);
        self.special.store(true, Ordering::Relaxed);
    }

    /// Whether a poll would look twice.
    pub(crate) fn is_special(&self) -> bool {
        self.special.load(Ordering::Relaxed)
    }
}
