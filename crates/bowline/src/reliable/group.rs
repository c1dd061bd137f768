//! Messages to all members of a group: one write, and a scheme that repairs the losses of each.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_nic::AddressVector;
use bowline_sdr::{GroupPath, ReliableConfig, ReliableInfo};

use super::{ReliableQp, lock, path_control};
use crate::multicast::{ConnectGroupError, Copier, Copies, GroupSwitch};
use crate::{Channel, Error, Pd};

/// What a queue pair that writes to a group knows about it.
#[derive(Default)]
pub(super) struct Group {
    /// Members requested when the queue pair was created; 0 if it is not for a group.
    pub(super) size: usize,
    /// By number, evicted ones included. Empty before the group is connected.
    addrs: Vec<IpAddr>,
    /// Numbers of the remaining members, in order.
    live: Vec<usize>,
    copies: Option<Copies>,
}

impl Group {
    /// A group of this size that is not connected; 0 if there is none.
    pub(super) fn of(size: usize) -> Group {
        Group { size, ..Group::default() }
    }

    /// The address of a member.
    pub(super) fn addr(&self, member: usize) -> Option<IpAddr> {
        self.addrs.get(member).copied()
    }
}

impl ReliableQp {
    /// Creates a queue pair whose messages go to all `members` members of a group. A write is over
    /// when all of them have it.
    ///
    /// Members are ordinary receivers: each creates a queue pair with [`ReliableQp::new`] and the
    /// same configuration, connects with [`connect_over`](Self::connect_over) and posts receives. A
    /// message is sent when all have posted one for it. One repair can fix different losses at
    /// different members.
    ///
    /// ```
    /// use bowline::{Access, Connector, Device, Listener};
    /// use bowline::{ReliableConfig, ReliableQp, WriteOptions};
    /// use std::time::Duration;
    ///
    /// let (mut channels, mut members) = (Vec::new(), Vec::new());
    /// for addr in ["127.9.2.42", "127.9.2.43"] {
    ///     let listener = Listener::bind((addr, 0))?;
    ///     channels.push(Connector::new().connect(listener.local_addr()?)?);
    ///     members.push(std::thread::spawn(move || -> Result<_, bowline::Error> {
    ///         let pd = Device::open(addr)?.alloc_pd()?;
    ///         let mr = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    ///         let qp = ReliableQp::new(&pd, &ReliableConfig::default())?;
    ///         qp.connect_over(&mut listener.accept()?)?;
    ///         qp.recv(&mr, 0..1 << 20)?;
    ///         qp.next(Duration::from_secs(5))?;
    ///         Ok((qp, mr.to_vec(0, 11)))
    ///     }));
    /// }
    /// let pd = Device::open("127.9.2.41")?.alloc_pd()?;
    /// let mr = pd.register(1 << 20, Access::LOCAL_WRITE)?;
    /// mr.write_at(0, b"to everyone");
    /// let qp = ReliableQp::for_group(&pd, &ReliableConfig::default(), 2)?;
    /// qp.connect_group_over(&mut channels)?;
    /// qp.write(&mr, 0..1 << 20, WriteOptions { scheme: qp.scheme("ec-mds")?, imm: None })?;
    /// qp.next(Duration::from_secs(5))?;
    /// for member in members {
    ///     assert_eq!(member.join().expect("a member that runs")?.1, b"to everyone");
    /// }
    /// # Ok::<(), bowline::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the parameters are inconsistent, or the device has no soft NIC.
    pub fn for_group(
        pd: &Pd,
        config: &ReliableConfig,
        members: usize,
    ) -> Result<ReliableQp, Error> {
        if members == 0 {
            return Err(ConnectGroupError::NoMembers.into());
        }
        ReliableQp::start(pd, config, 1, members, |_| None)
    }

    /// Connects to the members at the other ends of these channels, in their order; this end's own
    /// port replicates what is sent. When it returns, all ends are ready.
    ///
    /// # Errors
    /// If a member cannot be reached, or the group cannot be created. Groups are not sealed:
    /// channels that [seal](Channel::seal) are refused.
    pub fn connect_group_over(&self, channels: &mut [Channel]) -> Result<(), Error> {
        self.join_group_over(channels)?;
        channels.iter_mut().try_for_each(Channel::barrier)
    }

    /// Like [`connect_group_over`](Self::connect_group_over), but does not wait until the members
    /// are ready: see [`join_over`](Self::join_over), which they call.
    ///
    /// # Errors
    /// As with [`connect_group_over`](Self::connect_group_over).
    pub fn join_group_over(&self, channels: &mut [Channel]) -> Result<(), Error> {
        let device = self.pd.device();
        if !device.backup_lanes().is_empty() {
            return Err(ConnectGroupError::Failover(device.addr()).into());
        }
        let copier = Copier::Port(self.first().host().replicator()?);
        self.connect_members(channels, copier)
    }

    /// As [`connect_group_over`](Self::connect_group_over), but a switch replicates: packets cross
    /// this end's link once.
    ///
    /// # Errors
    /// As with [`connect_group_over`](Self::connect_group_over).
    pub fn connect_group_via(
        &self,
        switch: &Arc<GroupSwitch>,
        channels: &mut [Channel],
    ) -> Result<(), Error> {
        self.connect_members(channels, Copier::Switch(Arc::clone(switch)))?;
        channels.iter_mut().try_for_each(Channel::barrier)
    }

    fn connect_members(&self, channels: &mut [Channel], copier: Copier) -> Result<(), Error> {
        if channels.iter().any(Channel::is_sealing) {
            return Err(ConnectGroupError::Sealed.into());
        }
        let mut group = lock(&self.group);
        if channels.len() != group.size {
            let why = format!("{} channels to a group of {}", channels.len(), group.size);
            return Err(Error::Invalid { what: "channels", why });
        }
        let members = self.hear_members(channels, &copier)?;
        let device = self.pd.device();
        let infos: Vec<_> = members.iter().map(|(addr, info)| (*addr, &info.parts()[0])).collect();
        let copies = Copies::install(device.now(), copier, device.addr(), &infos)?;
        self.connect_engine(&members, &copies)?;
        group.addrs = members.iter().map(|(addr, _)| *addr).collect();
        group.live = (0..members.len()).collect();
        group.copies = Some(copies);
        Ok(())
    }

    /// Tells every member whom to connect to, and receives its address.
    fn hear_members(
        &self,
        channels: &mut [Channel],
        copier: &Copier,
    ) -> Result<Vec<(IpAddr, ReliableInfo)>, Error> {
        let addr = self.pd.device().addr();
        let ours = match copier.origin() {
            None => addr.to_string(),
            Some(origin) => format!("{addr} {}", origin.addr),
        };
        for (member, channel) in channels.iter_mut().enumerate() {
            let info = self.first().with(|engine, _, _| Ok(engine.info_for(member)))?;
            channel.send(ours.as_bytes())?;
            channel.send(&info.to_bytes())?;
        }
        let ours = self.first().with(|engine, _, _| Ok(engine.info_for(0)))?;
        let hear = |channel: &mut Channel| {
            let (addr, _) = super::hear_addr(channel)?;
            let info = ReliableInfo::from_bytes(&channel.recv()?)?;
            // Checked here because tables are built from it before the engine sees it.
            if info.parts().len() != 1
                || info.parts()[0].data().len() != ours.parts()[0].data().len()
            {
                let why =
                    format!("{addr} has another number of lanes or queue pairs than this end");
                return Err(Error::Invalid { what: "member", why });
            }
            Ok((addr, info))
        };
        channels.iter_mut().map(hear).collect()
    }

    fn connect_engine(
        &self,
        members: &[(IpAddr, ReliableInfo)],
        copies: &Copies,
    ) -> Result<(), Error> {
        let device = self.pd.device();
        let addrs = members.iter().map(|(addr, _)| *addr);
        let control = addrs.clone().find_map(|addr| path_control(device, addr));
        let to = copies.origin().or_else(|| addrs.clone().next());
        let path =
            GroupPath { av: AddressVector::new(to.unwrap_or(device.addr())), qpns: copies.qpns() };
        let members: Vec<_> =
            members.iter().map(|(addr, info)| (AddressVector::new(*addr), info.clone())).collect();
        self.first().with(|engine, nic, now| {
            if engine.config().sdr.congestion.is_none() {
                engine.set_congestion(control.clone());
            }
            engine.connect_group(nic, now, &path, &members)
        })
    }

    /// Continues without a member, given by its number: writes are over when all others have them,
    /// and nothing is sent to it any more. The last member stays.
    ///
    /// A write that fails because of a member fails for the whole group
    /// ([`Failure::member`](crate::Failure::member) names it): evict the member, and write again.
    ///
    /// # Errors
    /// If there is no such member, or no other.
    pub fn evict(&self, member: usize) -> Result<(), Error> {
        let mut group = lock(&self.group);
        self.first().with(|engine, nic, now| engine.evict(nic, now, member))?;
        let Group { live, copies, .. } = &mut *group;
        if let (Some(place), Some(copies)) = (live.iter().position(|m| *m == member), copies) {
            live.remove(place);
            copies.leave_out(self.pd.device().now(), place)?;
        }
        Ok(())
    }

    /// The remaining members of the group by number, with their addresses. Before the group is
    /// connected there are none.
    pub fn members(&self) -> Vec<(usize, IpAddr)> {
        let group = lock(&self.group);
        group.live.iter().filter_map(|member| Some((*member, group.addr(*member)?))).collect()
    }
}
