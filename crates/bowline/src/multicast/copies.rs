//! Replication of unacknowledged packets: those of a scheme's messages to a group.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_device::multicast::Replicator;
use bowline_multicast::{Branch, GroupKey, InvalidTable, Leaf, Origin, Place, Region, Table};
use bowline_nic::Time;
use bowline_sdr::SdrInfo;
use bowline_wire::Qpn;

use super::{ConnectGroupError, GroupSwitch};

/// What replicates the packets.
pub(crate) enum Copier {
    /// The sender's own port.
    Port(Arc<Replicator>),
    /// A switch.
    Switch(Arc<GroupSwitch>),
}

impl Copier {
    fn take_id(&self) -> Option<Qpn> {
        match self {
            Copier::Port(replicator) => replicator.take_id(),
            Copier::Switch(switch) => switch.take_id(),
        }
    }

    fn install(&self, now: Time, table: Table) -> Result<(), InvalidTable> {
        match self {
            Copier::Port(replicator) => replicator.install_table(now, table),
            // It has a clock of its own.
            Copier::Switch(switch) => switch.install_table(table),
        }
    }

    fn remove(&self, key: &GroupKey) {
        match self {
            Copier::Port(replicator) => {
                replicator.remove(key);
                replicator.give_back_id(key.id);
            }
            Copier::Switch(switch) => switch.remove_table(key),
        }
    }

    /// The source address of the copies, if it is not the sender's.
    pub(crate) fn origin(&self) -> Option<Origin> {
        match self {
            Copier::Port(_) => None,
            Copier::Switch(switch) => Some(switch.origin()),
        }
    }
}

/// The tables that replicate the packets of one reliable queue pair, one for each of its sending
/// QPs. Dropping them ends the group.
pub(crate) struct Copies {
    copier: Copier,
    tables: Vec<Table>,
}

impl Copies {
    /// Replicates a sender's packets for members at these addresses.
    pub(crate) fn install(
        now: Time,
        copier: Copier,
        sender: IpAddr,
        members: &[(IpAddr, &SdrInfo)],
    ) -> Result<Copies, ConnectGroupError> {
        let Some((_, first)) = members.first() else { return Err(ConnectGroupError::NoMembers) };
        let mut copies = Copies { copier, tables: Vec::with_capacity(first.data().len()) };
        for index in 0..first.data().len() {
            let id = copies.copier.take_id().ok_or(ConnectGroupError::NoIds)?;
            let table = table(copies.copier.origin(), GroupKey { sender, id }, members, index);
            // From now on it is removed with the others, whatever happens.
            copies.tables.push(table.clone());
            copies.copier.install(now, table)?;
        }
        Ok(copies)
    }

    /// The address that packets go to and come from, if it is neither the members' nor the
    /// sender's.
    pub(crate) fn origin(&self) -> Option<IpAddr> {
        self.copier.origin().map(|origin| origin.addr)
    }

    /// The QPNs that the sender's QPs are connected to.
    pub(crate) fn qpns(&self) -> Vec<Qpn> {
        self.tables.iter().map(|table| table.key.id).collect()
    }

    /// Stops replicating for the member at this position among the remaining ones.
    pub(crate) fn leave_out(&mut self, now: Time, place: usize) -> Result<(), ConnectGroupError> {
        for table in &mut self.tables {
            table.epoch += 1;
            table.branches.remove(place);
            self.copier.install(now, table.clone())?;
        }
        Ok(())
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.tables.iter().for_each(|table| self.copier.remove(&table.key));
    }
}

/// The table for the sender's QP with this index. Each member has another QPN and another key for
/// the generation of that QP; the sender addresses memory by the first member's.
fn table(
    src: Option<Origin>,
    key: GroupKey,
    members: &[(IpAddr, &SdrInfo)],
    index: usize,
) -> Table {
    let place = |info: &SdrInfo| {
        let rkey = info.roots().get(index / info.channels().max(1)).copied();
        Place { va: 0, rkey: rkey.unwrap_or_default() }
    };
    let branch = |(addr, info): &(IpAddr, &SdrInfo)| {
        let qpn = info.data().get(index).copied().unwrap_or(Qpn::new(0));
        Branch { dst: *addr, src, leaf: Some(Leaf { qpn, places: vec![place(info)] }) }
    };
    let first = members[0].1;
    let region = Region { va: 0, len: first.root_len(), rkey: place(first).rkey };
    let branches = members.iter().map(branch).collect();
    Table { key, epoch: 1, branches, regions: vec![region], root: None }
}
