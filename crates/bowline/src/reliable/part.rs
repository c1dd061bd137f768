//! What runs of a reliable queue pair in one lane.

use std::sync::{Arc, Mutex};

use bowline_io::{EventChannel, Lane, Task, TaskId};
use bowline_nic::{Nic, Time};
use bowline_sdr::{Join, ReliableConfig, ReliableEvent, ReliableQp as Engine, SdrError};

use super::lock;
use crate::Error;
use crate::pd::PdInner;

/// Where the parts of a queue pair say what became of their shares of messages.
pub(super) struct Outcomes {
    join: Mutex<Join>,
    pub(super) events: EventChannel<ReliableEvent>,
}

impl Outcomes {
    pub(super) fn new(parts: u32, events: EventChannel<ReliableEvent>) -> Outcomes {
        Outcomes { join: Mutex::new(Join::new(parts)), events }
    }

    fn add(&self, event: ReliableEvent) {
        if let Some(event) = lock(&self.join).take(event) {
            self.events.push(event);
        }
    }
}

/// The share of a queue pair that one lane carries.
pub(super) struct Part {
    pd: Arc<PdInner>,
    lane: usize,
    running: Arc<Mutex<Running>>,
    task: TaskId,
}

/// The lane's task.
struct Running {
    /// Taken when the queue pair is dropped.
    engine: Option<Engine>,
    outcomes: Arc<Outcomes>,
}

impl Task for Running {
    fn run(&mut self, nic: &mut Nic, now: Time) {
        if let Some(engine) = &mut self.engine {
            engine.drive(nic, now);
            while let Some(event) = engine.poll_event() {
                self.outcomes.add(event);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.engine.as_ref()?.poll_timeout()
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.engine.as_ref()?.path().smoothed_rtt_ns
    }
}

impl Part {
    /// Starts it in a lane, or in that which has least to do; for a group if there are `members`.
    pub(super) fn start(
        pd: &Arc<PdInner>,
        hint: Option<usize>,
        config: &ReliableConfig,
        members: usize,
        outcomes: &Arc<Outcomes>,
    ) -> Result<Part, Error> {
        let index = pd.device().take_lane(hint, "a reliable queue pair")?;
        let started = Part::start_in(pd, index, config, members, outcomes);
        let (running, task) = started.inspect_err(|_| pd.device().release_lane(index))?;
        Ok(Part { pd: Arc::clone(pd), lane: index, running, task })
    }

    fn start_in(
        pd: &PdInner,
        index: usize,
        config: &ReliableConfig,
        members: usize,
        outcomes: &Arc<Outcomes>,
    ) -> Result<(Arc<Mutex<Running>>, TaskId), Error> {
        let pd_id = pd.core.id_on(index)?;
        let lane = pd.device().lane(index);
        let engine = lane.with(|nic, _| match members {
            0 => Engine::new(nic, pd_id, config),
            _ => Engine::for_group(nic, pd_id, config, members),
        })??;
        let running = Running { engine: Some(engine), outcomes: Arc::clone(outcomes) };
        let running = Arc::new(Mutex::new(running));
        let task = lane.add_task(running.clone())?;
        Ok((running, task))
    }

    pub(super) fn lane_index(&self) -> usize {
        self.lane
    }

    pub(super) fn lane(&self) -> &Lane {
        self.pd.device().lane(self.lane)
    }

    /// Runs `f` on the engine, in the lane.
    pub(super) fn with<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut Nic, Time) -> Result<R, SdrError>,
    ) -> Result<R, Error> {
        Ok(self.lane().with(|nic, now| self.run(f, nic, now))??)
    }

    /// The same for posting messages one by one: those that are posted at once leave together.
    pub(super) fn post<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut Nic, Time) -> Result<R, SdrError>,
    ) -> Result<R, Error> {
        Ok(self.lane().post(|nic, now| self.run(f, nic, now))??)
    }

    fn run<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut Nic, Time) -> Result<R, SdrError>,
        nic: &mut Nic,
        now: Time,
    ) -> Result<R, SdrError> {
        match &mut lock(&self.running).engine {
            Some(engine) => f(engine, nic, now),
            None => Err(SdrError::NotConnected),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let lane = self.lane();
        // A device that has ended has nothing to remove.
        let _ = lane.remove_task(self.task);
        let _ = lane.with(|nic, _| {
            if let Some(engine) = lock(&self.running).engine.take() {
                engine.destroy(nic);
            }
        });
        self.pd.device().release_lane(self.lane);
    }
}
