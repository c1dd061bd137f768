//! A lane: one port, one engine shard, and the threads that run them.
//!
//! The polling thread drives. A thread that polls a completion queue locks the engine, receives,
//! fires timers and transmits, all inline: a program that spins on its queue has a core for it
//! already, and a second spinning thread would take another. The lane also has its own thread,
//! which takes over when nobody has polled for some microseconds, so that progress never depends on
//! the application, and which sleeps when there is nothing to do.

mod alarm;
mod attendance;
mod carrier;
mod engine;
mod error;
mod event_channel;
mod gauges;
mod guard;
mod notify;
mod patience;
mod spin;
mod task;
mod thread;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use std::os::fd::{AsRawFd, RawFd};

use bowline_nic::{Counters, CqId, Nic, Time};

use crate::fault::{Faults, LinkState};
use crate::port::{Port, PortCaps, PortCounters};
use crate::sys::{EventFd, spawn_background};
use crate::udp::Multicasts;
use alarm::Alarm;
use attendance::Attendance;
use carrier::Carrier;
use engine::Engine;
pub use error::LaneError;
pub use event_channel::{ChannelClosed, EventChannel};
pub use gauges::Gauges;
use guard::EngineGuard;
pub use notify::{CqNotify, EventSink};
pub use task::{Task, TaskId, Tasks};

/// How a lane behaves.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// The thread's name.
    pub name: String,
    /// Packets taken from the engine at a time.
    pub batch_packets: usize,
    /// The lane's thread takes over when nobody has polled for this long.
    pub takeover: Duration,
    /// The lane's thread keeps spinning this long after its last work before it sleeps.
    pub spin: Duration,
    /// [`Lane::post`] leaves packets to the next poll if the last transmission was less than this
    /// ago. Zero sends every post at once.
    pub coalesce: Duration,
    /// Zero of the lane's clock. Lanes of one device share it, so that their times compare.
    pub epoch: Instant,
}

impl Default for LaneConfig {
    fn default() -> LaneConfig {
        LaneConfig {
            name: "bowline-lane".into(),
            batch_packets: 256,
            takeover: Duration::from_micros(100),
            spin: Duration::from_micros(40),
            coalesce: Duration::from_micros(8),
            epoch: Instant::now(),
        }
    }
}

/// One port and one engine, shared by the application's threads and the lane's own.
///
/// Every method may be called from any thread. Closures run under the engine's lock: they should
/// issue their verb and return, and must not call the lane again.
pub struct Lane {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How long posts alone keep the lane's thread from taking over. They transmit, but do not receive.
const POSTS_COUNT_FOR: Duration = Duration::from_millis(1);

struct Shared {
    config: LaneConfig,
    caps: PortCaps,
    engine: Mutex<Engine>,
    /// Threads that wait for the engine's lock.
    contenders: AtomicU32,
    /// When a poll last began, in nanoseconds of the lane's clock.
    last_polled: AtomicU64,
    /// Whether somebody polls, and whether the lane's thread sleeps.
    attendance: Attendance,
    wake: Arc<EventFd>,
    /// Ends the naps of the lane's thread.
    alarm: Alarm,
    /// Faults on demand.
    faults: Option<Faults>,
    /// Multicast groups, if the port can join any.
    multicasts: Option<Arc<Multicasts>>,
    /// The interface below, looked up on the first query.
    carrier: OnceLock<Option<Carrier>>,
    stopping: AtomicBool,
    /// Why the port broke.
    broken: Arc<OnceLock<String>>,
    /// Why the lane ended.
    end_reason: Mutex<Option<String>>,
}

impl Lane {
    /// Starts a lane for an engine and a port. The engine runs on the lane's clock from now on; its
    /// events, except those about completion queues, go to `events`.
    pub fn start(
        nic: Nic,
        port: Box<dyn Port>,
        config: LaneConfig,
        events: Arc<dyn EventSink>,
    ) -> Result<Arc<Lane>, LaneError> {
        let caps = port.caps();
        let wake = Arc::new(EventFd::flag().map_err(LaneError::Start)?);
        let faults = port.faults().cloned();
        let multicasts = port.multicasts().cloned();
        if let Some(faults) = &faults {
            faults.wake_on_change(Arc::clone(&wake));
        }
        let broken = Arc::new(OnceLock::new());
        let (batch_packets, epoch) = (config.batch_packets, config.epoch);
        let engine = Engine::new(nic, port, Arc::clone(&broken), batch_packets, events, epoch);
        let shared = Arc::new(Shared {
            caps,
            engine: Mutex::new(engine),
            contenders: AtomicU32::new(0),
            last_polled: AtomicU64::new(0),
            attendance: Attendance::new(),
            wake,
            alarm: Alarm::new().map_err(LaneError::Start)?,
            faults,
            multicasts,
            carrier: OnceLock::new(),
            stopping: AtomicBool::new(false),
            broken,
            end_reason: Mutex::new(None),
            config,
        });
        let for_thread = Arc::clone(&shared);
        let thread = spawn_background(shared.config.name.clone(), move || for_thread.live())
            .map_err(LaneError::Start)?;
        Ok(Arc::new(Lane { shared, thread: Mutex::new(Some(thread)) }))
    }

    /// The lane's clock: nanoseconds since its epoch.
    pub fn now(&self) -> Time {
        self.shared.now()
    }

    /// What the port is and can do.
    pub fn port_caps(&self) -> PortCaps {
        self.shared.caps
    }

    /// Runs `f` on the engine, then transmits what became ready: for control verbs, and for posts
    /// whose packets must leave at once.
    pub fn with<R>(&self, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        Ok(self.shared.enter(self.shared.now(), f, 0, true)?.0)
    }

    /// Runs `f` on the engine and transmits soon: for posting work requests one by one.
    ///
    /// The first of a run of posts is sent at once. Posts within [`LaneConfig::coalesce`] of a
    /// transmission wait for the next poll, or for the lane's thread if nobody polls, so that they
    /// share bursts: small packets sent one by one cost a system call each and arrive one by one.
    pub fn post<R>(&self, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        let shared = &*self.shared;
        let now = shared.now();
        let polled = Time::from_nanos(shared.last_polled.load(Ordering::Relaxed));
        if !shared.is_attended(now) || now.nanos_since(polled) > nanos(POSTS_COUNT_FOR) {
            return Ok(shared.enter(now, f, 0, false)?.0);
        }
        // A thread that posts between two polls is still polling.
        let mut presence = Presence::begin(shared, now);
        let (result, now) = shared.enter(now, f, nanos(shared.config.coalesce), false)?;
        presence.until = now;
        Ok(result)
    }

    /// Runs the engine for a round, then `f`: for polling a completion queue.
    ///
    /// If another thread holds the engine, this one waits for it and then runs `f` without a round
    /// of its own: the other has just done that work. Rounds are short, so the wait is too. Waiting
    /// in the kernel instead of returning empty-handed lets the other thread finish when both share
    /// a core.
    pub fn poll<R>(&self, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        let shared = &*self.shared;
        let now = shared.now();
        let presence = Presence::begin(shared, now);
        shared.last_polled.store(now.as_nanos(), Ordering::Relaxed);
        let free = if shared.is_contended() { None } else { shared.try_lock()? };
        match free {
            Some(engine) => Ok(shared.polled(engine, presence, now, f)),
            None => {
                let mut engine = shared.lock_contended()?;
                // It may have waited for long.
                let now = engine.advance(shared.now());
                let result = f(&mut engine.nic, now);
                shared.leave(&engine);
                Ok(result)
            }
        }
    }

    /// Runs `f` on the engine and nothing else: for collecting completions of a lane that drives
    /// itself.
    pub fn collect<R>(&self, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<R, LaneError> {
        let shared = &*self.shared;
        let mut engine = match shared.try_lock()? {
            Some(engine) => engine,
            None => shared.lock_contended()?,
        };
        let now = engine.advance(shared.now());
        Ok(f(&mut engine.nic, now))
    }

    /// Tells the lane that the caller, which has polled until now, is about to sleep: the lane's
    /// thread takes over at once instead of after a timeout.
    pub fn stop_polling(&self) {
        if self.shared.attendance.leave() {
            self.shared.wake.raise();
        }
    }

    /// As [`Lane::poll`], but returns `None` at once if another thread holds the engine.
    pub fn try_poll<R>(&self, f: impl FnOnce(&mut Nic, Time) -> R) -> Result<Option<R>, LaneError> {
        let shared = &*self.shared;
        if shared.is_contended() {
            return Ok(None);
        }
        let Some(engine) = shared.try_lock()? else { return Ok(None) };
        let now = shared.now();
        let presence = Presence::begin(shared, now);
        shared.last_polled.store(now.as_nanos(), Ordering::Relaxed);
        Ok(Some(shared.polled(engine, presence, now, f)))
    }

    /// Raises `notify` whenever the engine notifies of `cq` ([`Nic::arm_cq`]).
    pub fn notify_cq(&self, cq: CqId, notify: CqNotify) -> Result<(), LaneError> {
        self.shared.lock()?.set_cq_notify(cq, Some(notify));
        Ok(())
    }

    /// Stops notifying of `cq`; call this when it is destroyed.
    pub fn forget_cq(&self, cq: CqId) -> Result<(), LaneError> {
        self.shared.lock()?.set_cq_notify(cq, None);
        Ok(())
    }

    /// Sends `tag | qpn` to `channel` for every guarded QP whose path has failed
    /// ([`Nic::guard_qp`]), instead of an event. Tags use the upper 32 bits.
    pub fn watch_paths(&self, channel: Arc<EventChannel<u64>>, tag: u64) -> Result<(), LaneError> {
        self.shared.lock()?.watch_paths(channel, tag);
        Ok(())
    }

    /// Runs `task` in the lane from now on. The caller may keep a handle, but must lock the task
    /// only inside closures that the lane runs, or the two locks can deadlock.
    pub fn add_task(&self, task: Arc<Mutex<dyn Task>>) -> Result<TaskId, LaneError> {
        Ok(self.shared.lock()?.tasks.add(task))
    }

    /// Stops running a task.
    pub fn remove_task(&self, task: TaskId) -> Result<(), LaneError> {
        self.shared.lock()?.tasks.remove(task);
        Ok(())
    }

    /// Wraps the port in middleware, between two rounds. The middleware takes over the port's
    /// capabilities and descriptors.
    pub fn wrap_port(
        &self,
        wrap: impl FnOnce(Box<dyn Port>) -> Box<dyn Port>,
    ) -> Result<(), LaneError> {
        self.shared.lock()?.wrap_port(wrap);
        Ok(())
    }

    /// The counters of the engine and the port.
    pub fn counters(&self) -> Result<(Counters, PortCounters), LaneError> {
        let engine = self.shared.lock()?;
        Ok((engine.nic.counters().clone(), engine.port.counters()))
    }

    /// The handle for requesting faults, if the port has one. Starting or ending a fault wakes the
    /// lane, so that its tasks run at once.
    pub fn faults(&self) -> Option<&Faults> {
        self.shared.faults.as_ref()
    }

    /// The handle for joining multicast groups, if the port can. Call [`Lane::wake`] after joining.
    pub fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        self.shared.multicasts.as_ref()
    }

    /// Wakes the lane's thread, after something has changed that it may be waiting for.
    pub fn wake(&self) {
        self.shared.wake.raise();
    }

    /// Whether the link works, as far as this end can know: down while a fault says so, while the
    /// interface is down or has no carrier, and for good once the port is broken.
    ///
    /// Cheap enough to call often. The interface is queried on demand, at most every few
    /// milliseconds; a caller that learns of a change sooner ([`LinkNews`](crate::LinkNews)) calls
    /// [`Lane::recheck_link`] first. Takes no lock of the lane, so tasks may call it.
    pub fn link(&self) -> LinkState {
        let shared = &*self.shared;
        if shared.broken.get().is_some() {
            return LinkState::Down;
        }
        let faults = shared.faults.as_ref().map_or(LinkState::Up, Faults::link);
        let carrier = || shared.carrier.get_or_init(|| Carrier::of(shared.caps.addr));
        match faults {
            LinkState::Down => LinkState::Down,
            LinkState::Up => carrier().as_ref().map_or(LinkState::Up, |c| c.state(shared.now())),
        }
    }

    /// Why the port is broken, if it is. The lane keeps running, but its connections reach no peer.
    pub fn port_failure(&self) -> Option<&str> {
        self.shared.broken.get().map(String::as_str)
    }

    /// Makes the next [`Lane::link`] query the interface again.
    pub fn recheck_link(&self) {
        if let Some(Some(carrier)) = self.shared.carrier.get() {
            carrier.forget();
        }
    }

    /// Ends the lane: transmits what is ready, stops the thread, and closes all channels and the
    /// port. Later calls give [`LaneError::Dead`].
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake.raise();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of the thread has been caught and recorded within it.
            let _ = thread.join();
        }
    }
}

/// Marks a poll, or a post between polls, in progress: a long one still counts as polling.
struct Presence<'a> {
    shared: &'a Shared,
    /// When it ended, as far as is known.
    until: Time,
}

impl<'a> Presence<'a> {
    #[inline]
    fn begin(shared: &'a Shared, now: Time) -> Presence<'a> {
        shared.attendance.come();
        Presence { shared, until: now }
    }
}

impl Drop for Presence<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shared.attendance.seen_until(self.until);
        self.shared.alarm.put_off(self.until);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    /// The body of the lane's thread: runs the lane, and reports its end to all users.
    fn live(&self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| thread::run(self)));
        let reason = match outcome {
            Ok(Ok(())) => "it was shut down".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("its thread panicked: {}", message_of(&*panic)),
        };
        if let Ok(mut engine) = self.engine.lock() {
            let now = engine.advance(self.now());
            // Send the last acknowledgements.
            let _ = catch_unwind(AssertUnwindSafe(|| engine.transmit(now)));
        }
        *self.end_reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.stopping.store(true, Ordering::Release);
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).close();
    }

    #[inline]
    fn now(&self) -> Time {
        Time::from_nanos(nanos(self.config.epoch.elapsed()))
    }

    /// A round for a polling thread that holds the engine, then `f`.
    #[inline]
    fn polled<R>(
        &self,
        mut engine: EngineGuard<'_>,
        mut presence: Presence<'_>,
        now: Time,
        f: impl FnOnce(&mut Nic, Time) -> R,
    ) -> R {
        let now = engine.advance(now);
        let progress = engine.polled_round(now);
        let now = engine.time();
        let result = f(&mut engine.nic, now);
        let yields = engine.wants_yield(progress, now);
        self.leave(&engine);
        drop(engine);
        if !progress.is_idle() {
            presence.until = self.now();
        }
        if yields {
            // Lets the lane's thread run meanwhile.
            drop(presence);
            self.yield_core();
        }
        result
    }

    /// Yields the core, and records for how long.
    #[cold]
    fn yield_core(&self) {
        let before = self.now();
        std::thread::yield_now();
        let away_ns = self.now().nanos_since(before);
        // If another thread holds the engine, there is work.
        if let Ok(Some(mut engine)) = self.try_lock() {
            engine.patience.yielded(away_ns);
        }
    }

    /// Locks the engine for a caller that is not the lane's thread. With `in_order`, deferred
    /// packets leave before `f` runs: one may be the last acknowledgement of a QP that `f`
    /// destroys. `now` has just been read. Also returns the latest clock reading.
    fn enter<R>(
        &self,
        mut now: Time,
        f: impl FnOnce(&mut Nic, Time) -> R,
        coalesce_ns: u64,
        in_order: bool,
    ) -> Result<(R, Time), LaneError> {
        let mut engine = match self.try_lock()? {
            Some(engine) => engine,
            None => {
                let engine = self.lock_contended()?;
                now = self.now();
                engine
            }
        };
        now = engine.advance(now);
        engine.heed_faults();
        if in_order && engine.has_deferred() {
            engine.send_deferred(now);
        }
        let result = f(&mut engine.nic, now);
        let coalesce_ns = engine.coalesce_ns(coalesce_ns);
        if !engine.defer(now, coalesce_ns) {
            engine.run_tasks(now);
            if engine.transmit(now) > 0 && coalesce_ns > 0 {
                now = self.now();
                engine.transmitted(now);
            }
            engine.dispatch();
        }
        self.leave(&engine);
        Ok((result, now))
    }

    /// Wakes the lane's thread if it would oversleep.
    #[inline]
    fn leave(&self, engine: &Engine) {
        if self.attendance.would_oversleep(|| engine.deadline()) {
            self.wake.raise();
        }
    }

    fn lock_contended(&self) -> Result<EngineGuard<'_>, LaneError> {
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let engine = self.lock();
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    fn lock(&self) -> Result<EngineGuard<'_>, LaneError> {
        self.check_alive()?;
        let engine = self.engine.lock().map_err(|_| self.poisoned())?;
        Ok(EngineGuard::new(engine, &self.wake))
    }

    fn try_lock(&self) -> Result<Option<EngineGuard<'_>>, LaneError> {
        self.check_alive()?;
        match self.engine.try_lock() {
            Ok(engine) => Ok(Some(EngineGuard::new(engine, &self.wake))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(self.poisoned()),
        }
    }

    #[inline]
    fn check_alive(&self) -> Result<(), LaneError> {
        if self.stopping.load(Ordering::Acquire) { self.check_end_reason() } else { Ok(()) }
    }

    #[cold]
    fn check_end_reason(&self) -> Result<(), LaneError> {
        match &*self.end_reason.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(LaneError::dead(reason.clone())),
            // Still shutting down: the thread itself needs the engine.
            None => Ok(()),
        }
    }

    fn poisoned(&self) -> LaneError {
        LaneError::dead("a thread panicked while it had the engine")
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    #[inline]
    fn is_contended(&self) -> bool {
        self.contenders.load(Ordering::Relaxed) != 0
    }

    /// Whether somebody polls, so that the lane's thread need not drive.
    #[inline]
    fn is_attended(&self, now: Time) -> bool {
        self.attendance.is_attended(now, nanos(self.config.takeover))
    }

    fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    fn clear_wake(&self) {
        self.wake.take();
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
