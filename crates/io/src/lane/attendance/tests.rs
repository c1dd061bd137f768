//! Loom tests over all thread interleavings: nobody oversleeps, and nobody waits for a poller that
//! has left.

use loom::sync::atomic::{AtomicBool, AtomicU64 as LoomWord, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

const TAKEOVER_NS: u64 = 100;
const EARLY: Time = Time::from_nanos(10);
const LATE: Time = Time::from_nanos(1_000);

/// What the lane's threads share, with a flag in place of the event descriptor.
struct Lane {
    attendance: Attendance<LoomWord>,
    /// The engine's deadline.
    engine: Mutex<Time>,
    flag: AtomicBool,
}

impl Lane {
    fn new() -> Arc<Lane> {
        Arc::new(Lane {
            attendance: Attendance::new(),
            engine: Mutex::new(LATE),
            flag: AtomicBool::new(false),
        })
    }

    /// Raises the event. The system call orders everything before it.
    fn raise(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Sleeps until the event is raised. If it is not, somebody must still raise it.
    fn is_raised(&self) -> bool {
        self.flag.swap(false, Ordering::AcqRel)
    }

    /// Posts work that is due early.
    fn post(&self) {
        let mut engine = self.engine.lock().unwrap();
        *engine = EARLY;
        if self.attendance.would_oversleep(|| Some(EARLY)) {
            self.raise();
        }
        drop(engine);
    }
}

/// The lane's thread falls asleep while somebody posts. Either the thread sees the post before it
/// sleeps, or the post wakes it.
#[test]
fn a_post_is_not_overslept() {
    loom::model(|| {
        let lane = Lane::new();
        let poster = {
            let lane = lane.clone();
            thread::spawn(move || lane.post())
        };
        let engine = lane.engine.lock().unwrap();
        let until = *engine;
        lane.attendance.sleep(until);
        drop(engine);
        poster.join().unwrap();
        // The thread is in the kernel now. It must have known of the post, or is woken.
        assert!(until == EARLY || lane.is_raised(), "asleep until {until}");
        lane.attendance.wake();
    });
}

/// Two posters wake it at least once.
#[test]
fn of_two_posts_one_wakes() {
    loom::model(|| {
        let lane = Lane::new();
        let engine = lane.engine.lock().unwrap();
        lane.attendance.sleep(*engine);
        drop(engine);
        let posters = [0, 1].map(|_| {
            let lane = lane.clone();
            thread::spawn(move || lane.post())
        });
        for poster in posters {
            poster.join().unwrap();
        }
        assert!(lane.is_raised());
        assert!(!lane.attendance.would_oversleep(|| Some(EARLY)), "it is awake");
    });
}

/// The thread sees a poller and is about to nap when that poller leaves for good: the thread is
/// woken and sees nobody polling.
#[test]
fn a_poller_who_leaves_is_not_waited_for() {
    loom::model(|| {
        let lane = Lane::new();
        lane.attendance.come();
        let poller = {
            let lane = lane.clone();
            thread::spawn(move || {
                lane.attendance.seen_until(EARLY);
                if lane.attendance.leave() {
                    lane.raise();
                }
            })
        };
        let naps = lane.attendance.is_attended(EARLY, TAKEOVER_NS);
        poller.join().unwrap();
        if naps {
            assert!(lane.is_raised(), "it naps, and nobody is there");
        }
        assert!(!lane.attendance.is_attended(EARLY, TAKEOVER_NS));
    });
}

/// While one thread polls, another that leaves may wake the lane's thread. It may drive for a while
/// beside the poller, but notices the next poll.
#[test]
fn who_stays_is_seen_when_another_leaves() {
    loom::model(|| {
        let lane = Lane::new();
        lane.attendance.come();
        let leaver = {
            let lane = lane.clone();
            thread::spawn(move || lane.attendance.leave())
        };
        lane.attendance.come();
        lane.attendance.seen_until(EARLY);
        leaver.join().unwrap();
        lane.attendance.come();
        assert!(lane.attendance.is_attended(LATE, TAKEOVER_NS), "it is at work");
    });
}
