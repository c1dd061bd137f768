//! The tables of a group, whichever device replicates it.

use std::net::IpAddr;

use bowline_multicast::{
    Branch, GroupKey, Leaf, MemberConfig, Origin, Place, Region, RootConfig, Table,
};
use bowline_nic::{Mtu, QpType};

use super::{ConnectGroupError, Connected, GroupMember, GroupOptions, Reserved};
use crate::endpoint::{Endpoint, RemoteMr};

/// Whom the ends of a group take for their peer.
pub(super) enum Home {
    /// A switch with an address of its own, and the largest MTU that it carries.
    Switch(Origin, Mtu),
    /// The sender's own port: the sender takes the first member for its peer, and members the
    /// sender. Packets that all members lack go to the multicast address, if there is one.
    Port(Option<IpAddr>),
}

impl Home {
    /// The group's table, and what its ends connect to.
    pub(super) fn prepare(
        &self,
        reserved: &Reserved,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<(Table, Connected), ConnectGroupError> {
        let first = members.first().ok_or(ConnectGroupError::NoMembers)?;
        let (at_sender, at_members, udp_port) = match self {
            Home::Switch(origin, _) => (origin.addr, origin.addr, origin.port),
            Home::Port(_) => (first.endpoint.addr, sender.addr, sender.udp_port),
        };
        for end in members.iter().map(|member| &member.endpoint).chain([sender]) {
            if end.qp_type != QpType::Rc {
                return Err(ConnectGroupError::NotRc(end.qp_type));
            }
            if end.udp_port != udp_port {
                return Err(ConnectGroupError::Port { addr: end.addr, port: end.udp_port });
            }
        }
        let regions = shared_regions(members)?;
        let ends = members.iter().fold(sender.mtu, |mtu, member| mtu.min(member.endpoint.mtu));
        let mtu = match self {
            Home::Switch(_, own) => ends.min(*own),
            Home::Port(_) => ends,
        };
        let peer =
            |addr: IpAddr, qpn| Endpoint { addr, udp_port, qpn, mtu, rd_atomic: 0, ..*sender };
        let connected = Connected {
            group: GroupKey { sender: sender.addr, id: reserved.group },
            for_sender: peer(at_sender, reserved.group),
            regions,
            for_members: reserved.ids.iter().map(|id| peer(at_members, *id)).collect(),
            ids: reserved.ids.clone(),
        };
        let table = self.table(&connected, (sender, members), mtu, options);
        Ok((table, connected))
    }

    fn table(
        &self,
        connected: &Connected,
        (sender, members): (&Endpoint, &[GroupMember]),
        mtu: Mtu,
        options: &GroupOptions,
    ) -> Table {
        let (src, answers_to) = match self {
            Home::Switch(origin, _) => (Some(*origin), origin.addr),
            Home::Port(_) => (None, sender.addr),
        };
        let branch = |member: &GroupMember| {
            let place = |region: &RemoteMr| Place { va: region.addr, rkey: region.rkey };
            let places = member.regions.iter().map(place).collect();
            let leaf = Some(Leaf { qpn: member.endpoint.qpn, places });
            Branch { dst: member.endpoint.addr, src, leaf }
        };
        let configs = members.iter().zip(&connected.ids).enumerate();
        let configs = configs.map(|(branch, (member, id))| MemberConfig {
            addr: member.endpoint.addr,
            id: *id,
            branch,
        });
        // Without a leaf: the members' own ports make the last rewrite.
        let trunk = match self {
            Home::Port(Some(group)) => Some(Branch { dst: *group, src: None, leaf: None }),
            _ => None,
        };
        let peer = Origin { addr: connected.for_sender.addr, port: connected.for_sender.udp_port };
        let root = RootConfig {
            sender_port: sender.udp_port,
            members: configs.collect(),
            mtu: mtu.bytes(),
            policy: options.policy,
            in_port: matches!(self, Home::Port(_)),
            trunk: trunk.as_ref().map(|_| members.len()),
            ..RootConfig::new(sender.qpn, peer, answers_to, Some(sender.psn))
        };
        let root = if options.as_in_the_paper { root.as_in_the_paper() } else { root };
        let region = |r: &RemoteMr| Region { va: r.addr, len: r.len, rkey: r.rkey };
        Table {
            key: connected.group,
            epoch: 1,
            branches: members.iter().map(branch).chain(trunk).collect(),
            regions: connected.regions.iter().map(region).collect(),
            root: Some(root),
        }
    }
}

/// The regions as the sender addresses them: the first member's, as long as the shortest.
pub(super) fn shared_regions(members: &[GroupMember]) -> Result<Vec<RemoteMr>, ConnectGroupError> {
    let first = members.first().ok_or(ConnectGroupError::NoMembers)?;
    let mut regions = first.regions.clone();
    for (member, offered) in members.iter().enumerate() {
        if offered.regions.len() != regions.len() {
            return Err(ConnectGroupError::Regions {
                member,
                offered: offered.regions.len(),
                expected: regions.len(),
            });
        }
        for (region, theirs) in regions.iter_mut().zip(&offered.regions) {
            region.len = region.len.min(theirs.len);
        }
    }
    Ok(regions)
}
