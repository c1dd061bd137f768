//! The sender's own port in place of a switch.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_device as device;
use bowline_device::multicast::Replicator;
use bowline_multicast::{Counters, Event, GroupKey, Record};
use bowline_nic::Time;
use bowline_wire::Qpn;

use super::home::Home;
use super::{ConnectGroupError, Connected, GroupMember, GroupOptions, Reserved};
use crate::{Endpoint, Error, Qp};

/// The port of a sender, which replicates and merges itself: no switch, one work request, one
/// completion, and every byte is checksummed once.
///
/// For custom set-ups; [`Group::connect`](super::Group::connect) does all of it.
pub struct GroupPort {
    qp: Qp,
    replicator: Arc<Replicator>,
    /// Unused queue pairs, whose numbers serve as member IDs.
    held: Mutex<Vec<device::Qp>>,
}

impl GroupPort {
    /// The port of this queue pair's lane.
    ///
    /// # Errors
    /// If the device has a backup, or its lane has ended.
    pub fn of(qp: &Qp) -> Result<GroupPort, Error> {
        let device = qp.device();
        if !device.backup_lanes().is_empty() {
            return Err(ConnectGroupError::Failover(device.addr()).into());
        }
        let replicator = device.replicator(qp.lane())?;
        Ok(GroupPort { qp: qp.clone(), replicator, held: Mutex::default() })
    }

    /// Creates a group to which the queue pair of endpoint `sender` sends, with whatever first PSN
    /// and MTU it will have. It and the members' then connect to the endpoints that this returns,
    /// members first.
    ///
    /// # Errors
    /// If the group cannot be created.
    pub fn connect(
        &self,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, Error> {
        let reserved = self.reserve(members.len())?;
        self.connect_reserved(&reserved, sender, members, options, None)
    }

    pub(super) fn reserve(&self, members: usize) -> Result<Reserved, Error> {
        let group = self.replicator.take_id().ok_or(ConnectGroupError::NoIds)?;
        let mut ids = Vec::with_capacity(members);
        while ids.len() < members {
            match self.qp.hold_number() {
                Ok(held) => {
                    ids.push(held.qpn());
                    self.held().push(held);
                }
                Err(error) => {
                    self.give_back(group, &ids);
                    return Err(error);
                }
            }
        }
        Ok(Reserved { group, ids })
    }

    /// As [`connect`](GroupPort::connect), with reserved IDs, which are free again if it fails.
    pub(super) fn connect_reserved(
        &self,
        reserved: &Reserved,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
        trunk: Option<IpAddr>,
    ) -> Result<Connected, Error> {
        let prepared = Home::Port(trunk).prepare(reserved, sender, members, options);
        let connected = prepared.and_then(|(table, connected)| {
            self.replicator.install_table(self.qp.device().now(), table)?;
            Ok(connected)
        });
        if connected.is_err() {
            self.release(reserved);
        }
        Ok(connected?)
    }

    /// Gives back reserved IDs.
    pub(super) fn release(&self, reserved: &Reserved) {
        self.give_back(reserved.group, &reserved.ids);
    }

    /// Ends a group. What the queue pair sends is discarded from now on.
    pub fn disconnect(&self, connected: &Connected) {
        self.replicator.remove(&connected.group);
        self.give_back(connected.group.id, &connected.ids);
    }

    fn give_back(&self, group: Qpn, ids: &[Qpn]) {
        self.replicator.give_back_id(group);
        self.held().retain(|held| {
            let is_free = ids.contains(&held.qpn());
            if is_free {
                // Nothing else refers to it.
                let _ = held.destroy();
            }
            !is_free
        });
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<device::Qp>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event of any group in this lane: a member that was evicted, a group that failed.
    pub fn poll_event(&self) -> Option<Event> {
        self.replicator.engine().poll_event()
    }

    /// Counters for all groups in this lane.
    pub fn counters(&self) -> Counters {
        *self.replicator.engine().counters()
    }

    /// What is known about the members of a group, by member ID.
    pub fn records(&self, group: &GroupKey) -> Vec<(Qpn, Record)> {
        self.replicator.engine().records(group).collect()
    }
}

impl Drop for GroupPort {
    fn drop(&mut self) {
        for held in self.held().drain(..) {
            // Nothing else refers to it.
            let _ = held.destroy();
        }
    }
}

/// A group in a lane's port, for queue pairs that a protocol has created itself. Dropping it ends
/// the group.
pub(crate) struct PortGroup {
    replicator: Arc<Replicator>,
    connected: Connected,
}

impl PortGroup {
    /// Creates a group. Members connect to their IDs, which are the numbers of unused queue pairs
    /// in the sender's lane.
    pub(crate) fn install(
        replicator: Arc<Replicator>,
        now: Time,
        sender: &Endpoint,
        members: &[GroupMember],
        ids: Vec<Qpn>,
    ) -> Result<PortGroup, ConnectGroupError> {
        let group = replicator.take_id().ok_or(ConnectGroupError::NoIds)?;
        let reserved = Reserved { group, ids };
        let prepared =
            Home::Port(None).prepare(&reserved, sender, members, &GroupOptions::default());
        let installed = prepared.and_then(|(table, connected)| {
            replicator.install_table(now, table)?;
            Ok(connected)
        });
        match installed {
            Ok(connected) => Ok(PortGroup { replicator, connected }),
            Err(error) => {
                replicator.give_back_id(group);
                Err(error)
            }
        }
    }

    /// What its ends connect to.
    pub(crate) fn connected(&self) -> &Connected {
        &self.connected
    }
}

impl Drop for PortGroup {
    fn drop(&mut self) {
        self.replicator.remove(&self.connected.group);
        self.replicator.give_back_id(self.connected.group.id);
    }
}
