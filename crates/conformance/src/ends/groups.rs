//! Multicast groups between the queue pairs of a check.

use std::sync::Arc;

use bowline::multicast::{Connected, GroupMember, GroupOptions, GroupPort, GroupSwitch};
use bowline::{Endpoint, Psn, Qpn, RemoteMr};

use crate::{Bridge, BridgePeer, Bridged, Failure, Outcome, Region};

/// What replicates for the groups of an end and merges the members' responses.
#[derive(Clone)]
pub enum Groups {
    /// The requester's own port, which must be ours.
    Port,
    /// A switch.
    Switch(Arc<GroupSwitch>),
}

/// A group. It ends when dropped.
pub(super) enum Group {
    Port(GroupPort, Connected),
    Switch(Arc<GroupSwitch>, Connected),
}

impl Groups {
    /// Makes a group of the peers of a queue pair: `endpoint`, which is `qp` if it is ours.
    pub(super) fn bridge(
        &self,
        qp: Option<&bowline::Qp>,
        endpoint: Endpoint,
        bridge: &Bridge,
    ) -> Outcome<(Group, Bridged)> {
        let sender = Endpoint { psn: Psn::new(bridge.sq_psn), mtu: bridge.mtu, ..endpoint };
        let member = |peer: &BridgePeer| {
            let endpoint = Endpoint { addr: peer.addr, qpn: Qpn::new(peer.qpn), ..sender };
            let Region { addr, len, rkey, .. } = peer.region;
            GroupMember { endpoint, regions: vec![RemoteMr { addr, len: len as u64, rkey }] }
        };
        let members: Vec<_> = bridge.peers.iter().map(member).collect();
        let options = GroupOptions::default();
        let (group, connected) = match self {
            Groups::Port => {
                let foreign = || Failure::new("a foreign NIC's port makes no groups");
                let port = GroupPort::of(qp.ok_or_else(foreign)?)?;
                let connected = port.connect(&sender, &members, &options)?;
                (Group::Port(port, connected.clone()), connected)
            }
            Groups::Switch(switch) => {
                let connected = switch.connect(&sender, &members, &options);
                let connected = connected.map_err(bowline::Error::from)?;
                (Group::Switch(Arc::clone(switch), connected.clone()), connected)
            }
        };
        let place = |endpoint: &Endpoint| (endpoint.addr, endpoint.qpn.get());
        let requester = place(&connected.for_sender);
        let responders = connected.for_members.iter().map(place).collect();
        Ok((group, Bridged { requester, responders }))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        match self {
            Group::Port(port, connected) => port.disconnect(connected),
            Group::Switch(switch, connected) => switch.disconnect(connected),
        }
    }
}
