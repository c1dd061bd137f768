//! Groups whose members are reached over set-up connections.

use std::sync::Arc;

use bowline_multicast::{Event, Record};
use bowline_wire::Qpn;

use super::{ConnectGroupError, Connected, GroupMember, GroupOptions, GroupPort, GroupSwitch};
use crate::{Channel, Error, Qp, RemoteMr};

/// A queue pair that is connected to many. It ends when it is dropped: what the queue pair sends
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
    /// Connects a queue pair to one of each member's, and lets its own port copy and merge. Members
    /// connect as to any queue pair, by [`Channel::connect`], and offer the same number of regions.
    /// They are told of the sender's `regions`, as between any two programs, although a group has
    /// one direction.
    ///
    /// # Errors
    /// If a member cannot be reached, or the group cannot be.
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

    /// As [`Group::connect`], but lets a switch copy and merge.
    ///
    /// # Errors
    /// If a member cannot be reached, or the group cannot be.
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

    /// Tells everybody whom to connect to, and waits until they have.
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

    /// Memory of all members, as the sender names it: of each region as much as the shortest
    /// member's has.
    pub fn regions(&self) -> &[RemoteMr] {
        &self.connected.regions
    }

    /// The ID of each member, by which events and records name it.
    pub fn ids(&self) -> &[Qpn] {
        &self.connected.ids
    }

    /// The next event of whatever copies and merges: a member that was evicted, a group that
    /// failed. It may be about another group of the same port or switch.
    pub fn poll_event(&self) -> Option<Event> {
        match &self.home {
            Home::Port(port) => port.poll_event(),
            Home::Switch(switch) => switch.poll_event(),
        }
    }

    /// What is known of its members, by ID.
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

/// What all members offer. They speak first, so that all of them can be told the MTU of the
/// smallest.
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
