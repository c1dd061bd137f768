//! One sender, many receivers, three ways: a group behind switches that replicate and merge,
//! fan-out, and chain replication, all over RC through a switched network.

mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_multicast::plan::IdPool;
use bowline_nic::{Completion, ControllerFactory, Mtu, NicConfig, RateControl, Time, TxCaps};

use self::stream::Stream;
use crate::multicast_storm::Control;
use crate::net::{LinkId, Topology, fat_tree, leaf_spine, star};
use crate::world::{App, HostConfig, HostId, NicId, RxId, TxId, World};

/// How a message reaches all receivers of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One request to a group.
    Group,
    /// A request to each.
    FanOut,
    /// A request to the first, which forwards the message once it has all of it, and so on; the
    /// last one's acknowledgement returns along the chain.
    Chain,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Group, Way::FanOut, Way::Chain];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Group => "group",
            Way::FanOut => "fan-out",
            Way::Chain => "chain",
        }
    }
}

/// What connects the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    /// So many hosts around one switch.
    Star(usize),
    /// This many hosts, alternating between two racks, which two spines join.
    TwoRacks(usize),
    /// A fat tree of switches with so many ports, full of hosts. Host `n` is in pod `n % k`.
    FatTree(usize),
}

/// Messages from one host to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPlan {
    /// Who sends.
    pub from: usize,
    /// To whom.
    pub to: Vec<usize>,
    /// How.
    pub way: Way,
    /// Bytes of a message.
    pub bytes: u32,
    /// How many; without end if `None`.
    pub messages: Option<u64>,
    /// Messages under way at a time.
    pub depth: u32,
    /// When it begins, unless it waits for others.
    pub start_ns: u64,
    /// Streams that must have finished before this one starts.
    pub after: Vec<usize>,
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct ReplicationConfig {
    /// Of all that is random.
    pub seed: u64,
    /// The network.
    pub fabric: Fabric,
    /// Its cables.
    pub cable: LinkConfig,
    /// Path MTU.
    pub mtu: Mtu,
    /// Hosts with loss on the last cable to them.
    pub losses: Vec<(usize, f64)>,
    /// Bytes in flight.
    pub window_bytes: u32,
    /// Code of the senders' retransmission timeout. Only losses of last packets need it.
    pub timeout: u8,
    /// What controls the senders.
    pub control: RateControl,
    /// Minimum interval between CNPs to a group's sender; 0 passes all, as in the paper.
    pub cnp_interval_ns: u64,
    /// The streams.
    pub streams: Vec<StreamPlan>,
    /// When it ends at the latest.
    pub end_ns: u64,
}

/// What came of a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamOutcome {
    /// When it began.
    pub started_ns: u64,
    /// For each message: when all receivers had it, and when it was posted.
    pub messages: Vec<(u64, u64)>,
    /// When it was over.
    pub ended_ns: Option<u64>,
    bytes: u32,
}

impl StreamOutcome {
    /// Median time from posting a message until all receivers had it.
    pub fn median_ns(&self) -> u64 {
        let mut times: Vec<u64> = self.messages.iter().map(|(done, from)| done - from).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(0)
    }

    /// Gbit/s that each receiver got between two times.
    pub fn gbps_between(&self, from_ns: u64, to_ns: u64) -> f64 {
        let within = |done: u64| done > from_ns && done <= to_ns;
        let count = self.messages.iter().filter(|(done, _)| within(*done)).count();
        count as f64 * f64::from(self.bytes) * 8.0 / (to_ns - from_ns).max(1) as f64
    }

    /// Gbit/s that each receiver got, from the first message to the last.
    pub fn gbps(&self) -> f64 {
        let end = self.messages.last().map_or(0, |(done, _)| *done);
        self.gbps_between(self.started_ns, end)
    }
}

/// Runs an experiment.
///
/// # Panics
/// If the plan names hosts that are not there.
pub fn replication(config: &ReplicationConfig) -> Vec<StreamOutcome> {
    let mut world = build(config);
    for (host, probability) in &config.losses {
        let faults = Faults { loss: Loss::Iid(Prob::new(*probability)), ..Faults::default() };
        let link = last_link(&world, HostId(*host));
        world.network_mut().link_mut(link).set_faults(faults);
    }
    let mut app = Replication::connect(&mut world, config);
    world.run_until(&mut app, Time::from_nanos(config.end_ns));
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    app.streams.into_iter().map(|stream| stream.outcome).collect()
}

fn build(config: &ReplicationConfig) -> World {
    let hosts = match config.fabric {
        Fabric::Star(hosts) | Fabric::TwoRacks(hosts) => hosts,
        Fabric::FatTree(k) => k * k * k / 4,
    };
    let addrs = Topology::ipv4(hosts);
    let topology = match config.fabric {
        Fabric::Star(_) => star(config.seed, &addrs, config.cable),
        Fabric::TwoRacks(_) => leaf_spine(config.seed, [2, 2], &addrs, config.cable),
        Fabric::FatTree(k) => fat_tree(config.seed, k, &addrs, config.cable),
    };
    let configs = addrs.iter().enumerate().map(|(index, addr)| HostConfig {
        nics: vec![NicConfig {
            window_bytes: config.window_bytes,
            ..NicConfig::new(*addr, [index as u8; 32])
        }],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 0,
    });
    World::new(config.seed, topology, configs.collect())
}

/// The link by which a host is reached.
fn last_link(world: &World, host: HostId) -> LinkId {
    let (network, node) = (world.network(), world.node_of(host));
    let cables = network.cables();
    cables.into_iter().find(|link| network.end_of(*link) == node).expect("every host has a cable")
}

/// All streams.
struct Replication {
    streams: Vec<Stream>,
    /// What completes at each host: streams, and their parts there.
    at_host: Vec<Vec<(usize, usize)>>,
}

impl Replication {
    fn connect(world: &mut World, config: &ReplicationConfig) -> Replication {
        let control = Control::new(world, true);
        let mut ids = IdPool::default();
        let factory: Option<Arc<dyn ControllerFactory>> = config.control.factory();
        let streams: Vec<Stream> = config
            .streams
            .iter()
            .map(|plan| {
                Stream::connect(world, config, plan.clone(), factory.as_ref(), (&control, &mut ids))
            })
            .collect();
        let mut at_host = vec![Vec::new(); world.nic_count()];
        for (index, stream) in streams.iter().enumerate() {
            for (part, end) in stream.ends.iter().enumerate() {
                at_host[end.host].push((index, part));
            }
            if stream.plan.after.is_empty() {
                world.wake_at(Time::from_nanos(stream.plan.start_ns), index as u64);
            }
        }
        Replication { streams, at_host }
    }

    /// Starts the streams that waited for a finished one.
    fn begin_next(&mut self, world: &mut World) {
        for index in 0..self.streams.len() {
            let stream = &self.streams[index];
            let is_over = |other: &usize| self.streams[*other].outcome.ended_ns.is_some();
            let after = &stream.plan.after;
            if !stream.is_started && !after.is_empty() && after.iter().all(is_over) {
                self.streams[index].start(world);
            }
        }
    }
}

impl App for Replication {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        self.streams[token as usize].start(world);
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        for position in 0..self.at_host[nic.0].len() {
            let (index, part) = self.at_host[nic.0][position];
            let mut polled = [Completion::default(); 16];
            let cq = self.streams[index].ends[part].cq;
            let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
            for completion in &polled[..count] {
                self.streams[index].on_completion(world, part, completion);
            }
            any |= count > 0;
            if count > 0 && self.streams[index].outcome.ended_ns.is_some() {
                self.begin_next(world);
            }
        }
        any
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.streams.iter().all(|stream| stream.outcome.ended_ns.is_some())
    }
}
