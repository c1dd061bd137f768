//! Reliable multicast: one sender, one queue pair, many receivers (`docs/multicast.md`).
//!
//! A [`GroupSwitch`] is a switch in this process, with an address of its own. The sender and all members of a group
//! connect their RC queue pairs to it; it copies what the sender sends, and merges what members answer. A
//! completion at the sender means that every member has the message.
//!
//! ```
//! use bowline::multicast::{GroupMember, GroupOptions, GroupSwitch, SwitchOptions};
//! use bowline::{Access, Device, QpType};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let switch = GroupSwitch::open(&SwitchOptions::new("127.9.1.100".parse()?))?;
//! let device = Device::open("127.9.1.1")?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//! let mr = pd.register(64, Access::LOCAL_WRITE)?;
//! let sender = pd.qp(QpType::Rc, &cq).build()?;
//!
//! let mut members = Vec::new();
//! for addr in ["127.9.1.2", "127.9.1.3"] {
//!     let device = Device::open(addr)?;
//!     let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//!     let mr = pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!     members.push((pd.qp(QpType::Rc, &cq).build()?, mr));
//! }
//! let offers: Vec<GroupMember> = members
//!     .iter()
//!     .map(|(qp, mr)| GroupMember { endpoint: qp.endpoint(), regions: vec![mr.remote()] })
//!     .collect();
//! let group = switch.connect(&sender.endpoint(), &offers, &GroupOptions::default())?;
//! for ((qp, _), endpoint) in members.iter().zip(&group.for_members) {
//!     qp.connect(endpoint)?;
//! }
//! sender.connect(&group.for_sender)?;
//!
//! mr.write_at(0, b"hello");
//! sender.write(1, &mr, 0..5, group.regions[0])?;
//! cq.next(Duration::from_secs(5))?;
//! assert!(members.iter().all(|(_, mr)| mr.to_vec(0, 5) == b"hello"));
//! # Ok(())
//! # }
//! ```

mod driver;

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use bowline_io::{Impair, LinkProfile, Port, PortCounters, PortError, Sharing, UdpConfig, UdpPort};
use bowline_multicast::plan::IdPool;
use bowline_multicast::{
    Branch, GroupKey, InvalidTable, Leaf, MemberConfig, Origin, Place, Region, RootConfig, Switch,
    SwitchLimits, Table,
};
use bowline_nic::{Mtu, QpType, Time};
use bowline_wire::{Qpn, ROCE_UDP_PORT};
use thiserror::Error;

pub use bowline_multicast::{Cause, Counters, Event, Policy, Record};

use crate::endpoint::{Endpoint, RemoteMr};
use driver::Driver;

/// How a [`GroupSwitch`] is opened.
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Its address. It must belong to this machine, and to nobody else's device.
    pub addr: IpAddr,
    /// Its UDP port.
    pub udp_port: u16,
    /// What happens to the packets that it sends, for tests.
    pub link: Option<LinkProfile>,
}

impl SwitchOptions {
    /// A switch on the usual port, without faults.
    pub fn new(addr: IpAddr) -> SwitchOptions {
        SwitchOptions { addr, udp_port: ROCE_UDP_PORT, link: None }
    }
}

/// A member, as it is to be connected.
#[derive(Clone, Debug)]
pub struct GroupMember {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// Memory that it offers. All members offer the same number of regions; the sender may write as much of each as the
    /// smallest has.
    pub regions: Vec<RemoteMr>,
}

/// How a group behaves.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// What happens to members that fail or fall behind.
    pub policy: Policy,
    /// Merge by the rules of the paper, to compare.
    pub as_in_the_paper: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        GroupOptions { policy: Policy::Fail, as_in_the_paper: false }
    }
}

/// What the ends of a group connect to.
#[derive(Clone, Debug)]
pub struct Connected {
    /// Which group it is.
    pub group: GroupKey,
    /// Whom the sender's queue pair connects to.
    pub for_sender: Endpoint,
    /// Memory of all members, as the sender names it.
    pub regions: Vec<RemoteMr>,
    /// Whom each member's queue pair connects to.
    pub for_members: Vec<Endpoint>,
    /// The member ID of each member, by which events name it.
    pub ids: Vec<Qpn>,
}

/// The IDs of a group that is to be connected.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The QPN that the sender's queue pair connects to.
    pub group: Qpn,
    /// The QPN that each member's queue pair connects to.
    pub ids: Vec<Qpn>,
}

/// Why a group cannot be connected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConnectGroupError {
    /// No members.
    #[error("a group needs at least one member")]
    NoMembers,
    /// A queue pair that is not reliable and connected.
    #[error("{0:?} queue pairs cannot be in a group: use RC")]
    NotRc(QpType),
    /// A device on another UDP port than the switch's.
    #[error("the device at {addr} uses UDP port {port}: a group's devices use the switch's")]
    Port {
        /// Its address.
        addr: IpAddr,
        /// Its port.
        port: u16,
    },
    /// Members offer different numbers of regions.
    #[error("member {member} offers {offered} regions, the first one {expected}")]
    Regions {
        /// Which member.
        member: usize,
        /// What it offers.
        offered: usize,
        /// What the first one offers.
        expected: usize,
    },
    /// All IDs are in use.
    #[error("all group and member IDs of this switch are in use")]
    NoIds,
    /// The switch does not take the table.
    #[error(transparent)]
    Table(#[from] InvalidTable),
}

struct Shared {
    engine: Mutex<Switch>,
    ids: Mutex<IdPool>,
    port: Mutex<PortCounters>,
    stop: AtomicBool,
    started: Instant,
}

impl Shared {
    fn engine(&self) -> MutexGuard<'_, Switch> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }
}

/// A switch in this process, with an address of its own and a thread that forwards. It ends when it is dropped.
pub struct GroupSwitch {
    shared: Arc<Shared>,
    origin: Origin,
    thread: Option<JoinHandle<Result<(), PortError>>>,
}

impl GroupSwitch {
    /// Opens a switch.
    ///
    /// # Errors
    /// If its address cannot be had.
    pub fn open(options: &SwitchOptions) -> Result<GroupSwitch, PortError> {
        let config = UdpConfig {
            udp_port: options.udp_port,
            sharing: Sharing::Exclusive,
            ..UdpConfig::new(options.addr)
        };
        let port = UdpPort::open(&config)?;
        let origin = Origin { addr: options.addr, port: port.caps().udp_port };
        let port: Box<dyn Port> = match &options.link {
            Some(link) => Box::new(Impair::new(port, link)),
            None => Box::new(port),
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
        Ok(GroupSwitch { shared, origin, thread: Some(thread.map_err(no_thread)?) })
    }

    /// Makes a group. The sender and the members then connect to the endpoints that this gives, members first.
    ///
    /// # Errors
    /// If the switch does not take it.
    pub fn connect(
        &self,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, ConnectGroupError> {
        self.connect_reserved(self.reserve(members.len())?, sender, members, options)
    }

    /// Takes the IDs of a group beforehand, for set-ups in which members must know theirs before they say who they are.
    ///
    /// # Errors
    /// If there are too few.
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

    /// As [`connect`](GroupSwitch::connect), with IDs that were taken beforehand.
    ///
    /// # Errors
    /// If the switch does not take it; then the IDs are free again.
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

    fn try_connect(
        &self,
        reserved: &Reserved,
        sender: &Endpoint,
        members: &[GroupMember],
        options: &GroupOptions,
    ) -> Result<Connected, ConnectGroupError> {
        let Reserved { group, ids } = reserved;
        for end in members.iter().map(|member| &member.endpoint).chain([sender]) {
            if end.qp_type != QpType::Rc {
                return Err(ConnectGroupError::NotRc(end.qp_type));
            }
            if end.udp_port != self.origin.port {
                return Err(ConnectGroupError::Port { addr: end.addr, port: end.udp_port });
            }
        }
        let regions = shared_regions(members)?;
        let key = GroupKey { sender: sender.addr, id: *group };
        let mtu = members.iter().fold(sender.mtu, |mtu, member| mtu.min(member.endpoint.mtu));
        let table = self.table(key, ids, (sender, members), &regions, mtu, options);
        let now = self.shared.now();
        self.shared.engine().install(now, table)?;
        let at_switch = |qpn: Qpn| Endpoint {
            addr: self.origin.addr,
            udp_port: self.origin.port,
            qpn,
            mtu,
            rd_atomic: 0,
            ..*sender
        };
        Ok(Connected {
            group: key,
            for_sender: at_switch(key.id),
            regions,
            for_members: ids.iter().map(|id| at_switch(*id)).collect(),
            ids: ids.clone(),
        })
    }

    fn table(
        &self,
        key: GroupKey,
        ids: &[Qpn],
        (sender, members): (&Endpoint, &[GroupMember]),
        regions: &[RemoteMr],
        mtu: Mtu,
        options: &GroupOptions,
    ) -> Table {
        let branch = |member: &GroupMember| {
            let place = |region: &RemoteMr| Place { va: region.addr, rkey: region.rkey };
            let places = member.regions.iter().map(place).collect();
            let leaf = Some(Leaf { qpn: member.endpoint.qpn, places });
            Branch { dst: member.endpoint.addr, src: Some(self.origin), leaf }
        };
        let config = |(branch, (member, id)): (usize, (&GroupMember, &Qpn))| MemberConfig {
            addr: member.endpoint.addr,
            id: *id,
            branch,
        };
        let root = RootConfig {
            sender_port: sender.udp_port,
            members: members.iter().zip(ids).enumerate().map(config).collect(),
            mtu: mtu.bytes(),
            policy: options.policy,
            ..RootConfig::new(sender.qpn, self.origin, self.origin.addr, Some(sender.psn))
        };
        let root = if options.as_in_the_paper { root.as_in_the_paper() } else { root };
        let region = |r: &RemoteMr| Region { va: r.addr, len: r.len, rkey: r.rkey };
        Table {
            key,
            epoch: 1,
            branches: members.iter().map(branch).collect(),
            regions: regions.iter().map(region).collect(),
            root: Some(root),
        }
    }

    fn ids(&self) -> MutexGuard<'_, IdPool> {
        self.shared.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, reserved: &Reserved) {
        let mut pool = self.ids();
        reserved.ids.iter().chain([&reserved.group]).for_each(|id| pool.give_back(*id));
    }

    /// Ends a group. Packets of its sender go nowhere from now on.
    pub fn disconnect(&self, connected: &Connected) {
        self.shared.engine().remove(&connected.group);
        self.give_back(&Reserved { group: connected.group.id, ids: connected.ids.clone() });
    }

    /// Whether its port has broken, so that it forwards nothing any more.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The next event: a member that was evicted, a group that failed.
    pub fn poll_event(&self) -> Option<Event> {
        self.shared.engine().poll_event()
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        *self.shared.engine().counters()
    }

    /// What its port has done and seen.
    pub fn port_counters(&self) -> PortCounters {
        *self.shared.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it knows of the members of a group, by member ID.
    pub fn records(&self, group: &GroupKey) -> Vec<(Qpn, Record)> {
        self.shared.engine().records(group).collect()
    }
}

impl Drop for GroupSwitch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A port that broke has ended it sooner; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

/// The regions as the sender names them: those of the first member, as long as the shortest.
fn shared_regions(members: &[GroupMember]) -> Result<Vec<RemoteMr>, ConnectGroupError> {
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
