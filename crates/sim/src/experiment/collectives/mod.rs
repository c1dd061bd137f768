//! Collective operations of ranks behind one switch, with bursts of cross traffic: how long each
//! takes over RC, over selective repeat and over XP (OptiNIC, Figures 5 and 6).

mod ranks;

use bowline_collective::timeout::Rule;
use bowline_collective::{Algorithm, Bounds, Deadline, GroupConfig, Operation, Request, SdrScheme};
use bowline_link::LinkConfig;
use bowline_nic::{Mtu, NicConfig, Time, TxCaps};

use crate::net::{Topology, star};
use crate::traffic::{Background, PoissonConfig, PoissonFlows, Sizes, WithBackground};
use crate::world::{HostConfig, HostId, RxId, TxId, World};
use ranks::Ranks;

const MTU: Mtu = Mtu::B4096;
/// What all peers of a rank may send to it at once: ten times the bandwidth-delay product of a
/// port, and what the switch can buffer, so that without bursts nothing is lost.
const RINGS_BYTES: u32 = 512 << 10;
const MAX_SLOTS: u32 = 8;
/// A host's own port queues its packets and drops none, as a NIC does.
const HOST_QUEUE_BYTES: u64 = 1 << 30;
/// Nothing takes longer.
const END: Time = Time::from_millis(600_000);

/// What carries the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Go-back-N, with this ACK timeout: 4.096 us times 2 to this power.
    Rc(u8),
    /// XP without loss: missing data is requested at once.
    Exact,
    /// One of SDR's schemes.
    Sdr(SdrScheme),
    /// XP: the share of bytes in a million that may be missing, and the rule of its deadline.
    Xp(u32, Rule),
}

impl Carrier {
    /// The guarantees of operations, unless they run over RC.
    fn bounds(self) -> Option<Bounds> {
        match self {
            Carrier::Rc(_) | Carrier::Sdr(_) => None,
            Carrier::Exact => Some(Bounds::EXACT),
            Carrier::Xp(max_loss_ppm, rule) => {
                let deadline = Deadline::Adaptive(rule);
                Some(Bounds { deadline, max_loss_ppm, ..Bounds::EXACT })
            }
        }
    }
}

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// All get the sum.
    Allreduce,
    /// All get the blocks of all.
    Allgather,
    /// Each gets a block of the sum.
    ReduceScatter,
}

impl Collective {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Collective::Allreduce => "allreduce",
            Collective::Allgather => "allgather",
            Collective::ReduceScatter => "reduce-scatter",
        }
    }

    /// Bytes that a rank receives, as a multiple of the tensor's size.
    fn share(self, ranks: u32) -> f64 {
        let once = f64::from(ranks - 1) / f64::from(ranks);
        if self == Collective::Allreduce { 2.0 * once } else { once }
    }
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct CollectivesConfig {
    /// Seed of all randomness.
    pub seed: u64,
    /// How many ranks.
    pub ranks: u32,
    /// What they do.
    pub collective: Collective,
    /// Bytes of the whole tensor.
    pub bytes: u64,
    /// How often, besides one for warm-up.
    pub operations: usize,
    /// The transport.
    pub carrier: Carrier,
    /// Every port of the switch.
    pub cable: LinkConfig,
    /// Cross traffic: its share of each port's rate.
    pub load: f64,
    /// Bytes of a burst.
    pub burst_bytes: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct CollectivesOutcome {
    /// How long each operation took: until the last rank was done.
    pub times_ns: Vec<u64>,
    /// Bytes that ranks should have received in messages that may be lost or repaired.
    pub expected_bytes: u64,
    /// Bytes of these that were repaired.
    pub repaired_bytes: u64,
    /// Bytes of these that were missing in the end.
    pub missing_bytes: u64,
    /// Packets dropped at a full queue, of operations and bursts.
    pub drops: u64,
    /// All packets.
    pub packets: u64,
}

impl CollectivesConfig {
    /// Operations on ranks at 100 Gbit/s behind a switch that has 512 KiB for each port.
    pub fn new(collective: Collective, bytes: u64, ranks: u32, carrier: Carrier) -> Self {
        let rate_bps = Some(100_000_000_000);
        CollectivesConfig {
            seed: 1,
            ranks,
            collective,
            bytes,
            operations: 100,
            carrier,
            cable: LinkConfig { rate_bps, delay_ns: 1_000, queue_bytes: 512 << 10, ecn: None },
            load: 0.1,
            burst_bytes: 1 << 20,
        }
    }

    /// How long it takes at the rate of the ports, without bursts.
    pub fn ideal_ns(&self) -> f64 {
        let bytes = self.bytes as f64 * self.collective.share(self.ranks);
        self.cable.transmit_ns(bytes as u64) as f64 + 4.0 * self.cable.delay_ns as f64
    }

    fn request(&self) -> Request {
        let all = self.bytes as usize / 4;
        let block = all / self.ranks as usize;
        let operation = match self.collective {
            Collective::Allreduce => Operation::Allreduce { count: block * self.ranks as usize },
            Collective::Allgather => Operation::Allgather { count: block },
            Collective::ReduceScatter => Operation::ReduceScatter { count: block },
        };
        Request { algorithm: Algorithm::Direct, ..Request::new(operation) }
    }

    fn group(&self) -> GroupConfig {
        let each = RINGS_BYTES / (self.ranks - 1).max(1);
        let slots = (each / MTU.bytes()).clamp(2, MAX_SLOTS);
        let ack_timeout = match self.carrier {
            Carrier::Rc(timeout) => timeout,
            _ => GroupConfig::default().ack_timeout,
        };
        GroupConfig {
            // Whole packets.
            slot_bytes: (each / slots / MTU.bytes()).max(1) * MTU.bytes(),
            slots: slots as u16,
            express_slots: if self.carrier.bounds().is_some() { slots as u16 } else { 0 },
            scheme: match self.carrier {
                Carrier::Sdr(scheme) => Some(scheme),
                _ => None,
            },
            reorder_ns: 5_000,
            ack_timeout,
            ..GroupConfig::default()
        }
    }
}

/// Runs an experiment; `None` if an operation fails or does not end.
///
/// # Panics
/// If there are fewer than two ranks.
pub fn collectives(config: &CollectivesConfig) -> Option<CollectivesOutcome> {
    let mut world = build(config);
    let ranks = Ranks::connect(&mut world, config);
    let flows = PoissonConfig {
        hosts: config.ranks as usize,
        rate_bps: config.cable.rate_bps?,
        load: config.load,
        sizes: Sizes::Fixed(config.burst_bytes),
        start: world.now(),
        end: END,
    };
    let background = Background::new(PoissonFlows::new(config.seed, flows), MTU);
    let mut app = WithBackground { app: ranks, background };
    app.background.start(&mut world);
    world.run_until(&mut app, END);
    let (drops, packets) = (world.network().stats().queue_drops, world.stats().sent);
    app.app.outcome().map(|outcome| CollectivesOutcome { drops, packets, ..outcome })
}

fn build(config: &CollectivesConfig) -> World {
    let addrs = Topology::ipv4(config.ranks as usize);
    let hosts = addrs.iter().enumerate().map(|(i, addr)| {
        let mut nic = NicConfig::new(*addr, [i as u8 + 1; 32]);
        nic.max_mtu = MTU;
        HostConfig {
            nics: vec![nic],
            tx_caps: TxCaps::SINGLE,
            tx_batch: 64,
            tx_id: TxId::Burst,
            rx_id: RxId::Known,
            coalesce_ns: 0,
            ring_packets: 4096,
        }
    });
    let topology = star(config.seed, &addrs, config.cable);
    let mut world = World::new(config.seed, topology, hosts.collect());
    let own_port = LinkConfig { queue_bytes: HOST_QUEUE_BYTES, ..config.cable };
    for host in 0..addrs.len() {
        let other = addrs[(host + 1) % addrs.len()];
        let link = world.link_from(HostId(host), other).expect("hosts are routed");
        world.network_mut().link_mut(link).set_config(Time::ZERO, own_port);
    }
    world
}

#[cfg(test)]
mod tests;
