//! The world: hosts with real engines, a network, and a queue of events on virtual time.

mod deliver;
mod drive;
mod gather;
mod host;
mod tap;

use core::net::IpAddr;
use std::io::{self, Write};

use bowline_link::LinkConfig;
use bowline_nic::{Nic, NicConfig, Time, TxCaps};

use crate::check::Violation;
use crate::event::Event;
use crate::net::{Fabric, LinkId, Network, NodeId, Topology, pair};
use crate::trace::Record;

pub use host::{HostConfig, HostId, NicId, RxId, TxId};

use gather::Gathered;
use host::{Engine, Host, SharedBatch};
use tap::Tap;

/// Traffic: posts work, polls completions, and checks them.
///
/// The world calls it after every event that may have produced a completion, and at the times it
/// asked to be woken. It reaches engines through [`World::nic_mut`]; the world polls them for
/// packets and timeouts afterwards.
pub trait App {
    /// A time asked for with [`World::wake_at`] has come.
    fn on_timer(&mut self, world: &mut World, token: u64);

    /// An engine handled something. Returns whether the application consumed a completion, posted
    /// or changed anything: then the engine is polled and the application called again.
    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool;

    /// Whether the run can end before its deadline.
    fn is_finished(&self, world: &World) -> bool;
}

/// What happened in a world, besides what links and engines count themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldStats {
    /// Events handled.
    pub events: u64,
    /// Packets that engines sent.
    pub sent: u64,
    /// READ requests among them.
    pub reads_sent: u64,
    /// Atomic requests among them.
    pub atomics_sent: u64,
    /// Packets that no engine sent.
    pub injected: u64,
    /// Packets given to an engine.
    pub delivered: u64,
    /// Packets that arrived in one datagram with the one before.
    pub coalesced: u64,
    /// Packets dropped because a paused host's ring was full.
    pub ring_drops: u64,
    /// Packets dropped because they have no route or their TTL expired.
    pub unroutable: u64,
    /// Timeouts that engines handled.
    pub timeouts: u64,
    /// Times a host was paused.
    pub pauses: u64,
    /// Most packets in flight at once.
    pub in_flight_peak: usize,
}

/// Packets that wait at a host of [`World::of_two`].
const RING_PACKETS: usize = 512;

/// A deterministic world on virtual time.
pub struct World {
    fabric: Fabric,
    hosts: Vec<Host>,
    engines: Vec<Engine>,
    batches: Vec<SharedBatch>,
    /// Engines called since they were last polled; those of paused hosts may be missing.
    touched: Vec<NicId>,
    /// Host of each node of the network, for delivery.
    host_of_node: Vec<Option<HostId>>,
    /// Frames for the next delivery; empty between events.
    gathered: Gathered,
    /// Packets that an on-path attacker has overheard, if there is one.
    tap: Option<Tap>,
}

impl World {
    /// A world with these hosts at the topology's ports, in order.
    ///
    /// # Panics
    /// If there are more hosts than ports, or a NIC's configuration is refused.
    pub fn new(seed: u64, topology: Topology, configs: Vec<HostConfig>) -> World {
        assert!(configs.len() <= topology.hosts.len(), "every host needs a port");
        let mut world = World {
            fabric: Fabric::new(seed, topology.network),
            hosts: Vec::new(),
            engines: Vec::new(),
            batches: Vec::new(),
            touched: Vec::new(),
            host_of_node: Vec::new(),
            gathered: Gathered::default(),
            tap: None,
        };
        for (node, config) in topology.hosts.into_iter().zip(configs) {
            world.add_host(node, config);
        }
        world
    }

    /// Two hosts with a cable between them, for protocols that need no more. Ports that coalesce
    /// have IPv6 addresses, whose packets have no identification to guess.
    pub(crate) fn of_two(seed: u64, cable: LinkConfig, coalesce_ns: u64) -> World {
        let addrs = if coalesce_ns > 0 { Topology::ipv6(2) } else { Topology::ipv4(2) };
        let topology = pair(seed, [addrs[0], addrs[1]], cable);
        let hosts = addrs.iter().enumerate().map(|(i, addr)| HostConfig {
            nics: vec![NicConfig::new(*addr, [i as u8 + 1; 32])],
            tx_caps: TxCaps::SINGLE,
            tx_batch: 32,
            tx_id: TxId::Burst,
            rx_id: RxId::Known,
            coalesce_ns,
            ring_packets: RING_PACKETS,
        });
        World::new(seed, topology, hosts.collect())
    }

    /// The seed that violations name.
    pub fn seed(&self) -> u64 {
        self.fabric.seed
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.fabric.now
    }

    /// The network, to change faults.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.fabric.network
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.fabric.network
    }

    fn touch(&mut self, nic: NicId) {
        let engine = &mut self.engines[nic.0];
        if !engine.touched {
            engine.touched = true;
            self.touched.push(nic);
        }
    }

    /// The link by which a host sends to `dst`.
    pub fn link_from(&self, host: HostId, dst: IpAddr) -> Option<LinkId> {
        self.fabric.network.next_hop(self.hosts[host.0].node, dst)
    }

    /// An engine.
    pub fn nic(&self, nic: NicId) -> &Nic {
        &self.engines[nic.0].nic
    }

    /// An engine, to be called; the world polls it afterwards.
    pub fn nic_mut(&mut self, nic: NicId) -> &mut Nic {
        self.touch(nic);
        &mut self.engines[nic.0].nic
    }

    /// An engine, for calls that produce neither packets nor timeouts: polling completions and
    /// events.
    pub fn poll_nic(&mut self, nic: NicId) -> &mut Nic {
        &mut self.engines[nic.0].nic
    }

    /// How many engines there are.
    pub fn nic_count(&self) -> usize {
        self.engines.len()
    }

    /// The first engine of a host.
    pub fn first_nic(&self, host: HostId) -> NicId {
        self.hosts[host.0].nics[0]
    }

    /// A host's address.
    pub fn addr_of(&self, host: HostId) -> IpAddr {
        self.nic(self.first_nic(host)).config().addr
    }

    /// A host's port in the network.
    pub fn node_of(&self, host: HostId) -> NodeId {
        self.hosts[host.0].node
    }

    /// The host of an engine.
    pub fn host_of(&self, nic: NicId) -> HostId {
        self.engines[nic.0].host
    }

    /// Schedules [`App::on_timer`] at `at`, or now if that is past.
    pub fn wake_at(&mut self, at: Time, token: u64) {
        self.fabric.queue.push(at.max(self.fabric.now), Event::Wake { token });
    }

    /// Packets in flight.
    pub fn in_flight(&self) -> usize {
        self.fabric.packets.len()
    }

    /// Changes with every packet sent or delivered and with every timeout: an application that
    /// would have to check everything can skip that while this stays the same.
    pub fn activity(&self) -> [u64; 3] {
        let stats = &self.fabric.stats;
        [stats.sent, stats.delivered, stats.timeouts]
    }

    /// What happened.
    pub fn stats(&self) -> &WorldStats {
        &self.fabric.stats
    }

    /// Hash of everything that happened.
    pub fn trace_hash(&self) -> u64 {
        self.fabric.trace.hash()
    }

    /// Violations of the engine contract.
    pub fn violations(&self) -> &[Violation] {
        &self.fabric.violations
    }

    /// Writes a readable log from now on, event by event, so that it is complete even if an engine
    /// panics.
    pub fn keep_log(&mut self, log: Box<dyn Write>) {
        self.fabric.trace.keep_log(log);
    }

    /// Ends the log.
    ///
    /// # Errors
    /// Why it could not be written.
    pub fn end_log(&mut self) -> io::Result<()> {
        self.fabric.trace.end_log()
    }

    /// Adds something that the application saw to the hash, and to the log.
    pub fn note(&mut self, word: u64, text: impl FnOnce() -> String) {
        self.fabric.record(Record::App, word, 0, text);
    }
}
