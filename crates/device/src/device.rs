//! An open device.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bowline_failover::Rail;
use bowline_failover::mirror::{self, Names, Place};
use bowline_fec::{Fec, FecSnapshot};
use bowline_ibverbs::Caps;
use bowline_io::control::{self, ControlServer};
use bowline_io::{CqNotify, EventChannel, FaultRequest, Lane, LinkState, PortCounters, UdpConfig};
use bowline_nic::{Counters, Event, NicConfig, RateControl, Time};

use crate::engines::LaneEngines;
use crate::events::LostPeers;
use crate::failover::{Account, Failover};
use crate::groups::Groups;
use crate::multicast::{Memberships, Replicator};
use crate::placement::Placement;
use crate::verbs::Verbs;
use crate::{DeviceError, verbs};

/// An open device: its lanes and their shared state; or a verbs device, without lanes.
pub struct Device {
    pub(crate) name: String,
    pub(crate) engines: Arc<LaneEngines>,
    /// The verbs device, if this device has no lanes.
    pub(crate) verbs: Option<Verbs>,
    pub(crate) names: Arc<RwLock<Names>>,
    pub(crate) events: Arc<EventChannel<Event>>,
    /// Who is notified of lost peers.
    pub(crate) peers: Arc<LostPeers>,
    pub(crate) placement: Placement,
    pub(crate) fec: Option<Fec>,
    pub(crate) congestion: Option<RateControl>,
    /// The configuration of the engines.
    pub(crate) config: NicConfig,
    /// The configuration of the sockets.
    pub(crate) udp: UdpConfig,
    pub(crate) failover: Option<Failover>,
    /// The multicast groups of its queue pairs.
    pub(crate) groups: Groups,
    /// The groups of which its queue pairs are members by IP multicast.
    pub(crate) memberships: Memberships,
    /// Servers that answer `bowline devinfo` about the device and its backup, if they could be
    /// started.
    pub(crate) controls: Mutex<Vec<ControlServer>>,
    /// The replicators for groups, by lane, for lanes that have one.
    pub(crate) replicators: Mutex<BTreeMap<usize, Arc<Replicator>>>,
    /// The last number given to an XRC domain, or to a shared receive queue in one.
    pub(crate) last_xrc: AtomicU32,
}

impl Device {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's address.
    pub fn addr(&self) -> IpAddr {
        self.config.addr
    }

    /// The engines' configuration: limits, address, the largest MTU.
    pub fn config(&self) -> &NicConfig {
        &self.config
    }

    /// The name of the packet transport, for display.
    pub fn via(&self) -> &'static str {
        self.lanes().first().map_or(verbs::VIA, |lane| lane.port_caps().via)
    }

    /// Whether its programs may share memory with others of this host instead of sending packets.
    pub fn shares_memory(&self) -> bool {
        self.lanes().first().is_some_and(|lane| lane.port_caps().shares_memory)
    }

    /// The capabilities of the underlying verbs device, if there is one.
    pub fn verbs_caps(&self) -> Option<&Caps> {
        self.verbs.as_ref().map(|verbs| verbs.context.caps())
    }

    /// The device's lanes; a verbs device has none.
    pub fn lanes(&self) -> &[Arc<Lane>] {
        self.engines.rail(Rail::Default)
    }

    /// The lanes of its backup; empty if it has no backup.
    pub fn backup_lanes(&self) -> &[Arc<Lane>] {
        self.engines.rail(Rail::Backup)
    }

    /// A lane that [`Device::take_lane`] returned, for protocols that run in it.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn lane(&self, lane: usize) -> &Arc<Lane> {
        self.engines.lane(Place::lane(lane))
    }

    /// The clock of all its lanes.
    pub fn now(&self) -> Time {
        match (self.lanes().first(), &self.verbs) {
            (Some(lane), _) => lane.now(),
            (None, Some(verbs)) => verbs.now(),
            (None, None) => Time::ZERO,
        }
    }

    /// A number for an XRC domain, or for a shared receive queue in one: 24 bits, and not 0. The
    /// engines reject numbers that are in use.
    pub(crate) fn next_xrc_number(&self) -> u32 {
        self.last_xrc.fetch_add(1, Ordering::Relaxed) % 0xff_ffff + 1
    }

    /// Chooses a lane for a queue pair, or for a protocol with its own queue pairs, and counts it
    /// there until [`Device::release_lane`]. Fails on a verbs device; `what` names the operation in
    /// the error.
    pub fn take_lane(&self, hint: Option<usize>, what: &'static str) -> Result<usize, DeviceError> {
        self.needs_soft_nic(what)?;
        Ok(self.placement.take(hint))
    }

    /// Fails on a verbs device; `what` names the operation in the error.
    pub fn needs_soft_nic(&self, what: &'static str) -> Result<(), DeviceError> {
        if self.verbs.is_some() { Err(DeviceError::needs_soft_nic(what)) } else { Ok(()) }
    }

    /// Releases what [`Device::take_lane`] counted on a lane.
    pub fn release_lane(&self, lane: usize) {
        self.placement.release(lane);
    }

    /// Whether the port is up: one lane of the device or of its backup is enough.
    pub fn link(&self) -> LinkState {
        let up = match &self.verbs {
            Some(verbs) => verbs.context.is_up(),
            None => self.engines.all().iter().any(|lane| lane.link() == LinkState::Up),
        };
        if up { LinkState::Up } else { LinkState::Down }
    }

    /// The device's events, except those about completions. The channel is closed once an engine of
    /// the device itself has ended.
    pub fn events(&self) -> &Arc<EventChannel<Event>> {
        &self.events
    }

    /// Counters of its engines and ports. Fails on a verbs device, whose counters the kernel shows.
    pub fn counters(&self) -> Result<(Counters, PortCounters), DeviceError> {
        if self.verbs.is_some() {
            let instead =
                "read /sys/class/infiniband/NAME/ports/1/hw_counters, or `rdma statistic`";
            return Err(DeviceError::NeedsSoftNic { what: "counting packets", instead });
        }
        Ok(control::total_counters(self.lanes())?)
    }

    /// The congestion control of queue pairs that do not set their own.
    pub fn congestion(&self) -> Option<&RateControl> {
        self.congestion.as_ref()
    }

    /// Counters of forward error correction, if there is any.
    pub fn fec_counters(&self) -> Option<FecSnapshot> {
        self.fec.as_ref().map(Fec::counters)
    }

    /// What happened to its connections, if it has a backup.
    pub fn failover_account(&self) -> Option<Account> {
        self.failover.as_ref().map(Failover::account)
    }

    /// Makes its ports fail, or ends that. This does not affect a verbs device: take its interface
    /// down instead.
    pub fn fault(&self, request: &FaultRequest) {
        self.lanes().iter().filter_map(|l| l.faults()).for_each(|faults| faults.apply(request));
    }

    /// The device's report as one line of JSON, with its forward error correction and failover if
    /// it has any. Returns `None` once an engine has ended.
    pub fn report(&self) -> Option<String> {
        let mut report = control::account(&self.name, self.lanes())?;
        let mut add = |name: &str, value: &str| {
            if report.pop().is_some() {
                report.push_str(&format!(",\"{name}\":{value}}}"));
            }
        };
        if let Some(counters) = self.fec_counters() {
            let fields: Vec<String> =
                counters.iter().map(|(name, _, n)| format!("\"{name}\":{n}")).collect();
            add("fec", &format!("{{{}}}", fields.join(",")));
        }
        if let Some(account) = self.failover_account() {
            add("failover", &account.to_json());
        }
        Some(report)
    }

    /// The report of its backup, if it has one.
    pub fn backup_report(&self) -> Option<String> {
        control::account(&backup_name(&self.name), self.backup_lanes())
    }

    /// The caller has polled until now, and is about to sleep.
    pub fn stop_polling(&self) {
        self.engines.all().iter().for_each(|lane| lane.stop_polling());
    }

    /// Shuts down the device: packets that are ready leave, threads stop, and the address becomes
    /// free. Later calls return [`LaneError::Dead`](bowline_io::LaneError::Dead). A verbs device
    /// ends with its last object.
    pub fn shut_down(&self) {
        drop(std::mem::take(&mut *self.controls.lock().unwrap_or_else(PoisonError::into_inner)));
        self.groups.clear();
        self.memberships.clear();
        if let Some(failover) = &self.failover {
            failover.shutdown();
        }
        self.engines.all().iter().for_each(|lane| lane.shutdown());
        if let Some(verbs) = &self.verbs {
            verbs.shut_down();
        }
    }

    /// Starts to answer queries about the device and its backup.
    pub(crate) fn listen(self: &Arc<Device>) {
        let device = Arc::downgrade(self);
        let own = ControlServer::start(&self.name, move |line| {
            let Some(device) = device.upgrade() else { return String::new() };
            match line {
                "counters" => device.report().unwrap_or_default(),
                _ => control::answer(&device.name, device.lanes(), line),
            }
        });
        let backup = self.failover.is_some().then(|| {
            let (name, device) = (backup_name(&self.name), Arc::downgrade(self));
            ControlServer::start(&name.clone(), move |line| {
                let Some(device) = device.upgrade() else { return String::new() };
                control::answer(&name, device.backup_lanes(), line)
            })
        });
        // The device also works if nobody can query it.
        let servers = [Some(own), backup].into_iter().flatten().filter_map(Result::ok);
        self.controls.lock().unwrap_or_else(PoisonError::into_inner).extend(servers);
    }

    #[inline]
    pub(crate) fn engines(&self) -> &LaneEngines {
        &self.engines
    }

    pub(crate) fn names(&self) -> &RwLock<Names> {
        &self.names
    }

    #[inline]
    pub(crate) fn failover(&self) -> Option<&Failover> {
        self.failover.as_ref()
    }

    /// Whether any connection is on the backup rail.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.failover.as_ref().is_some_and(Failover::is_split)
    }

    /// Wakes threads that wait for the queue's event when connections move.
    pub(crate) fn watch_cq(&self, cq: &mirror::Cq, notify: &CqNotify) {
        if let Some(failover) = &self.failover {
            failover.watch_cq(cq.ids()[0], notify.clone());
        }
    }

    pub(crate) fn unwatch_cq(&self, cq: &mirror::Cq) {
        if let Some(failover) = &self.failover {
            failover.unwatch_cq(cq.ids()[0]);
        }
    }
}

/// The name of a device's backup, for observers from outside: programs do not see it.
pub(crate) fn backup_name(name: &str) -> String {
    format!("{name}-backup")
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} at {}, {} lanes)", self.name, self.addr(), self.lanes().len())
    }
}
