//! A replicated store under load: clients write to a primary, which replicates to two others by a
//! group, by fan-out or along a chain, and clients read from any of the three.

mod pipe;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_link::LinkConfig;
use bowline_multicast::plan::{GroupSpec, IdPool, MemberSpec};
use bowline_multicast::{GroupKey, Origin, Place, Region as GroupRegion, RootConfig};
use bowline_nic::{
    Access, Buffer, Completion, Connect, ControllerFactory, CqId, MrKey, Mtu, NicConfig, PdId,
    QpInit, QpType, RateControl, RecvWr, Region, Remote, Time, TxCaps, WcOpcode, WcStatus,
};
use bowline_wire::{Psn, Qpn, ROCE_UDP_PORT};

use self::pipe::{CHUNK_BYTES, DEPTH, Pipe};
use super::replication::Way;
use crate::multicast_storm::Control;
use crate::net::{Topology, fat_tree};
use crate::rng::SimRng;
use crate::traffic::Sizes;
use crate::world::{App, HostConfig, HostId, NicId, RxId, TxId, World};

/// Stream of draws about requests.
const STREAM: u64 = 0x7374_6f72;
/// Receives that every queue pair keeps posted: more than can be in flight to it.
const RECEIVES: u32 = 2 * DEPTH;
/// Completions taken at a time.
const POLLED: usize = 16;
/// Copies of what is stored.
const COPIES: usize = 3;

/// An experiment.
#[derive(Clone, Debug)]
pub struct StorageConfig {
    /// Of all that is random.
    pub seed: u64,
    /// Ports of the switches of a fully populated fat tree. Half of its pods hold clients, the
    /// other half storage.
    pub k: usize,
    /// Its cables.
    pub cable: LinkConfig,
    /// Path MTU.
    pub mtu: Mtu,
    /// What controls senders.
    pub control: RateControl,
    /// Least time between two CNPs for a group's sender.
    pub cnp_interval_ns: u64,
    /// Bytes in flight.
    pub window_bytes: u32,
    /// How primaries replicate.
    pub way: Way,
    /// Groups of which each storage node is the primary.
    pub groups_per_node: usize,
    /// Bytes of a request.
    pub sizes: Sizes,
    /// Share of a storage node's link that arriving writes take: each is written three times,
    /// whatever the method. There are as many reads as writes.
    pub load: f64,
    /// Requests that arrive before this do not count.
    pub warm_up_ns: u64,
    /// No requests arrive after this.
    pub arrivals_end_ns: u64,
    /// When it ends, whether all requests are done or not.
    pub end_ns: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct StorageOutcome {
    /// How long each read took.
    pub reads_ns: Vec<u64>,
    /// How long each write took, until all copies were there.
    pub writes_ns: Vec<u64>,
    /// Requests that were not done at the end.
    pub unfinished: usize,
}

impl StorageOutcome {
    /// Mean time of a read.
    pub fn mean_read_ns(&self) -> f64 {
        mean(&self.reads_ns)
    }

    /// Mean time of a write.
    pub fn mean_write_ns(&self) -> f64 {
        mean(&self.writes_ns)
    }
}

fn mean(times: &[u64]) -> f64 {
    times.iter().sum::<u64>() as f64 / times.len().max(1) as f64
}

/// Runs an experiment.
///
/// # Panics
/// If there is no fat tree of `k`, or a connection fails.
pub fn storage(config: &StorageConfig) -> StorageOutcome {
    let mut world = build(config);
    let mut store = Store::new(&mut world, config.clone());
    world.run_until(&mut store, Time::from_nanos(config.end_ns));
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    store.outcome()
}

fn build(config: &StorageConfig) -> World {
    let addrs = Topology::ipv4(config.k * config.k * config.k / 4);
    let topology = fat_tree(config.seed, config.k, &addrs, config.cable);
    let hosts = addrs.iter().enumerate().map(|(index, addr)| HostConfig {
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
    World::new(config.seed, topology, hosts.collect())
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A read's request, in flight to a copy.
    Request,
    /// A read's bytes, in flight to the client.
    Data,
    /// A write's bytes, in flight to the primary.
    ToPrimary,
    /// In flight from there to the others, of which this many do not have them yet.
    Replicating(usize),
    /// Along a chain, to the copy of this number.
    Chain(usize),
    /// Back along the chain, to the copy of this number.
    Back(usize),
    /// The primary's reply that all have it.
    Answer,
    Done,
}

struct Job {
    from_ns: u64,
    ended_ns: u64,
    is_read: bool,
    client: usize,
    group: usize,
    /// Which copy is read.
    copy: usize,
    bytes: u64,
    stage: Stage,
}

/// The purpose of a connection between two hosts: messages of one kind do not wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Reads,
    Writes,
    Group(usize),
}

/// What all connections of a host share.
#[derive(Clone, Copy)]
struct Shared {
    pd: PdId,
    cq: CqId,
    key: MrKey,
}

struct Store {
    config: StorageConfig,
    rng: SimRng,
    factory: Option<Arc<dyn ControllerFactory>>,
    mean_gap_ns: f64,
    next_ns: f64,
    clients: Vec<usize>,
    /// The hosts of each group, the primary first.
    groups: Vec<[usize; COPIES]>,
    hosts: Vec<Shared>,
    pipes: Vec<Pipe>,
    /// By sender, receiver and use; groups have themselves as receiver.
    by_ends: BTreeMap<(usize, usize, Use), usize>,
    by_qpn: BTreeMap<(usize, Qpn), usize>,
    jobs: Vec<Job>,
    open: usize,
}

impl Store {
    fn new(world: &mut World, config: StorageConfig) -> Store {
        let mut rng = SimRng::new(config.seed, STREAM);
        let (mut clients, mut nodes) = (Vec::new(), Vec::new());
        for host in 0..world.nic_count() {
            let pod = host % config.k;
            if pod < config.k / 2 { clients.push(host) } else { nodes.push(host) }
        }
        let mut groups = Vec::new();
        for (index, primary) in nodes.iter().enumerate() {
            for _ in 0..config.groups_per_node {
                let others = nodes.len() as u64;
                let first = rng.range(1, others - 1);
                let second = (first + rng.range(1, others - 2) - 1) % (others - 1) + 1;
                let other = |step: u64| nodes[(index + step as usize) % nodes.len()];
                groups.push([*primary, other(first), other(second)]);
            }
        }
        let hosts = (0..world.nic_count()).map(|host| share(world, host)).collect();
        let rate_bps = config.cable.rate_bps.unwrap_or(100_000_000_000) as f64;
        let writes_bps = config.load * rate_bps * nodes.len() as f64 / COPIES as f64;
        let mean_gap_ns = config.sizes.mean() * 8.0 / (2.0 * writes_bps) * 1e9;
        let mut store = Store {
            factory: config.control.factory(),
            config,
            rng,
            mean_gap_ns,
            next_ns: 0.0,
            clients,
            groups,
            hosts,
            pipes: Vec::new(),
            by_ends: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            jobs: Vec::new(),
            open: 0,
        };
        // Flows are spread over the tree, whatever the method.
        let control = Control::new(world, true);
        if store.config.way == Way::Group {
            store.make_groups(world, &control);
        }
        store.await_next(world);
        store
    }

    fn outcome(self) -> StorageOutcome {
        let mut outcome = StorageOutcome::default();
        for job in self.jobs.iter().filter(|job| job.from_ns >= self.config.warm_up_ns) {
            let times = if job.is_read { &mut outcome.reads_ns } else { &mut outcome.writes_ns };
            match job.stage {
                Stage::Done => times.push(job.ended_ns - job.from_ns),
                _ => outcome.unfinished += 1,
            }
        }
        outcome
    }

    fn await_next(&mut self, world: &mut World) {
        // Of 1 - x, which is never 0. `libm` gives the same digits on every machine.
        self.next_ns -= libm::log(1.0 - self.rng.unit()) * self.mean_gap_ns;
        world.wake_at(Time::from_nanos(self.next_ns as u64), 0);
    }

    /// A request comes.
    fn begin(&mut self, world: &mut World) {
        let client = self.rng.pick(&self.clients);
        let group = self.rng.below(self.groups.len() as u64) as usize;
        let (is_read, copy) = (self.rng.percent(50), self.rng.below(COPIES as u64) as usize);
        let bytes = self.config.sizes.draw(&mut self.rng);
        let stage = if is_read { Stage::Request } else { Stage::ToPrimary };
        let from_ns = world.now().as_nanos();
        let job = self.jobs.len();
        self.jobs.push(Job { from_ns, ended_ns: 0, is_read, client, group, copy, bytes, stage });
        self.open += 1;
        if is_read {
            let to = self.groups[group][copy];
            self.send(world, (client, to, Use::Reads), job, 0);
        } else {
            let to = self.groups[group][0];
            self.send(world, (client, to, Use::Writes), job, bytes);
        }
    }

    /// A message that announces itself has arrived.
    fn received(&mut self, world: &mut World, job: usize) {
        let Job { client, group, copy, bytes, stage, .. } = self.jobs[job];
        let copies = self.groups[group];
        let next = |stage| (stage, Use::Group(group));
        let ((stage, use_of), ends, bytes) = match stage {
            Stage::Request => ((Stage::Data, Use::Reads), (copies[copy], client), bytes),
            Stage::ToPrimary if self.config.way != Way::Chain => return self.replicate(world, job),
            Stage::ToPrimary => (next(Stage::Chain(1)), (copies[0], copies[1]), bytes),
            Stage::Chain(at) if at + 1 < COPIES => {
                (next(Stage::Chain(at + 1)), (copies[at], copies[at + 1]), bytes)
            }
            Stage::Chain(at) => (next(Stage::Back(at - 1)), (copies[at], copies[at - 1]), 0),
            Stage::Back(0) => return self.answer(world, job),
            Stage::Back(at) => (next(Stage::Back(at - 1)), (copies[at], copies[at - 1]), 0),
            Stage::Data | Stage::Answer => return self.end(world, job),
            Stage::Replicating(_) | Stage::Done => return,
        };
        self.jobs[job].stage = stage;
        self.send(world, (ends.0, ends.1, use_of), job, bytes);
    }

    /// The primary has a write, and sends it to the others at once.
    fn replicate(&mut self, world: &mut World, job: usize) {
        let Job { group, bytes, .. } = self.jobs[job];
        let copies = self.groups[group];
        let targets: &[usize] = match self.config.way {
            Way::Group => &copies[..1],
            Way::FanOut | Way::Chain => &copies[1..],
        };
        self.jobs[job].stage = Stage::Replicating(targets.len());
        for target in targets {
            self.send(world, (copies[0], *target, Use::Group(group)), job, bytes);
        }
    }

    /// One of the primary's messages is acknowledged.
    fn acknowledged(&mut self, world: &mut World, job: usize) {
        let Stage::Replicating(left) = self.jobs[job].stage else { return };
        self.jobs[job].stage = Stage::Replicating(left - 1);
        if left == 1 {
            self.answer(world, job);
        }
    }

    fn answer(&mut self, world: &mut World, job: usize) {
        let Job { client, group, .. } = self.jobs[job];
        self.jobs[job].stage = Stage::Answer;
        self.send(world, (self.groups[group][0], client, Use::Writes), job, 0);
    }

    fn end(&mut self, world: &World, job: usize) {
        let job = &mut self.jobs[job];
        (job.stage, job.ended_ns) = (Stage::Done, world.now().as_nanos());
        self.open -= 1;
    }

    fn send(&mut self, world: &mut World, ends: (usize, usize, Use), job: usize, bytes: u64) {
        let stage = self.jobs[job].stage;
        let pipe = match self.by_ends.get(&ends) {
            Some(pipe) => *pipe,
            None => self.connect(world, ends),
        };
        let is_told = !matches!(stage, Stage::Replicating(_));
        self.pipes[pipe].push(world, job as u32, bytes, is_told);
    }

    /// Makes a connection with a pipe each way.
    fn connect(&mut self, world: &mut World, (from, to, use_of): (usize, usize, Use)) -> usize {
        let qpns = [from, to].map(|host| self.make_qp(world, host));
        for (side, peer) in [(0, 1), (1, 0)] {
            let ([host, at], now) = ([[from, to][side], [from, to][peer]], world.now());
            let connect = self.connect_to(world, at, qpns[peer]);
            world.nic_mut(NicId(host)).connect(now, qpns[side], &connect).expect("legal");
            let remote = Remote { addr: 0, rkey: self.hosts[at].key.0 };
            self.add_pipe(world, (host, at, use_of), qpns[side], remote);
        }
        self.by_ends[&(from, to, use_of)]
    }

    fn connect_to(&self, world: &World, at: usize, qpn: Qpn) -> Connect {
        // 4 ms: only losses of last packets need it.
        let (path_mtu, timeout) = (self.config.mtu, 10);
        Connect { path_mtu, timeout, ..Connect::new(world.addr_of(HostId(at)), qpn) }
    }

    fn add_pipe(&mut self, world: &mut World, ends: (usize, usize, Use), qpn: Qpn, remote: Remote) {
        let (host, now) = (ends.0, world.now());
        let nic = world.nic_mut(NicId(host));
        nic.set_rate_controller(now, qpn, self.factory.clone()).expect("the QP exists");
        for _ in 0..RECEIVES {
            nic.post_recv(qpn, &RecvWr::new(0, &[])).expect("the queue has room");
        }
        self.by_qpn.insert((host, qpn), self.pipes.len());
        self.by_ends.insert(ends, self.pipes.len());
        self.pipes.push(Pipe::new(host, qpn, self.hosts[host].key, remote));
    }

    fn make_qp(&self, world: &mut World, host: usize) -> Qpn {
        let Shared { pd, cq, .. } = self.hosts[host];
        let init =
            QpInit { max_send_wr: DEPTH, max_recv_wr: RECEIVES, ..QpInit::new(QpType::Rc, pd, cq) };
        world.nic_mut(NicId(host)).create_qp(&init).expect("room")
    }

    /// Gives all groups to the switches.
    fn make_groups(&mut self, world: &mut World, control: &Control) {
        let mut ids = IdPool::default();
        for group in 0..self.groups.len() {
            let copies = self.groups[group];
            let from = world.addr_of(HostId(copies[0]));
            let first = world.addr_of(HostId(copies[1]));
            let key = GroupKey { sender: from, id: ids.take().expect("few groups") };
            let mut members = Vec::new();
            for copy in &copies[1..] {
                let (qpn, now) = (self.make_qp(world, *copy), world.now());
                let id = ids.take().expect("few members");
                let connect = self.connect_to(world, copies[0], id);
                world.nic_mut(NicId(*copy)).connect(now, qpn, &connect).expect("legal");
                let places = vec![Place { va: 0, rkey: self.hosts[*copy].key.0 }];
                members.push(MemberSpec { addr: world.addr_of(HostId(*copy)), qpn, id, places });
            }
            let (qpn, now) = (self.make_qp(world, copies[0]), world.now());
            let connect = self.connect_to(world, copies[1], key.id);
            world.nic_mut(NicId(copies[0])).connect(now, qpn, &connect).expect("legal");
            let root = RootConfig {
                mtu: self.config.mtu.bytes(),
                cnp_interval_ns: self.config.cnp_interval_ns,
                ..RootConfig::new(
                    qpn,
                    Origin { addr: first, port: ROCE_UDP_PORT },
                    from,
                    Some(Psn::new(0)),
                )
            };
            let rkey = self.hosts[copies[1]].key.0;
            let regions = vec![GroupRegion { va: 0, len: CHUNK_BYTES, rkey }];
            let spec = GroupSpec { key, epoch: 1, regions, members, root };
            let node = world.node_of(HostId(copies[0]));
            control.install(world, node, &spec, None).expect("a right table");
            let ends = (copies[0], copies[0], Use::Group(group));
            self.add_pipe(world, ends, qpn, Remote { addr: 0, rkey });
        }
    }

    fn on_completion(&mut self, world: &mut World, host: usize, done: &Completion) {
        assert_eq!(done.status, WcStatus::Success, "no request fails");
        let pipe = self.by_qpn[&(host, done.qpn)];
        if matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm) {
            let nic = world.nic_mut(NicId(host));
            nic.post_recv(done.qpn, &RecvWr::new(0, &[])).expect("one was consumed");
            self.received(world, done.imm.expect("every notice has one") as usize);
        } else if let Some(job) = self.pipes[pipe].complete(world) {
            self.acknowledged(world, job as usize);
        }
    }
}

/// Resources shared by a host's connections: nobody reads the bytes, so all use the same memory.
fn share(world: &mut World, host: usize) -> Shared {
    let nic = world.nic_mut(NicId(host));
    let pd = nic.alloc_pd().expect("room");
    let region = Region::owned(Buffer::new(CHUNK_BYTES as usize));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    Shared {
        pd,
        cq: nic.create_cq(1 << 16).expect("room"),
        key: nic.register(pd, region, 0, access).expect("room"),
    }
}

impl App for Store {
    fn on_timer(&mut self, world: &mut World, _token: u64) {
        if self.next_ns < self.config.arrivals_end_ns as f64 {
            self.begin(world);
            self.await_next(world);
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let host = world.host_of(nic).0;
        let mut any = false;
        loop {
            let mut polled = [Completion::default(); POLLED];
            let cq = self.hosts[host].cq;
            let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
            for completion in &polled[..count] {
                self.on_completion(world, host, completion);
            }
            any |= count > 0;
            if count < POLLED {
                return any;
            }
        }
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.open == 0 && self.next_ns >= self.config.arrivals_end_ns as f64
    }
}
