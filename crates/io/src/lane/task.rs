//! Protocols that run in a lane, between the engine and the application.

use std::sync::{Arc, Mutex, PoisonError};

use bowline_nic::{Rnic, Time};

use crate::port::earlier;

/// Something that a lane runs besides its engine: it sees what happens to the engine, and posts to
/// it, before the application does. On a verbs device, a thread runs the tasks instead.
///
/// It runs often, with the engine's lock held, on whichever thread holds the lane: it must be quick
/// when there is nothing to do, and must not call the lane.
pub trait Task: Send {
    /// Handles what has happened on the NIC, and does what is due.
    fn run(&mut self, nic: &mut dyn Rnic, now: Time);

    /// When to run it next if nothing happens before.
    fn deadline(&self) -> Option<Time>;

    /// The smoothed round trip to its peer, if it measures one.
    fn round_trip_ns(&self) -> Option<u64> {
        None
    }
}

/// A task of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u64);

/// The tasks of a lane, or of a device without lanes.
#[derive(Default)]
pub struct Tasks {
    tasks: Vec<(TaskId, Arc<Mutex<dyn Task>>)>,
    next: u64,
    deadline: Option<Time>,
}

impl Tasks {
    /// Runs a task from now on.
    pub fn add(&mut self, task: Arc<Mutex<dyn Task>>) -> TaskId {
        let id = TaskId(self.next);
        self.next += 1;
        self.tasks.push((id, task));
        id
    }

    /// Stops running a task.
    pub fn remove(&mut self, id: TaskId) {
        self.tasks.retain(|(other, _)| *other != id);
        if self.tasks.is_empty() {
            self.deadline = None;
        }
    }

    /// Runs all of them.
    #[inline]
    pub fn run(&mut self, nic: &mut dyn Rnic, now: Time) {
        if self.tasks.is_empty() {
            return;
        }
        self.deadline = None;
        for (_, task) in &self.tasks {
            // A panicking task ends its lane, so nobody sees it half-done.
            let mut task = task.lock().unwrap_or_else(PoisonError::into_inner);
            task.run(nic, now);
            self.deadline = earlier(self.deadline, task.deadline());
        }
    }

    /// The round trips of those that measure one.
    pub(super) fn round_trips_ns(&self) -> impl Iterator<Item = u64> {
        self.tasks.iter().filter_map(|(_, task)| {
            task.lock().unwrap_or_else(PoisonError::into_inner).round_trip_ns()
        })
    }

    /// The earliest deadline, as of the last run.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}
