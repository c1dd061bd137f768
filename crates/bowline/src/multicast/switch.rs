//! A switch with an address of its own.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bowline_io::{
    Impair, LinkProfile, Port, PortCounters, PortError, Sharing, UdpConfig, UdpPort, Via,
};
use bowline_multicast::plan::IdPool;
use bowline_multicast::{
    Counters, Event, EvictError, GroupKey, GroupStatus, InvalidTable, Origin, Record, Region,
    Switch, SwitchLimits, Table,
};
use bowline_nic::{Mtu, Time};
use bowline_wire::{Qpn, ROCE_UDP_PORT};

use super::control::{GroupSpec, Info, RemoteError};
use super::driver::Driver;
use super::home::Home;
use super::{ConnectGroupError, Connected, GroupMember, GroupOptions, Reserved};
use crate::Error;
use crate::endpoint::{Endpoint, RemoteMr};

/// How a [`GroupSwitch`] is opened.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Its address. It must belong to this machine, and no other device may use it.
    pub addr: IpAddr,
    /// Its UDP port.
    pub udp_port: u16,
    /// What carries its packets: [`Via::Xdp`], or else a UDP socket. Shared memory is for devices.
    pub via: Via,
    /// Impairments of the packets that it sends, for tests.
    pub link: Option<LinkProfile>,
}

impl SwitchOptions {
    /// A switch on the usual port, without faults.
    pub fn new(addr: IpAddr) -> SwitchOptions {
        SwitchOptions { addr, udp_port: ROCE_UDP_PORT, via: Via::Udp, link: None }
    }
}

pub(super) struct Shared {
    engine: Mutex<Switch>,
    ids: Mutex<IdPool>,
    pub(super) port: Mutex<PortCounters>,
    pub(super) stop: AtomicBool,
    started: Instant,
}

impl Shared {
    pub(super) fn engine(&self) -> MutexGuard<'_, Switch> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }
}

/// A switch in this process, with an address of its own and a forwarding thread. Dropping it ends
/// it.
///
/// ```
/// use bowline::multicast::{GroupMember, GroupOptions, GroupSwitch, SwitchOptions};
/// use bowline::{Access, Device, QpType};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let switch = GroupSwitch::open(&SwitchOptions::new("127.9.1.100".parse()?))?;
/// let device = Device::open("127.9.1.1")?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
/// let mr = pd.register(64, Access::LOCAL_WRITE)?;
/// let sender = pd.qp(QpType::Rc, &cq).build()?;
///
/// let mut members = Vec::new();
/// for addr in ["127.9.1.2", "127.9.1.3"] {
///     let device = Device::open(addr)?;
///     let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
///     let mr = pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
///     members.push((pd.qp(QpType::Rc, &cq).build()?, mr));
/// }
/// let offers: Vec<GroupMember> = members
///     .iter()
///     .map(|(qp, mr)| GroupMember { endpoint: qp.endpoint(), regions: vec![mr.remote()] })
///     .collect();
/// let group = switch.connect(&sender.endpoint(), &offers, &GroupOptions::default())?;
/// for ((qp, _), endpoint) in members.iter().zip(&group.for_members) {
///     qp.connect(endpoint)?;
/// }
/// sender.connect(&group.for_sender)?;
///
/// mr.write_at(0, b"hello");
/// sender.write(1, &mr, 0..5, group.regions[0])?;
/// cq.next(Duration::from_secs(5))?;
/// assert!(members.iter().all(|(_, mr)| mr.to_vec(0, 5) == b"hello"));
/// # Ok(())
/// # }
/// ```
pub struct GroupSwitch {
    shared: Arc<Shared>,
    origin: Origin,
    /// The largest MTU that its port carries.
    mtu: Mtu,
    via: &'static str,
    thread: Option<JoinHandle<Result<(), PortError>>>,
}

impl GroupSwitch {
    /// Opens a switch.
    ///
    /// # Errors
    /// If its address is not available.
    pub fn open(options: &SwitchOptions) -> Result<GroupSwitch, PortError> {
        let config = UdpConfig {
            udp_port: options.udp_port,
            sharing: Sharing::Exclusive,
            ..UdpConfig::new(options.addr)
        };
        let port: Box<dyn Port> = match options.via {
            Via::Xdp(_) => options.via.open(&config)?.0,
            Via::Udp | Via::Shm | Via::Auto => Box::new(UdpPort::open(&config)?),
        };
        let caps = port.caps();
        let origin = Origin { addr: options.addr, port: caps.udp_port };
        let mtu = Mtu::for_ip_mtu(caps.ip_mtu).unwrap_or(Mtu::B256);
        let port: Box<dyn Port> = match &options.link {
            Some(link) => Box::new(Impair::new(port, link)),
            None => port,
        };
        let shared = Arc::new(Shared {
            engine: Mutex::new(Switch::new(SwitchLimits::default())),
            ids: Mutex::new(IdPool::default()),
            port: Mutex::new(PortCounters::default()),
            stop: AtomicBool::new(false),
            started: Instant::now(),
        });
        let driver = Driver::new(port, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("bowline-switch".to_owned());
        let thread = thread.spawn(move || driver.run());
        let no_thread = |source: io::Error| PortError::Os { what: "starting a thread", source };
        let thread = Some(thread.map_err(no_thread)?);
        Ok(GroupSwitch { shared, origin, mtu, via: caps.via, thread })
    }

    /// Creates a group. The sender and the members then connect to the endpoints that this returns,
    /// members first.
    ///
    /// # Errors
    /// If the switch rejects it.
    pub fn connect(
        &self,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, ConnectGroupError> {
        self.connect_reserved(self.reserve(members.len())?, sender, members, options)
    }

    /// Reserves the IDs of a group, for set-ups in which members must know theirs before they
    /// identify themselves.
    ///
    /// # Errors
    /// If too few are free.
    pub fn reserve(&self, members: usize) -> Result<Reserved, ConnectGroupError> {
        let mut pool = self.ids();
        let group = pool.take().ok_or(ConnectGroupError::NoIds)?;
        let ids: Vec<Qpn> = std::iter::from_fn(|| pool.take()).take(members).collect();
        let reserved = Reserved { group, ids };
        drop(pool);
        if reserved.ids.len() < members {
            self.give_back(&reserved);
            return Err(ConnectGroupError::NoIds);
        }
        Ok(reserved)
    }

    /// As [`connect`](GroupSwitch::connect), with reserved IDs.
    ///
    /// # Errors
    /// If the switch rejects it; then the IDs are free again.
    pub fn connect_reserved(
        &self,
        reserved: Reserved,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, ConnectGroupError> {
        let connected = self.try_connect(&reserved, sender, members, options);
        if connected.is_err() {
            self.give_back(&reserved);
        }
        connected
    }

    /// Installs a group of reserved IDs, or a newer version of it.
    pub(super) fn install_spec(&self, spec: &GroupSpec) -> Result<(), Error> {
        let (ids, members): (Vec<Qpn>, Vec<GroupMember>) = spec.members.iter().cloned().unzip();
        let reserved = Reserved { group: spec.group, ids };
        let (policy, as_in_the_paper) = (spec.policy, spec.as_in_the_paper);
        let options = GroupOptions { policy, as_in_the_paper, ..GroupOptions::default() };
        let home = Home::Switch(self.origin, self.mtu);
        let (table, _) = home.prepare(&reserved, &spec.sender, &members, &options)?;
        // The sender addresses the memory as at first, also when the first member has left.
        let region = |r: &RemoteMr| Region { va: r.addr, len: r.len, rkey: r.rkey };
        let regions = spec.regions.iter().map(region).collect();
        let table = Table { epoch: spec.epoch, regions, ..table };
        let now = self.shared.now();
        let mut engine = self.shared.engine();
        if let Some(asked) = spec.joins_at {
            let next = engine.next_psn(&table.key);
            if next != Some(asked) {
                return Err(RemoteError::Moved { asked, next }.into());
            }
        }
        engine.install(now, table).map_err(ConnectGroupError::from)?;
        Ok(())
    }

    /// Removes a group, if it has been installed, and frees its IDs.
    pub(super) fn end_group(&self, key: Option<&GroupKey>, reserved: &Reserved) {
        if let Some(key) = key {
            self.shared.engine().remove(key);
        }
        self.give_back(reserved);
    }

    /// More IDs for a group.
    pub(super) fn reserve_more(&self, count: usize) -> Result<Vec<Qpn>, ConnectGroupError> {
        let mut pool = self.ids();
        let ids: Vec<Qpn> = std::iter::from_fn(|| pool.take()).take(count).collect();
        if ids.len() < count {
            ids.into_iter().for_each(|id| pool.give_back(id));
            return Err(ConnectGroupError::NoIds);
        }
        Ok(ids)
    }

    /// Its address, and the largest MTU that it carries.
    pub(super) fn info(&self) -> Info {
        Info { origin: self.origin, mtu: self.mtu }
    }

    fn try_connect(
        &self,
        reserved: &Reserved,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, ConnectGroupError> {
        let home = Home::Switch(self.origin, self.mtu);
        let (table, connected) = home.prepare(reserved, sender, members, options)?;
        let now = self.shared.now();
        self.shared.engine().install(now, table)?;
        Ok(connected)
    }

    fn ids(&self) -> MutexGuard<'_, IdPool> {
        self.shared.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, reserved: &Reserved) {
        let mut pool = self.ids();
        reserved.ids.iter().chain([&reserved.group]).for_each(|id| pool.give_back(*id));
    }

    /// A group ID that is not in use; `None` if all are.
    pub(super) fn take_id(&self) -> Option<Qpn> {
        self.ids().take()
    }

    /// Installs a table, new or updated.
    pub(super) fn install_table(&self, table: Table) -> Result<(), InvalidTable> {
        let now = self.shared.now();
        self.shared.engine().install(now, table)
    }

    /// Removes a group whose members have no IDs.
    pub(super) fn remove_table(&self, key: &GroupKey) {
        self.shared.engine().remove(key);
        self.ids().give_back(key.id);
    }

    /// What carries its packets, human-readable.
    pub fn via(&self) -> &'static str {
        self.via
    }

    /// Its address and port.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// Ends a group. Its sender's packets are discarded from now on.
    pub fn disconnect(&self, connected: &Connected) {
        self.shared.engine().remove(&connected.group);
        self.give_back(&Reserved { group: connected.group.id, ids: connected.ids.clone() });
    }

    /// Whether its port has failed, so that it forwards nothing any more.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The next event: a member that was evicted, a group that failed.
    pub fn poll_event(&self) -> Option<Event> {
        self.shared.engine().poll_event()
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        *self.shared.engine().counters()
    }

    /// The counters of its port.
    pub fn port_counters(&self) -> PortCounters {
        *self.shared.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All its groups: their members, how far each lags, and which holds the others back.
    pub fn groups(&self) -> Vec<GroupStatus> {
        self.shared.engine().groups().collect()
    }

    /// Removes a member from a group. Completions from now on do not cover it.
    ///
    /// # Errors
    /// If there is no such member, or the group needs it.
    pub fn evict(&self, group: &GroupKey, member: Qpn) -> Result<(), EvictError> {
        let now = self.shared.now();
        self.shared.engine().evict(now, group, member)
    }

    /// What it knows about the members of a group, by member ID.
    pub fn records(&self, group: &GroupKey) -> Vec<(Qpn, Record)> {
        self.shared.engine().records(group).collect()
    }
}

impl Drop for GroupSwitch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A failed port has ended it already; there is nobody to tell.
            let _ = thread.join();
        }
    }
}
