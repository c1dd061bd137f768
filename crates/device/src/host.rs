//! Runs protocols that have their own queue pairs.

use std::sync::{Arc, Mutex};

use bowline_io::{LaneError, Task, TaskId};
use bowline_nic::{PdId, Rnic, Time};

use crate::backend::Backend;
use crate::driver::Driver;
use crate::multicast::Replicator;
use crate::{Device, DeviceError, Pd};

/// Where a protocol runs: in a lane, or on a verbs device with its driver.
///
/// The methods are those of [`Lane`](bowline_io::Lane). Closures run under a lock, so they must not
/// call the host again.
pub struct Host {
    device: Arc<Device>,
    place: Backend<usize, Arc<Driver>>,
}

impl Device {
    /// A host for a protocol: on the given lane, modulo the number of lanes, or on the least loaded
    /// one.
    pub fn host(self: &Arc<Device>, lane: Option<usize>) -> Result<Host, DeviceError> {
        let place = match &self.verbs {
            None => Backend::Soft(self.placement.take(lane)),
            Some(verbs) => Backend::Verbs(verbs.driver(&self.config)?),
        };
        Ok(Host { device: Arc::clone(self), place })
    }
}

impl Host {
    /// The NIC's identifier of a protection domain.
    pub fn pd(&self, pd: &Pd) -> Result<PdId, DeviceError> {
        match (&self.place, &pd.back) {
            (Backend::Verbs(driver), Backend::Verbs(pd)) => {
                Ok(driver.with(|nic, _| nic.admit(pd))?)
            }
            (Backend::Soft(lane), _) => pd.id_on(*lane),
            _ => Err(DeviceError::Foreign { what: "the protection domain" }),
        }
    }

    /// The replicator for groups whose senders run there.
    ///
    /// # Errors
    /// See [`Device::replicator`].
    pub fn replicator(&self) -> Result<Arc<Replicator>, DeviceError> {
        let lane = if let Backend::Soft(lane) = &self.place { *lane } else { 0 };
        self.device.replicator(lane)
    }

    /// Runs `f` on the NIC. Packets that have become ready leave. See
    /// [`Lane::with`](bowline_io::Lane::with).
    pub fn with<R>(&self, f: impl FnOnce(&mut dyn Rnic, Time) -> R) -> Result<R, LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).with(|nic, now| f(nic, now)),
            Backend::Verbs(driver) => driver.with(|nic, now| f(nic, now)),
        }
    }

    /// The same for posting: see [`Lane::post`](bowline_io::Lane::post).
    pub fn post<R>(&self, f: impl FnOnce(&mut dyn Rnic, Time) -> R) -> Result<R, LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).post(|nic, now| f(nic, now)),
            Backend::Verbs(driver) => driver.with(|nic, now| f(nic, now)),
        }
    }

    /// Drives the NIC: see [`Lane::poll`](bowline_io::Lane::poll).
    pub fn poll(&self) -> Result<(), LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).poll(|_, _| ()),
            Backend::Verbs(driver) => driver.poll(),
        }
    }

    /// Fails if the lane or driver has ended.
    pub fn check(&self) -> Result<(), LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).collect(|_, _| ()),
            Backend::Verbs(driver) => driver.check(),
        }
    }

    /// The caller has polled until now, and is about to sleep.
    pub fn stop_polling(&self) {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).stop_polling(),
            Backend::Verbs(driver) => driver.stop_polling(),
        }
    }

    /// Starts to run a task: see [`Lane::add_task`](bowline_io::Lane::add_task).
    pub fn add_task(&self, task: Arc<Mutex<dyn Task>>) -> Result<TaskId, LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).add_task(task),
            Backend::Verbs(driver) => driver.add_task(task),
        }
    }

    /// Stops running a task.
    pub fn remove_task(&self, task: TaskId) -> Result<(), LaneError> {
        match &self.place {
            Backend::Soft(lane) => self.device.lane(*lane).remove_task(task),
            Backend::Verbs(driver) => driver.remove_task(task),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Backend::Soft(lane) = self.place {
            self.device.release_lane(lane);
        }
    }
}
