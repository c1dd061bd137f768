//! Reliable multicast inside a port: the sender's own port copies what it sends to a group, and
//! merges the members' responses (`docs/multicast.md`). Or IP multicast makes the copies, and the
//! ports of the members rewrite them.

mod forwarding;
mod member;
#[cfg(test)]
mod member_tests;
mod outgoing;
mod port;
mod probe;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_io::{Lane, LaneError, Multicasts};
use bowline_multicast::plan::IdPool;
use bowline_multicast::{GroupKey, InvalidTable, Switch, SwitchLimits, Table};
use bowline_nic::Time;
use bowline_wire::{FlowKey, Qpn};

pub use member::Membership;
pub(crate) use member::Memberships;
pub use outgoing::{Copier, Handle, Outgoing, Train};
use port::ReplicatingPort;
pub use probe::Nonce;

use crate::{Device, DeviceError};

/// Copies packets and merges responses for the groups whose senders are on one lane.
#[derive(Debug)]
pub struct Replicator {
    engine: Mutex<Switch>,
    /// Number of groups. If there are none, the port has nothing to do.
    groups: AtomicUsize,
    ids: Mutex<IdPool>,
    /// Whether there are probes.
    has_probes: AtomicBool,
    /// Probes of multicast addresses, to be sent once each.
    probes: Mutex<Vec<(FlowKey, Vec<u8>)>>,
}

impl Replicator {
    fn new() -> Replicator {
        Replicator {
            engine: Mutex::new(Switch::new(SwitchLimits::default())),
            groups: AtomicUsize::new(0),
            ids: Mutex::default(),
            has_probes: AtomicBool::new(false),
            probes: Mutex::default(),
        }
    }

    /// Wraps the port of a lane in a replicator.
    fn install(lane: &Lane) -> Result<Arc<Replicator>, LaneError> {
        let replicator = Arc::new(Replicator::new());
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

    /// Sends a probe with the next packets ([`Lane::with`] sends them at once).
    fn push_probe(&self, flow: FlowKey, probe: Vec<u8>) {
        self.probes.lock().unwrap_or_else(PoisonError::into_inner).push((flow, probe));
        self.has_probes.store(true, Ordering::Release);
    }

    /// The probes that are to be sent.
    fn take_probes(&self) -> Vec<(FlowKey, Vec<u8>)> {
        if !self.has_probes.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.probes.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Sends a packet of a group's largest size to a multicast address, from the port of a lane.
    /// Members that have joined recognize it by `nonce`.
    ///
    /// # Errors
    /// If the lane has ended, or the device is a verbs device.
    pub fn probe_multicast(
        &self,
        lane: usize,
        (group, id): (IpAddr, Qpn),
        nonce: &Nonce,
        mtu_bytes: u32,
    ) -> Result<(), DeviceError> {
        let replicator = self.replicator(lane)?;
        let caps = self.lane(lane).port_caps();
        let (src, port) = (caps.addr, caps.udp_port);
        let flow = FlowKey { src, dst: group, src_port: port, dst_port: port };
        replicator.push_probe(flow, probe::probe(&flow, id, nonce, mtu_bytes));
        Ok(self.lane(lane).with(|_, _| ())?)
    }

    /// The multicast addresses of a lane's port; `None` if it has no UDP sockets.
    pub fn multicasts(&self, lane: usize) -> Option<&Arc<Multicasts>> {
        self.lanes().get(lane)?.multicasts()
    }
}
