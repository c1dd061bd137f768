//! Reliable multicast inside a port: the sender's own port copies what it sends to a group, and
//! merges the members' responses (`docs/multicast.md`).

mod forwarding;
mod outgoing;
mod port;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_io::{Lane, LaneError};
use bowline_multicast::plan::IdPool;
use bowline_multicast::{GroupKey, InvalidTable, Switch, SwitchLimits, Table};
use bowline_nic::Time;
use bowline_wire::Qpn;

pub use outgoing::{Copier, Handle, Outgoing, Train};
use port::ReplicatingPort;

use crate::{Device, DeviceError};

/// Copies packets and merges responses for the groups whose senders are on one lane.
#[derive(Debug)]
pub struct Replicator {
    engine: Mutex<Switch>,
    /// Number of groups. If there are none, the port has nothing to do.
    groups: AtomicUsize,
    ids: Mutex<IdPool>,
}

impl Replicator {
    /// Wraps the port of a lane in a replicator.
    fn install(lane: &Lane) -> Result<Arc<Replicator>, LaneError> {
        let engine = Mutex::new(Switch::new(SwitchLimits::default()));
        let replicator =
            Arc::new(Replicator { engine, groups: AtomicUsize::new(0), ids: Mutex::default() });
        let shared = Arc::clone(&replicator);
        lane.wrap_port(|port| Box::new(ReplicatingPort::new(port, shared)))?;
        Ok(replicator)
    }

    /// The engine, for everything except tables.
    pub fn engine(&self) -> MutexGuard<'_, Switch> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a table: see [`Switch::install`].
    ///
    /// # Errors
    /// Why the table is rejected.
    pub fn install_table(&self, now: Time, table: Table) -> Result<(), InvalidTable> {
        let mut engine = self.engine();
        engine.install(now, table)?;
        self.groups.store(engine.len(), Ordering::Release);
        Ok(())
    }

    /// Removes a group.
    pub fn remove(&self, group: &GroupKey) {
        let mut engine = self.engine();
        engine.remove(group);
        self.groups.store(engine.len(), Ordering::Release);
    }

    /// An unused group ID; `None` if all are in use.
    pub fn take_id(&self) -> Option<Qpn> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Gives a group ID back for reuse.
    pub fn give_back_id(&self, id: Qpn) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).give_back(id);
    }

    fn is_idle(&self) -> bool {
        self.groups.load(Ordering::Acquire) == 0
    }
}

impl Device {
    /// The replicator for groups whose senders are on a lane.
    ///
    /// # Errors
    /// If the lane has ended, or the device is a verbs device.
    pub fn replicator(&self, lane: usize) -> Result<Arc<Replicator>, DeviceError> {
        self.needs_soft_nic("multicast in the port")?;
        let mut replicators = self.replicators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(replicator) = replicators.get(&lane) {
            return Ok(Arc::clone(replicator));
        }
        let replicator = Replicator::install(self.lane(lane))?;
        replicators.insert(lane, Arc::clone(&replicator));
        Ok(replicator)
    }
}
