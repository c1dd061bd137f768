//! Flows as RC WRITEs, beside whatever else an application does.

use std::collections::{BTreeMap, VecDeque};

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, MrKey, Mtu, PdId, QpInit, QpType, Region, Remote,
    SendOp, SendWr, Sge, Time, WcStatus,
};
use bowline_wire::Qpn;

use super::poisson::{Flow, PoissonFlows};
use crate::world::{App, HostId, NicId, World};

/// Token of the timer that starts flows; an application beside it must use others.
const START: u64 = 0xf10f_0000_0000_0000;
/// Bytes of one WRITE, and of the memory that all flows of a host read and write.
const CHUNK_BYTES: u32 = 64 << 10;
/// WRITEs of one connection that are outstanding.
const DEPTH: u32 = 4;
/// Completions taken at a time.
const POLLED: usize = 16;

/// A finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// What it was.
    pub flow: Flow,
    /// When its last byte was acknowledged.
    pub end: Time,
    /// Whether all of it was.
    pub is_complete: bool,
}

/// Runs flows: an RC connection for each pair of hosts that have any, made with the first. Flows of
/// one pair run one after the other.
pub struct Background {
    flows: PoissonFlows,
    next: Option<Flow>,
    mtu: Mtu,
    /// By source and destination.
    pairs: BTreeMap<(usize, usize), Pair>,
    /// Pairs by source and QP.
    by_qpn: BTreeMap<(usize, Qpn), (usize, usize)>,
    /// Resources that each host's flows share.
    hosts: BTreeMap<usize, Shared>,
    done: Vec<FlowRecord>,
    started: u64,
}

#[derive(Clone, Copy)]
struct Shared {
    pd: PdId,
    cq: CqId,
    key: MrKey,
}

/// A connection.
struct Pair {
    qpn: Qpn,
    local: MrKey,
    remote: Remote,
    outstanding: u32,
    is_broken: bool,
    /// Flows with unacknowledged bytes: the flow, its unposted bytes, and its unacknowledged bytes.
    flows: VecDeque<Running>,
}

struct Running {
    flow: Flow,
    to_post: u64,
    /// WRITEs that are posted and not complete.
    writes: u64,
}

impl Background {
    /// Flows between hosts, sent and received by each host's first engine.
    pub fn new(mut flows: PoissonFlows, mtu: Mtu) -> Background {
        let next = flows.next();
        Background {
            flows,
            next,
            mtu,
            pairs: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            hosts: BTreeMap::new(),
            done: Vec::new(),
            started: 0,
        }
    }

    /// Sets the first flow's timer. Call once, before the world runs.
    pub fn start(&mut self, world: &mut World) {
        if let Some(flow) = &self.next {
            world.wake_at(flow.at, START);
        }
    }

    /// Finished flows.
    pub fn done(&self) -> &[FlowRecord] {
        &self.done
    }

    /// How many have started.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Whether all flows have finished.
    pub fn is_finished(&self) -> bool {
        self.next.is_none() && self.done.len() as u64 == self.started
    }

    /// A timer has fired; returns `false` if it is not one of this traffic.
    pub fn on_timer(&mut self, world: &mut World, token: u64) -> bool {
        if token != START {
            return false;
        }
        while let Some(flow) = self.next.filter(|flow| flow.at <= world.now()) {
            self.next = self.flows.next();
            self.begin(world, flow);
        }
        self.start(world);
        true
    }

    fn begin(&mut self, world: &mut World, flow: Flow) {
        self.started += 1;
        let ends = (flow.from.0, flow.to.0);
        if !self.pairs.contains_key(&ends) {
            let pair = self.connect(world, flow.from, flow.to);
            self.by_qpn.insert((flow.from.0, pair.qpn), ends);
            self.pairs.insert(ends, pair);
        }
        let pair = self.pairs.get_mut(&ends).expect("it was just made");
        pair.flows.push_back(Running { flow, to_post: flow.bytes, writes: 0 });
        pair.post(world, flow.from);
        if pair.is_broken {
            pair.fail(world.now(), &mut self.done);
        }
    }

    fn connect(&mut self, world: &mut World, from: HostId, to: HostId) -> Pair {
        let now = world.now();
        let [source, target] = [from, to].map(|host| self.shared(world, host));
        let [qpn, peer] = [(from, source), (to, target)].map(|(host, shared)| {
            let nic = world.first_nic(host);
            let init = QpInit::new(QpType::Rc, shared.pd, shared.cq);
            let init = QpInit { max_send_wr: DEPTH, ..init };
            world.nic_mut(nic).create_qp(&init).expect("within the limits")
        });
        for (host, at, qpn, remote) in [(from, to, qpn, peer), (to, from, peer, qpn)] {
            let (nic, addr) = (world.first_nic(host), world.addr_of(at));
            let connect = Connect { path_mtu: self.mtu, ..Connect::new(addr, remote) };
            world.nic_mut(nic).connect(now, qpn, &connect).expect("legal transitions");
        }
        let remote = Remote { addr: 0, rkey: target.key.0 };
        let flows = VecDeque::new();
        Pair { qpn, local: source.key, remote, outstanding: 0, is_broken: false, flows }
    }

    fn shared(&mut self, world: &mut World, host: HostId) -> Shared {
        // Space for all that a host's pairs have outstanding.
        let cqes = DEPTH * self.flows.config().hosts as u32;
        *self.hosts.entry(host.0).or_insert_with(|| {
            let nic = world.first_nic(host);
            let engine = world.nic_mut(nic);
            let pd = engine.alloc_pd().expect("within the limits");
            let region = Region::owned(Buffer::new(CHUNK_BYTES as usize));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Shared {
                pd,
                cq: engine.create_cq(cqes).expect("within the limits"),
                key: engine.register(pd, region, 0, access).expect("within the limits"),
            }
        })
    }

    /// An engine handled something: polls completions and posts what follows. Returns whether there
    /// was anything to do.
    pub fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let host = world.host_of(nic);
        let Some(cq) = self.hosts.get(&host.0).map(|shared| shared.cq) else { return false };
        let mut any = false;
        let mut polled = [Completion::default(); POLLED];
        loop {
            let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
            for completion in &polled[..count] {
                let ends = self.by_qpn.get(&(host.0, completion.qpn));
                let Some(pair) = ends.and_then(|ends| self.pairs.get_mut(ends)) else { continue };
                pair.complete(world.now(), completion.status, &mut self.done);
                pair.post(world, host);
            }
            any |= count > 0;
            if count < POLLED {
                return any;
            }
        }
    }
}

impl Pair {
    /// Posts as much as may be outstanding.
    fn post(&mut self, world: &mut World, host: HostId) {
        let (now, nic) = (world.now(), world.first_nic(host));
        for running in &mut self.flows {
            while running.to_post > 0 && self.outstanding < DEPTH && !self.is_broken {
                let bytes = running.to_post.min(u64::from(CHUNK_BYTES));
                let sges = [Sge::new(self.local, 0, bytes as u32)];
                let wr = SendWr::new(0, SendOp::Write(self.remote), &sges);
                if world.nic_mut(nic).post_send(now, self.qpn, &wr).is_err() {
                    self.is_broken = true;
                    break;
                }
                running.to_post -= bytes;
                running.writes += 1;
                self.outstanding += 1;
            }
        }
    }

    /// A WRITE is complete: the first of those outstanding.
    fn complete(&mut self, now: Time, status: WcStatus, done: &mut Vec<FlowRecord>) {
        self.outstanding -= 1;
        self.is_broken |= status != WcStatus::Success;
        if self.is_broken {
            return self.fail(now, done);
        }
        let Some(first) = self.flows.front_mut() else { return };
        first.writes -= 1;
        if first.writes == 0 && first.to_post == 0 {
            done.push(FlowRecord { flow: first.flow, end: now, is_complete: true });
            self.flows.pop_front();
        }
    }

    /// A connection that gave up ends all of its flows.
    fn fail(&mut self, now: Time, done: &mut Vec<FlowRecord>) {
        let ended = self.flows.drain(..);
        done.extend(ended.map(|r| FlowRecord { flow: r.flow, end: now, is_complete: false }));
    }
}

/// An application with background traffic beside it. The run ends when the application is finished;
/// traffic alone is finished when its flows are.
pub struct WithBackground<A> {
    /// The application.
    pub app: A,
    /// The traffic.
    pub background: Background,
}

impl<A: App> App for WithBackground<A> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        if !self.background.on_timer(world, token) {
            self.app.on_timer(world, token);
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let background = self.background.on_activity(world, nic);
        self.app.on_activity(world, nic) || background
    }

    fn is_finished(&self, world: &World) -> bool {
        self.app.is_finished(world)
    }
}

impl App for Background {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        Background::on_timer(self, world, token);
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        Background::on_activity(self, world, nic)
    }

    fn is_finished(&self, _world: &World) -> bool {
        Background::is_finished(self)
    }
}
