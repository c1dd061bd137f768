//! Runs protocols on a verbs device, which has no lanes.
//!
//! As with a lane, a thread that polls drives the device. A background thread steps in when nobody
//! has polled for a while. It keeps polling for some microseconds after the last completion. Then
//! it requests an event for the next completion, and sleeps until that event, a deadline, or a call
//! that posts something.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bowline_ibverbs::{Context, VerbsNic};
use bowline_io::{EventChannel, LaneError, Task, TaskId, Tasks, spawn_background};
use bowline_nic::{NicConfig, Time};

use crate::DeviceError;
use crate::verbs::since;

/// The thread steps in when nobody has polled for this long.
const TAKEOVER_NS: u64 = 200_000;
/// How long it sleeps before it checks again whether another thread still polls.
const NAP: Duration = Duration::from_micros(500);
/// How long it keeps polling after its last work before it sleeps.
const SPIN_NS: u64 = 50_000;
/// Longest sleep if a completion queue cannot deliver events.
const BLIND: Duration = Duration::from_millis(1);
/// How often the thread yields to waiting threads before it continues.
const MAX_YIELDS: u32 = 8;
/// Maximum number of events kept: one is enough to wake the thread.
const MAX_EVENTS: usize = 64;

/// Protocols on a verbs device, and the thread that drives them.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    opened: Instant,
    state: Mutex<State>,
    /// Threads that wait for the state's lock.
    contenders: AtomicU32,
    /// Completion events, and wake-ups from calls.
    events: Arc<EventChannel<u64>>,
    /// When a thread last polled, in nanoseconds of the device's clock.
    last_polled: AtomicU64,
    sleeps: AtomicBool,
    stopping: AtomicBool,
}

struct State {
    opened: Instant,
    nic: VerbsNic,
    tasks: Tasks,
    now: Time,
}

impl State {
    /// Runs the tasks, and passes what is due to the provider. Returns whether there was anything
    /// to do. It reads the clock itself, as late as possible: a thread may wait for the lock, or
    /// lose its core, and completions that came meanwhile must not seem to have come before.
    fn turn(&mut self) -> bool {
        self.now = self.now.max(since(self.opened));
        let before = self.nic.activity();
        self.tasks.run(&mut self.nic, self.now);
        self.nic.pump(self.now);
        self.nic.activity() != before
    }

    /// When the next turn is due even if nothing happens.
    fn deadline(&mut self) -> Option<Time> {
        let held = self.nic.deadline(self.now);
        held.into_iter().chain(self.tasks.deadline()).min()
    }
}

impl Driver {
    pub(crate) fn start(
        context: &Arc<Context>,
        config: NicConfig,
        opened: Instant,
    ) -> Result<Arc<Driver>, DeviceError> {
        let events = EventChannel::new(MAX_EVENTS).map_err(LaneError::Start)?;
        let events = Arc::new(events);
        let nic = VerbsNic::new(context, config, Arc::clone(&events))?;
        let shared = Arc::new(Shared {
            opened,
            state: Mutex::new(State { opened, nic, tasks: Tasks::default(), now: Time::ZERO }),
            contenders: AtomicU32::new(0),
            events,
            last_polled: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&shared);
        let name = format!("bowline-{}", context.caps().name);
        let thread = spawn_background(name, move || for_thread.live()).map_err(LaneError::Start)?;
        Ok(Arc::new(Driver { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// Runs `f` on the device and then its tasks, so that posted work leaves.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut VerbsNic, Time) -> R) -> Result<R, LaneError> {
        let shared = &*self.shared;
        let mut state = shared.lock()?;
        let now = shared.now().max(state.now);
        let result = f(&mut state.nic, now);
        state.turn();
        drop(state);
        // Queues created during the sleep are not armed, and deadlines may be earlier.
        shared.wake();
        Ok(result)
    }

    /// Runs the tasks for a thread that polls.
    pub(crate) fn poll(&self) -> Result<(), LaneError> {
        let shared = &*self.shared;
        shared.last_polled.store(shared.now().as_nanos(), Ordering::Relaxed);
        let did = shared.lock()?.turn();
        if !did {
            // The peer may need this core.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Fails if the driver has stopped.
    pub(crate) fn check(&self) -> Result<(), LaneError> {
        self.shared.lock().map(drop)
    }

    /// The caller has polled until now, and is about to sleep.
    pub(crate) fn stop_polling(&self) {
        self.shared.last_polled.store(0, Ordering::Relaxed);
        self.shared.events.push(0);
    }

    pub(crate) fn add_task(&self, task: Arc<Mutex<dyn Task>>) -> Result<TaskId, LaneError> {
        let id = self.shared.lock()?.tasks.add(task);
        self.shared.wake();
        Ok(id)
    }

    pub(crate) fn remove_task(&self, task: TaskId) -> Result<(), LaneError> {
        self.shared.lock()?.tasks.remove(task);
        Ok(())
    }

    /// Stops the thread. Later calls fail.
    pub(crate) fn shut_down(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.events.push(0);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Shared {
    fn now(&self) -> Time {
        since(self.opened)
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, LaneError> {
        let dead = |reason: &str| LaneError::Dead { reason: reason.to_owned() };
        if self.stopping.load(Ordering::Acquire) {
            return Err(dead("the device was shut down"));
        }
        let state = match self.state.try_lock() {
            Err(TryLockError::WouldBlock) => {
                self.contenders.fetch_add(1, Ordering::Relaxed);
                let state = self.state.lock();
                self.contenders.fetch_sub(1, Ordering::Relaxed);
                state.ok()
            }
            state => state.ok(),
        };
        state.ok_or_else(|| dead("a protocol of the device panicked"))
    }

    /// The lock is not fair: without this, a busy thread would starve threads that post.
    fn let_others_in(&self) {
        for _ in 0..MAX_YIELDS {
            if self.contenders.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Wakes the thread if it sleeps.
    fn wake(&self) {
        if self.sleeps.load(Ordering::Acquire) {
            self.events.push(0);
        }
    }

    /// The body of the thread. It ends with the device, or when a protocol has panicked.
    fn live(&self) {
        let mut last_work = self.now();
        loop {
            let now = self.now();
            let polled = Time::from_nanos(self.last_polled.load(Ordering::Relaxed));
            if polled != Time::ZERO && now.nanos_since(polled) < TAKEOVER_NS {
                self.rest(Some(NAP));
                if self.stopping.load(Ordering::Acquire) {
                    return;
                }
                continue;
            }
            let Ok(mut state) = self.lock() else { return };
            let did = state.turn();
            let now = state.now;
            let is_due = state.deadline().is_some_and(|at| at <= now);
            drop(state);
            if did {
                last_work = now;
            }
            if did || is_due || now.nanos_since(last_work) < SPIN_NS {
                self.let_others_in();
                continue;
            }
            if self.sleep().is_err() {
                return;
            }
            last_work = self.now();
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&self) -> Result<(), LaneError> {
        let mut state = self.lock()?;
        let is_armed = state.nic.arm().is_ok();
        // Completions from before the arming raise no event.
        if state.turn() {
            return Ok(());
        }
        let now = state.now;
        let until = state.deadline().map(|at| Duration::from_nanos(at.nanos_since(now)));
        self.sleeps.store(true, Ordering::Release);
        drop(state);
        self.rest(if is_armed { until } else { until.into_iter().chain([BLIND]).min() });
        self.sleeps.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits for an event, for at most `limit`.
    fn rest(&self, limit: Option<Duration>) {
        // The channel is private, so nobody closes it.
        let _ = self.events.wait(limit);
        while let Ok(Some(_)) = self.events.try_next() {}
    }
}
