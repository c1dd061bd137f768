//! Flows of WRITEs through a switched network, each with a rate controller: throughput, fairness
//! and loss.

use std::sync::Arc;

use bowline_link::LinkConfig;
use bowline_nic::rate::{Feedback, Grantor};
use bowline_nic::{
    Access, Buffer, Completion, Connect, ControllerFactory, CqId, MrKey, Mtu, NicConfig, QpInit,
    QpType, RateControl, RecvWr, Region, Remote, SendOp, SendWr, Sge, Time, TxCaps, WcStatus,
};
use bowline_wire::Qpn;

use crate::net::{Ecmp, Network, Spray, Topology, fat_tree};
use crate::world::{App, HostConfig, NicId, RxId, TxId, World};

/// The network topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One switch; the delay of each host's cable, in nanoseconds.
    Star(Vec<u64>),
    /// A fully populated fat tree of switches with this many ports.
    FatTree {
        /// Ports.
        k: usize,
        /// Packets are sprayed over the paths, instead of one path per flow.
        spray: bool,
    },
}

/// A flow from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlan {
    /// Who sends.
    pub from: usize,
    /// To whom.
    pub to: usize,
    /// How much; without end if `None`.
    pub bytes: Option<u64>,
    /// When it begins.
    pub start_ns: u64,
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct FlowsConfig {
    /// Seed of all randomness.
    pub seed: u64,
    /// The network.
    pub shape: Shape,
    /// Its cables.
    pub cable: LinkConfig,
    /// The transport of the flows: RC, or XP, whose receivers count what arrives.
    pub transport: QpType,
    /// The flows' rate control.
    pub control: RateControl,
    /// The flows.
    pub flows: Vec<FlowPlan>,
    /// When it ends at the latest.
    pub end_ns: u64,
    /// How often throughput is sampled.
    pub sample_ns: u64,
}

impl FlowsConfig {
    /// Whether flows of this transport are controlled by credit.
    fn grants_credit(&self, transport: QpType) -> bool {
        self.transport == transport && matches!(self.control, RateControl::Eqds(_))
    }

    fn credit_bps(&self) -> u64 {
        (self.cable.rate_bps.unwrap_or(u64::MAX) as f64 * CREDIT_SHARE) as u64
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct FlowsOutcome {
    /// When each flow completed, after its start.
    pub completed_ns: Vec<Option<u64>>,
    /// Gbit/s of each flow in each sample.
    pub gbps: Vec<Vec<f64>>,
    /// Packets dropped at a full queue.
    pub drops: u64,
    /// Most bytes in one queue.
    pub peak_queue_bytes: u64,
}

impl FlowsOutcome {
    /// Jain's index of the flows' throughput from sample `from` on.
    pub fn jain(&self, from: usize) -> f64 {
        let rates: Vec<f64> = self.gbps.iter().map(|flow| flow[from..].iter().sum()).collect();
        jain(&rates)
    }
}

/// Jain's fairness index: 1 if all have the same, 1/n if one has everything.
pub fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    if squares == 0.0 { 1.0 } else { sum * sum / (rates.len() as f64 * squares) }
}

const MTU: Mtu = Mtu::B4096;
/// Bytes of a WRITE, and WRITEs outstanding.
const PIECE: u32 = 64 << 10;
const DEPTH: u32 = 8;
/// Receives kept posted where the receiver counts.
const RECEIVES: u32 = 64;
/// Credit comes in units of two packets, at slightly less than the receiver's link rate.
const QUANTUM: u64 = 8 << 10;
const CREDIT_SHARE: f64 = 0.98;
/// Tokens of timers above the flows' own.
const SAMPLE: u64 = 1 << 32;
const GRANTS: u64 = 1 << 33;
const CREDIT: u64 = 1 << 34;

/// Runs an experiment.
///
/// # Panics
/// If the plan names hosts that are not there.
pub fn flows(config: &FlowsConfig) -> FlowsOutcome {
    let mut world = build(config);
    let mut app = Flows::connect(&mut world, config);
    world.run_until(&mut app, Time::from_nanos(config.end_ns));
    app.outcome(&world)
}

fn build(config: &FlowsConfig) -> World {
    let (hosts, topology) = match &config.shape {
        Shape::Star(delays) => (delays.len(), star(config, delays)),
        Shape::FatTree { k, spray } => {
            let hosts = k * k * k / 4;
            let mut topology = fat_tree(config.seed, *k, &Topology::ipv4(hosts), config.cable);
            let spray = *spray;
            topology.network.set_switches(|_| match spray {
                true => Box::new(Spray::round_robin()),
                false => Box::new(Ecmp::by_flow_and_qpn()),
            });
            (hosts, topology)
        }
    };
    // Over XP, NICs grant credit themselves.
    let grant_bps = config.grants_credit(QpType::Xp).then(|| config.credit_bps());
    let configs = Topology::ipv4(hosts).into_iter().enumerate().map(|(i, addr)| HostConfig {
        nics: vec![NicConfig {
            window_bytes: 1 << 20,
            grant_bps,
            ..NicConfig::new(addr, [i as u8; 32])
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

fn star(config: &FlowsConfig, delays: &[u64]) -> Topology {
    let mut network = Network::new(config.seed);
    let switch = network.add_switch();
    let hosts = Topology::ipv4(delays.len())
        .into_iter()
        .zip(delays)
        .map(|(addr, delay_ns)| {
            let host = network.add_host(addr);
            network.connect(host, switch, LinkConfig { delay_ns: *delay_ns, ..config.cable });
            host
        })
        .collect();
    network.route();
    Topology { network, hosts }
}

struct Flow {
    plan: FlowPlan,
    qpn: Qpn,
    cq: CqId,
    source: MrKey,
    target: MrKey,
    /// The receiving QP, if the receiver counts.
    arrival: Option<(Qpn, CqId)>,
    started: bool,
    posted: u64,
    /// Completed at the sender.
    sent: u64,
    done: u64,
    completed_ns: Option<u64>,
    sampled: u64,
    gbps: Vec<f64>,
}

struct Flows {
    flows: Vec<Flow>,
    /// Flows that begin or end at a host.
    of_host: Vec<Vec<usize>>,
    /// One per receiver, if credit controls the rate.
    grantors: Option<Vec<Grantor>>,
    /// Delay from a receiver to a sender.
    delays: Vec<u64>,
    sample_ns: u64,
}

impl Flows {
    fn connect(world: &mut World, config: &FlowsConfig) -> Flows {
        let hosts = world.nic_count();
        let factory = config.control.factory();
        let flows: Vec<Flow> = config
            .flows
            .iter()
            .enumerate()
            .map(|(index, plan)| {
                connect_flow(world, index, *plan, config.transport, factory.clone())
            })
            .collect();
        let mut of_host = vec![Vec::new(); hosts];
        for (index, flow) in flows.iter().enumerate() {
            of_host[flow.plan.from].push(index);
            if flow.arrival.is_some() {
                of_host[flow.plan.to].push(index);
            }
        }
        // RC has no packet that could carry credit: the program grants it.
        let grantor = Grantor::new(config.credit_bps(), QUANTUM);
        let grantors = config.grants_credit(QpType::Rc).then(|| vec![grantor; hosts]);
        let delays = match &config.shape {
            Shape::Star(delays) => delays.clone(),
            // Six cables at most.
            Shape::FatTree { .. } => vec![3 * config.cable.delay_ns; hosts],
        };
        world.wake_at(Time::from_nanos(config.sample_ns), SAMPLE);
        Flows { flows, of_host, grantors, delays, sample_ns: config.sample_ns }
    }

    fn start(&mut self, world: &mut World, index: usize) {
        let flow = &mut self.flows[index];
        flow.started = true;
        let plan = flow.plan;
        if let Some(grantors) = &mut self.grantors {
            // The request arrives with the first packet.
            grantors[plan.to].want(index, plan.bytes.unwrap_or(u64::MAX));
            let at = world.now().plus_nanos(self.delays[plan.from] + self.delays[plan.to]);
            world.wake_at(at, GRANTS | plan.to as u64);
        }
        self.post(world, index);
    }

    fn post(&mut self, world: &mut World, index: usize) -> bool {
        let flow = &mut self.flows[index];
        let mut any = false;
        while flow.started && flow.posted - flow.sent < u64::from(DEPTH * PIECE) {
            let left = flow.plan.bytes.map_or(u64::MAX, |bytes| bytes - flow.posted);
            let len = left.min(PIECE.into()) as u32;
            if len == 0 {
                break;
            }
            let remote = Remote { addr: 0, rkey: flow.target.0 };
            let sges = [Sge::new(flow.source, 0, len)];
            let op = match flow.arrival {
                Some(_) => SendOp::WriteImm(remote, 0),
                None => SendOp::Write(remote),
            };
            let wr = SendWr::new(u64::from(len), op, &sges);
            let now = world.now();
            let nic = world.nic_mut(NicId(flow.plan.from));
            nic.post_send(now, flow.qpn, &wr).expect("the queue has room");
            flow.posted += u64::from(len);
            any = true;
        }
        any
    }

    /// Sends a receiver's next grants.
    fn grant(&mut self, world: &mut World, host: usize) {
        let Some(grantors) = &mut self.grantors else { return };
        let (now, grantor) = (world.now(), &mut grantors[host]);
        while let Some((index, bytes)) = grantor.next(now) {
            let delay = self.delays[host] + self.delays[self.flows[index].plan.from];
            world.wake_at(now.plus_nanos(delay), CREDIT | bytes << 40 | index as u64);
        }
        if let Some(at) = grantor.next_at() {
            world.wake_at(at, GRANTS | host as u64);
        }
    }

    fn sample(&mut self, world: &mut World) {
        for flow in &mut self.flows {
            let bytes = flow.done - std::mem::replace(&mut flow.sampled, flow.done);
            flow.gbps.push(bytes as f64 * 8.0 / self.sample_ns as f64);
        }
        world.wake_at(world.now().plus_nanos(self.sample_ns), SAMPLE);
    }

    fn outcome(self, world: &World) -> FlowsOutcome {
        let network = world.network().stats();
        FlowsOutcome {
            completed_ns: self.flows.iter().map(|flow| flow.completed_ns).collect(),
            gbps: self.flows.into_iter().map(|flow| flow.gbps).collect(),
            drops: network.queue_drops,
            peak_queue_bytes: network.queue_peak_bytes,
        }
    }
}

fn connect_flow(
    world: &mut World,
    index: usize,
    plan: FlowPlan,
    transport: QpType,
    factory: Option<Arc<dyn ControllerFactory>>,
) -> Flow {
    let now = world.now();
    let [from, to] = [plan.from, plan.to].map(|host| {
        let nic = world.nic_mut(NicId(host));
        let pd = nic.alloc_pd().expect("room");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = Region::owned(Buffer::new(PIECE as usize));
        let key = nic.register(pd, region, 0, access).expect("room");
        let cq = nic.create_cq(2 * DEPTH + RECEIVES).expect("room");
        let init = QpInit {
            max_send_wr: 2 * DEPTH,
            max_recv_wr: RECEIVES,
            ..QpInit::new(transport, pd, cq)
        };
        (nic.create_qp(&init).expect("room"), cq, key)
    });
    for (host, qpn, peer, remote) in
        [(plan.from, from.0, plan.to, to.0), (plan.to, to.0, plan.from, from.0)]
    {
        let dst = world.nic(NicId(peer)).config().addr;
        let connect = Connect { path_mtu: MTU, timeout: 10, ..Connect::new(dst, remote) };
        world.nic_mut(NicId(host)).connect(now, qpn, &connect).expect("legal transitions");
    }
    let counts_arrivals = !transport.descriptor().reliable;
    for _ in 0..if counts_arrivals { RECEIVES } else { 0 } {
        let posted = world.nic_mut(NicId(plan.to)).post_recv(to.0, &RecvWr::new(0, &[]));
        posted.expect("the queue has room");
    }
    let set = world.nic_mut(NicId(plan.from)).set_rate_controller(now, from.0, factory);
    set.expect("the QP exists");
    world.wake_at(Time::from_nanos(plan.start_ns), index as u64);
    Flow {
        plan,
        qpn: from.0,
        cq: from.1,
        source: from.2,
        target: to.2,
        arrival: counts_arrivals.then_some((to.0, to.1)),
        started: false,
        posted: 0,
        sent: 0,
        done: 0,
        completed_ns: None,
        sampled: 0,
        gbps: Vec::new(),
    }
}

impl App for Flows {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        let low = token as u32 as usize;
        if token & SAMPLE != 0 {
            self.sample(world);
        } else if token & GRANTS != 0 {
            self.grant(world, low);
        } else if token & CREDIT != 0 {
            let plan = self.flows[low].plan;
            let (now, credit) = (world.now(), Feedback::Credit(token >> 40));
            let nic = world.nic_mut(NicId(plan.from));
            nic.rate_feedback(now, self.flows[low].qpn, &credit).expect("the QP exists");
        } else {
            self.start(world, low);
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        for position in 0..self.of_host[nic.0].len() {
            let index = self.of_host[nic.0][position];
            let flow = &mut self.flows[index];
            let arrival = flow.arrival.filter(|_| flow.plan.to == nic.0);
            let cq = arrival.map_or(flow.cq, |(_, cq)| cq);
            let mut polled = [Completion::default(); DEPTH as usize];
            let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
            any |= count > 0;
            let polled = &polled[..count];
            let no_failures = polled.iter().all(|done| done.status == WcStatus::Success);
            assert!(no_failures, "no WRITE fails");
            if let Some((qpn, _)) = arrival {
                flow.done += polled.iter().map(|done| u64::from(done.byte_len)).sum::<u64>();
                for _ in polled {
                    let posted = world.nic_mut(nic).post_recv(qpn, &RecvWr::new(0, &[]));
                    posted.expect("one has ended");
                }
            } else {
                flow.sent += polled.iter().map(|done| done.wr_id).sum::<u64>();
                if flow.arrival.is_none() {
                    flow.done = flow.sent;
                }
            }
            if count > 0 && flow.plan.bytes == Some(flow.done) && flow.completed_ns.is_none() {
                let started = Time::from_nanos(flow.plan.start_ns);
                flow.completed_ns = Some(world.now().nanos_since(started));
            }
            if arrival.is_none() {
                any |= self.post(world, index);
            }
        }
        any
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.flows.iter().all(|flow| flow.completed_ns.is_some())
    }
}

#[cfg(test)]
mod tests;
