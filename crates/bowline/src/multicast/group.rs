//! Groups whose members are connected over set-up channels.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_multicast::{Event, Record};
use bowline_wire::Qpn;

use super::trunk::Trunk;
use super::{
    ConnectGroupError, Connected, GroupMember, GroupOptions, GroupPort, GroupSwitch, Multicast,
};
use crate::{Channel, Error, Qp, RemoteMr};

/// A queue pair that is connected to many. Dropping it ends the group: what the queue pair sends
/// then reaches nobody.
pub struct Group {
    connected: Connected,
    home: Home,
    trunk: Option<Trunk>,
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
        let reserved = port.reserve(offers.len())?;
        let trunk = trunk(qp, reserved.group, &offers, members, options.multicast);
        let trunk = trunk.inspect_err(|_| port.release(&reserved))?;
        let group = trunk.as_ref().map(Trunk::group);
        let connected =
            port.connect_reserved(&reserved, &qp.endpoint(), &offers, options, group)?;
        Group { connected, home: Home::Port(port), trunk }.tell(qp, regions, members, options)
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
        let home = Home::Switch(Arc::clone(switch));
        Group { connected, home, trunk: None }.tell(qp, regions, members, options)
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

    /// The multicast address that carries its packets, if there is one.
    pub fn multicast(&self) -> Option<IpAddr> {
        self.trunk.as_ref().map(Trunk::group)
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

/// A multicast address, if the group is to have one.
fn trunk(
    qp: &Qp,
    id: Qpn,
    offers: &[GroupMember],
    members: &mut [Channel],
    multicast: Multicast,
) -> Result<Option<Trunk>, Error> {
    if multicast == Multicast::Never {
        return Ok(None);
    }
    match Trunk::set_up(qp, id, offers, members)? {
        Ok(trunk) => {
            let group = trunk.group();
            tracing::info!(target: "bowline::multicast", "packets to all members go to {group}");
            Ok(Some(trunk))
        }
        Err(why) if multicast == Multicast::Always => Err(ConnectGroupError::Multicast(why).into()),
        Err(why) => {
            tracing::info!(
                target: "bowline::multicast",
                "no IP multicast, so the sender's port makes the copies: {why}"
            );
            Ok(None)
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
