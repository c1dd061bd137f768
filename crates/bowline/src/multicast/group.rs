//! Groups whose members are connected over set-up channels.

use std::sync::Arc;

use bowline_multicast::{Event, Record};
use bowline_wire::Qpn;

use super::{ConnectGroupError, Connected, GroupMember, GroupOptions, GroupPort, GroupSwitch};
use crate::{Channel, Error, Qp, RemoteMr};

/// A queue pair that is connected to many. Dropping it ends the group: what the queue pair sends
/// then reaches nobody.
pub struct Group {
    connected: Connected,
    home: Home,
}

enum Home {
    Port(GroupPort),
    Switch(Arc<GroupSwitch>),
}

impl Group {
    /// Connects a queue pair to one of each member's; its own port replicates requests and merges
    /// responses. Members connect as to any queue pair, by [`Channel::connect`], and offer the same
    /// number of regions. They are told of the sender's `regions`, as between any two programs,
    /// although a group is unidirectional.
    ///
    /// # Errors
    /// If a member cannot be reached, or the group cannot be created.
    pub fn connect(
        qp: &Qp,
        regions: &[RemoteMr],
        members: &mut [Channel],
        options: &GroupOptions,
    ) -> Result<Group, Error> {
        let port = GroupPort::of(qp)?;
        let offers = hear(members)?;
        let connected = port.connect(&qp.endpoint(), &offers, options)?;
        Group { connected, home: Home::Port(port) }.tell(qp, regions, members, options)
    }

    /// As [`Group::connect`], but a switch replicates and merges.
    ///
    /// # Errors
    /// If a member cannot be reached, or the group cannot be created.
    pub fn connect_via(
        switch: &Arc<GroupSwitch>,
        qp: &Qp,
        regions: &[RemoteMr],
        members: &mut [Channel],
        options: &GroupOptions,
    ) -> Result<Group, Error> {
        let offers = hear(members)?;
        let connected = switch.connect(&qp.endpoint(), &offers, options)?;
        Group { connected, home: Home::Switch(Arc::clone(switch)) }
            .tell(qp, regions, members, options)
    }

    /// Tells all ends whom to connect to, and waits until they have.
    fn tell(
        self,
        qp: &Qp,
        regions: &[RemoteMr],
        members: &mut [Channel],
        options: &GroupOptions,
    ) -> Result<Group, Error> {
        for (channel, endpoint) in members.iter_mut().zip(&self.connected.for_members) {
            channel.tell(endpoint, regions)?;
        }
        qp.connect_with(&self.connected.for_sender, &options.connection)?;
        for channel in members {
            channel.barrier()?;
        }
        Ok(self)
    }

    /// The members' memory, as the sender addresses it: each region as long as the shortest
    /// member's.
    pub fn regions(&self) -> &[RemoteMr] {
        &self.connected.regions
    }

    /// The ID of each member, used in events and records.
    pub fn ids(&self) -> &[Qpn] {
        &self.connected.ids
    }

    /// The next event of the port or switch: a member that was evicted, a group that failed. It may
    /// concern another group on the same port or switch.
    pub fn poll_event(&self) -> Option<Event> {
        match &self.home {
            Home::Port(port) => port.poll_event(),
            Home::Switch(switch) => switch.poll_event(),
        }
    }

    /// What is known about its members, by ID.
    pub fn records(&self) -> Vec<(Qpn, Record)> {
        match &self.home {
            Home::Port(port) => port.records(&self.connected.group),
            Home::Switch(switch) => switch.records(&self.connected.group),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        match &self.home {
            Home::Port(port) => port.disconnect(&self.connected),
            Home::Switch(switch) => switch.disconnect(&self.connected),
        }
    }
}

/// The offers of all members. They go first, so that all can be told the smallest MTU.
fn hear(members: &mut [Channel]) -> Result<Vec<GroupMember>, Error> {
    if members.iter().any(Channel::is_sealing) {
        return Err(ConnectGroupError::Sealed.into());
    }
    let hear = |channel: &mut Channel| {
        let peer = channel.hear()?;
        Ok(GroupMember { endpoint: peer.endpoint, regions: peer.regions })
    };
    members.iter_mut().map(hear).collect()
}
