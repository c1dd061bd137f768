//! The lane's thread: runs the engine when the application does not.
//!
//! It is in one of three states.
//!
//! * **Napping** while the application polls: the application's own thread runs the engine, and
//!   packets must not wake this one, since on a small machine it would take the core from the
//!   poller or from the peer. An alarm that every poll postpones ends the nap.
//! * **Driving** when nobody has polled for a while: it runs rounds, and keeps going for some
//!   microseconds after the last one that found work, because sleeping and waking up costs more
//!   than that.
//! * **Sleeping** in the kernel until a packet arrives, a deadline passes or somebody posts work
//!   with an earlier deadline.

use std::os::fd::AsRawFd;
use std::time::Duration;

use bowline_nic::Time;

use super::Shared;
use super::error::LaneError;
use super::guard::EngineGuard;
use super::spin::Spin;
use crate::sys::{PollFd, poll, run_promptly};

/// How long to sleep when another thread keeps the engine locked, at first and at most: a thread
/// that copies large messages to its peer's memory keeps it for a quarter of a millisecond each.
const NAP_NS: u64 = 50_000;
const MAX_NAP_NS: u64 = 200_000;
/// How long to sleep on a port that has no descriptor.
const BLIND_SLEEP_NS: u64 = 200_000;
/// How often to try the lock before sleeping: a few microseconds.
const LOCK_TRIES: u32 = 100;
/// How often to yield the engine to others before insisting.
const MAX_YIELDS: u32 = 8;

/// Runs the lane until it is shut down or breaks.
pub(super) fn run(shared: &Shared) -> Result<(), LaneError> {
    run_promptly();
    let mut spin = Spin::new(shared.config.spin);
    // A thread that polls often enough postpones the alarm in time.
    let watch_ns = 2 * super::nanos(shared.config.takeover);
    let mut nap_ns = watch_ns;
    let mut locked_out_ns = NAP_NS;
    while !shared.is_stopping() {
        if shared.is_attended(shared.now()) {
            // A poll may take longer than the nap.
            nap_ns = nap(shared, nap_ns);
            continue;
        }
        nap_ns = watch_ns;
        match try_lock_for_a_while(shared)? {
            Some(engine) => {
                locked_out_ns = NAP_NS;
                drive(shared, engine, &mut spin)?;
            }
            // The thread that holds the engine waits for a core, perhaps for this one, or runs
            // long.
            None => {
                nap(shared, locked_out_ns);
                locked_out_ns = MAX_NAP_NS.min(2 * locked_out_ns);
            }
        }
    }
    Ok(())
}

/// Locks the engine if it becomes free within the time that a post or an idle poll takes.
fn try_lock_for_a_while(shared: &Shared) -> Result<Option<EngineGuard<'_>>, LaneError> {
    for _ in 0..LOCK_TRIES {
        if let Some(engine) = shared.try_lock()? {
            return Ok(Some(engine));
        }
        std::hint::spin_loop();
    }
    Ok(None)
}

/// Sleeps without listening to the port, longer while somebody polls. Posts do not wake it: naps
/// are short. Returns how long the next nap may be if polling continues.
fn nap(shared: &Shared, nap_ns: u64) -> u64 {
    let alarmed = shared.alarm.set(shared.now(), nap_ns).is_ok();
    let limit = (!alarmed).then(|| Duration::from_nanos(nap_ns));
    let mut set = [shared.wake_fd(), shared.alarm.as_raw_fd()].map(PollFd::readable);
    // A failure to sleep merely shortens the nap.
    let _ = poll(&mut set, limit);
    shared.clear_wake();
    shared.alarm.clear()
}

/// Runs one round, and sleeps if there has been nothing to do for long enough.
fn drive(shared: &Shared, mut engine: EngineGuard<'_>, spin: &mut Spin) -> Result<(), LaneError> {
    let now = engine.advance(shared.now());
    let progress = engine.round(now);
    if !progress.is_idle() {
        spin.worked(now);
        drop(engine);
        let_others_in(shared);
        return Ok(());
    }
    let blocked = engine.await_write();
    let deadline = engine.deadline();
    if spin.goes_on(now) || deadline.is_some_and(|d| d <= now) {
        drop(engine);
        std::hint::spin_loop();
        return Ok(());
    }
    if !engine.port.before_sleep() {
        // Something has arrived since the round.
        drop(engine);
        return Ok(());
    }
    let (fds, blind) = engine.fds();
    let limit = if blind { Some(now.plus_nanos(BLIND_SLEEP_NS)) } else { None };
    let until = crate::port::earlier(deadline, limit).unwrap_or(Time::NEVER);
    shared.attendance.sleep(until);
    drop(engine);

    let wake = PollFd::readable(shared.wake_fd());
    let mut set = [wake; 6];
    let mut count = 1;
    for fd in fds.read.into_iter().flatten() {
        set[count] = PollFd::readable(fd);
        count += 1;
    }
    if let Some(fd) = fds.write.filter(|_| blocked) {
        set[count] = PollFd::writable(fd);
        count += 1;
    }
    let lay_down = shared.now();
    let timeout = (until != Time::NEVER).then(|| until - lay_down);
    poll(&mut set[..count], timeout)
        .map_err(|error| LaneError::dead(format!("sleeping on the port: {error}")))?;
    shared.attendance.wake();
    shared.clear_wake();
    spin.slept(lay_down, shared.now());
    Ok(())
}

/// The engine's lock is not fair: without this, a lane under load would keep posters out.
fn let_others_in(shared: &Shared) {
    for _ in 0..MAX_YIELDS {
        if !shared.is_contended() {
            return;
        }
        std::thread::yield_now();
    }
}
