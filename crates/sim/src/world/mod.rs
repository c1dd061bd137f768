//! The world: hosts with real engines, a network, and a queue of events on virtual time.

mod deliver;
mod drive;
mod gather;
mod host;
mod queue;

use std::io::{self, Write};

use bowline_nic::{Nic, Time};

use crate::check::Violation;
use crate::hash::TraceHash;
use crate::net::{LinkId, Network, Topology};
use crate::packet::PacketStore;

pub use host::{HostConfig, HostId, NicId, RxId, TxId};

use gather::Gathered;
use host::{Engine, Host};
use queue::{EventKind, EventQueue};

/// Traffic: posts work, looks at completions, and judges them.
///
/// The world calls it after every event that may have produced a completion, and at the times it
/// asked to be woken. It reaches engines through [`World::nic_mut`]; the world polls them for
/// packets and timeouts afterwards.
pub trait App {
    /// A time asked for with [`World::wake_at`] has come.
    fn on_timer(&mut self, world: &mut World, token: u64);

    /// An engine handled something. Returns whether it consumed a completion, posted or changed
    /// anything: then the engine is polled and the application asked again.
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
    /// Packets given to an engine.
    pub delivered: u64,
    /// Those among them that came in one datagram with the one before.
    pub coalesced: u64,
    /// Packets dropped because a paused host's ring was full.
    pub ring_drops: u64,
    /// Packets dropped because nothing routes them or their hops ran out.
    pub unroutable: u64,
    /// Timeouts that engines handled.
    pub timeouts: u64,
    /// Times a host was paused.
    pub pauses: u64,
    /// Most packets in flight at once.
    pub in_flight_peak: usize,
}

/// What a trace record is about; its number enters the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Send = 1,
    Deliver = 2,
    QueueDrop = 3,
    Lost = 4,
    Timeout = 5,
    Wake = 6,
    Pause = 7,
    Resume = 8,
    App = 9,
}

/// A deterministic world on virtual time.
pub struct World {
    seed: u64,
    now: Time,
    queue: EventQueue,
    network: Network,
    hosts: Vec<Host>,
    engines: Vec<Engine>,
    /// Host of each node of the network, for delivery.
    host_of_node: Vec<Option<HostId>>,
    packets: PacketStore,
    /// What an engine gets next; empty between events.
    gathered: Gathered,
    hash: TraceHash,
    log: Option<Box<dyn Write>>,
    log_error: Option<io::Error>,
    violations: Vec<Violation>,
    stats: WorldStats,
}

impl World {
    /// A world with these hosts at the topology's ports, in order.
    ///
    /// # Panics
    /// If there are more hosts than ports, or a NIC's configuration is refused.
    pub fn new(seed: u64, topology: Topology, configs: Vec<HostConfig>) -> World {
        assert!(configs.len() <= topology.hosts.len(), "every host needs a port");
        let mut world = World {
            seed,
            now: Time::ZERO,
            queue: EventQueue::default(),
            network: topology.network,
            hosts: Vec::new(),
            engines: Vec::new(),
            host_of_node: Vec::new(),
            packets: PacketStore::default(),
            gathered: Gathered::default(),
            hash: TraceHash::new(seed),
            log: None,
            log_error: None,
            violations: Vec::new(),
            stats: WorldStats::default(),
        };
        for (node, config) in topology.hosts.into_iter().zip(configs) {
            world.add_host(node, config);
        }
        world
    }

    /// The seed that violations name.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The network, to change faults.
    pub fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The link by which a host sends to `dst`.
    pub fn link_from(&self, host: HostId, dst: core::net::IpAddr) -> Option<LinkId> {
        self.network.next_hop(self.hosts[host.0].node, dst)
    }

    /// An engine.
    pub fn nic(&self, nic: NicId) -> &Nic {
        &self.engines[nic.0].nic
    }

    /// An engine, to be called and polled afterwards.
    pub fn nic_mut(&mut self, nic: NicId) -> &mut Nic {
        let engine = &mut self.engines[nic.0];
        engine.touched = true;
        &mut engine.nic
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

    /// The engines of a host.
    pub fn nics_of(&self, host: HostId) -> &[NicId] {
        &self.hosts[host.0].nics
    }

    /// The host of an engine.
    pub fn host_of(&self, nic: NicId) -> HostId {
        self.engines[nic.0].host
    }

    /// Asks for [`App::on_timer`] at `at`, or now if that is past.
    pub fn wake_at(&mut self, at: Time, token: u64) {
        self.queue.push(at.max(self.now), EventKind::Wake { token });
    }

    /// Packets in flight.
    pub fn in_flight(&self) -> usize {
        self.packets.len()
    }

    /// What happened.
    pub fn stats(&self) -> &WorldStats {
        &self.stats
    }

    /// Hash of everything that happened.
    pub fn trace_hash(&self) -> u64 {
        self.hash.value()
    }

    /// Rules of the engine contract that an engine broke.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Writes a readable log from now on. It is written as things happen, so that it is there even
    /// if an engine panics.
    pub fn keep_log(&mut self, log: Box<dyn Write>) {
        self.log = Some(log);
    }

    /// Ends the log.
    ///
    /// # Errors
    /// What kept it from being written.
    pub fn end_log(&mut self) -> io::Result<()> {
        let flushed = self.log.take().map_or(Ok(()), |mut log| log.flush());
        self.log_error.take().map_or(flushed, Err)
    }

    /// Takes something the application saw into the hash, and into the log.
    pub fn note(&mut self, word: u64, text: impl FnOnce() -> String) {
        self.record(Record::App, word, 0, text);
    }

    pub(crate) fn record(&mut self, kind: Record, a: u64, b: u64, text: impl FnOnce() -> String) {
        self.hash.word(self.now.as_nanos());
        self.hash.word(kind as u64 ^ (a << 4));
        self.hash.word(b);
        if let Some(log) = &mut self.log
            && let Err(error) = writeln!(log, "{} {kind:?} {}", self.now, text())
        {
            self.log_error = Some(error);
            self.log = None;
        }
    }

    fn violate(&mut self, what: String) {
        self.violations.push(Violation {
            seed: self.seed,
            time: self.now,
            checker: "contract",
            what,
        });
    }
}
