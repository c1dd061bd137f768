//! The part of a reliable queue pair that runs in one lane.

use std::sync::{Arc, Mutex};

use bowline_device::Host;
use bowline_io::{EventChannel, Task, TaskId};
use bowline_nic::{Rnic, Time};
use bowline_sdr::{Join, ReliableConfig, ReliableEvent, ReliableQp as Engine, SdrError, Transport};

use super::lock;
use crate::Error;
use crate::pd::PdInner;

/// Where the parts of a queue pair report the outcome of their shares of messages.
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
    host: Host,
    running: Arc<Mutex<Running>>,
    task: TaskId,
    // Held so that the domain outlives the queue pair.
    pd: Arc<PdInner>,
}

/// The lane's task.
struct Running {
    /// Taken when the queue pair is dropped.
    engine: Option<Engine>,
    outcomes: Arc<Outcomes>,
}

impl Task for Running {
    fn run(&mut self, nic: &mut dyn Rnic, now: Time) {
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
    /// Starts it in the given lane, or in the least busy one; for a group if there are `members`.
    pub(super) fn start(
        pd: &Arc<PdInner>,
        hint: Option<usize>,
        config: &ReliableConfig,
        members: usize,
        outcomes: &Arc<Outcomes>,
    ) -> Result<Part, Error> {
        let host = pd.device().host(hint)?;
        let pd_id = host.pd(&pd.core)?;
        let engine = host.with(|nic, _| {
            let sdr = config.sdr.on(nic);
            let config = ReliableConfig { sdr, ..config.clone() };
            match members {
                0 => Engine::new(nic, pd_id, &config),
                _ => Engine::for_group(nic, pd_id, &config, members),
            }
        })??;
        let running = Running { engine: Some(engine), outcomes: Arc::clone(outcomes) };
        let running = Arc::new(Mutex::new(running));
        let task = host.add_task(running.clone())?;
        Ok(Part { host, running, task, pd: Arc::clone(pd) })
    }

    /// Restarts over another transport, before it is connected.
    pub(super) fn change_transport(&self, transport: Transport) -> Result<(), Error> {
        let pd_id = self.host.pd(&self.pd.core)?;
        let changed = self.host.with(|nic, _| {
            let mut running = lock(&self.running);
            let mut config = match &running.engine {
                Some(engine) => engine.config().clone(),
                None => return Err(SdrError::NotConnected),
            };
            config.sdr.transport = transport;
            let old = running.engine.replace(Engine::new(nic, pd_id, &config)?);
            old.into_iter().for_each(|old| old.destroy(nic));
            Ok(())
        })?;
        Ok(changed?)
    }

    /// Where it runs.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// Runs `f` on the engine, in the lane.
    pub(super) fn with<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut dyn Rnic, Time) -> Result<R, SdrError>,
    ) -> Result<R, Error> {
        Ok(self.host.with(|nic, now| self.run(f, nic, now))??)
    }

    /// The same for posting messages one by one: those posted together leave together.
    pub(super) fn post<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut dyn Rnic, Time) -> Result<R, SdrError>,
    ) -> Result<R, Error> {
        Ok(self.host.post(|nic, now| self.run(f, nic, now))??)
    }

    fn run<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut dyn Rnic, Time) -> Result<R, SdrError>,
        nic: &mut dyn Rnic,
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
        // A device that has ended has nothing to remove.
        let _ = self.host.remove_task(self.task);
        let _ = self.host.with(|nic, _| {
            if let Some(engine) = lock(&self.running).engine.take() {
                engine.destroy(nic);
            }
        });
    }
}
