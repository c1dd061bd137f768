//! From a scenario to a world: engines, memory, queues and connected QPs.

use core::net::IpAddr;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use bowline_failover::Rail;
use bowline_failover::mirror::{Cq, Pd, Place, Qp, QpParts, Srq};
use bowline_nic::{
    Access, Buffer, Connect, Door, NicConfig, PeerRegion, QpInit, QpType, Reach, Region, Time,
};
use bowline_wire::Psn;

use super::app::{Action, Storm};
use super::arena::Arena;
use super::crime::Crime;
use super::end::{Conn, ConnState, End, NicState, SrqState};
use super::memory::{self, SWAP_WORDS};
use super::scenario::{EndPlan, Role, Scenario, Shape};
use crate::check::atomics::{AddWord, SwapWord};
use crate::check::completions::{RecvOrder, SendOrder};
use crate::check::delivery::Delivery;
use crate::engines::DeviceNics;
use crate::net::{Topology, dumbbell, fat_tree, pair, rails, ring, star};
use crate::rng::SimRng;
use crate::world::{HostConfig, HostId, NicId, World};

/// Fetch-and-add words of an engine: few, so that QPs share them.
pub(super) const ADD_WORDS: usize = 2;
/// Scatter and gather entries of a request.
const MAX_SGE: u8 = 4;
/// Q_Key of all datagram QPs.
pub(super) const QKEY: u32 = 0x1234_5678;
/// Receive buffers of a shared queue are as long as the longest message that goes there.
const SHARED_RECV_LEN: usize = 8 << 10;
/// Stream from which the keys of further lanes are drawn.
const LANE_KEYS: u64 = 0x1a7e;
/// First of the streams from which it is drawn whose memory is shared.
const DIRECT: u64 = 0xd1_0000;
/// Packets that wait at a paused host.
const RING_PACKETS: usize = 512;

/// The world of a scenario without connections, and which engines its devices have.
pub(super) fn build_world(scenario: &Scenario) -> (World, Vec<Rc<DeviceNics>>) {
    let count = scenario.hosts.len();
    let rail_count = if scenario.shape == Shape::Rails { 2 } else { 1 };
    let ports = count * rail_count;
    let addrs = if scenario.ipv6 { Topology::ipv6(ports) } else { Topology::ipv4(ports) };
    let (seed, access, core) = (scenario.seed, scenario.access, scenario.core);
    let topology = match scenario.shape {
        Shape::Pair => pair(seed, [addrs[0], addrs[1]], access),
        Shape::Star => star(seed, &addrs, access),
        Shape::Dumbbell => dumbbell(seed, &addrs, access, core),
        Shape::Ring => ring(seed, &addrs, access, core),
        Shape::FatTree => fat_tree(seed, 4, &addrs, access),
        Shape::Rails => rails(seed, &[&addrs[..count], &addrs[count..]], access),
    };
    // Second NICs are like the first ones.
    let plans = scenario.hosts.iter().cycle();
    let hosts = plans.zip(&addrs).map(|(plan, addr)| HostConfig {
        nics: nic_configs(scenario, plan, *addr),
        tx_caps: plan.tx_caps,
        tx_batch: plan.tx_batch,
        tx_id: plan.tx_id,
        rx_id: plan.rx_id,
        coalesce_ns: plan.coalesce_ns,
        ring_packets: RING_PACKETS,
    });
    let hosts = hosts.collect();
    let mut world = World::new(seed, topology, hosts);
    for (index, cable) in world.network().cables().into_iter().enumerate() {
        let faults = scenario.faults[index.min(scenario.faults.len() - 1)];
        world.network_mut().link_mut(cable).set_faults(faults);
    }
    let devices = add_lanes(&mut world, scenario, rail_count);
    (world, devices)
}

/// Gives devices their engines besides the first.
fn add_lanes(world: &mut World, scenario: &Scenario, rails: usize) -> Vec<Rc<DeviceNics>> {
    let hosts = scenario.hosts.iter().enumerate();
    let plans: Vec<_> =
        hosts.flat_map(|(host, plan)| plan.nics.iter().map(move |nic| (host, nic))).collect();
    let mut rng = SimRng::new(scenario.seed, LANE_KEYS);
    let mut devices = Vec::new();
    for (device, (host, plan)) in plans.iter().enumerate() {
        let mut lanes = [Vec::new(), Vec::new()];
        for (rail, lanes) in lanes.iter_mut().enumerate().take(rails) {
            let first = NicId(rail * plans.len() + device);
            lanes.push(first);
            for _ in 1..plan.lanes {
                let mut config = world.nic(first).config().clone();
                config.key_seed = key_seed(&mut rng);
                lanes.push(world.add_nic(HostId(rail * scenario.hosts.len() + host), config));
            }
        }
        let [lanes, backup] = lanes;
        devices.push(Rc::new(DeviceNics::new(lanes, backup)));
    }
    devices
}

fn key_seed(rng: &mut SimRng) -> [u8; 32] {
    let mut seed = [0; 32];
    for chunk in seed.as_chunks_mut::<8>().0 {
        *chunk = rng.bits().to_le_bytes();
    }
    seed
}

fn nic_configs(
    scenario: &Scenario,
    plan: &super::scenario::HostPlan,
    addr: IpAddr,
) -> Vec<NicConfig> {
    let mut rng = SimRng::new(scenario.seed, 2);
    let mut configs = Vec::new();
    for (index, nic) in plan.nics.iter().enumerate() {
        let mut config = NicConfig::new(addr, key_seed(&mut rng));
        config.qpn_prefix = index as u8;
        config.window_bytes = nic.window_bytes;
        config.max_qps = 64;
        config.max_cqs = 64;
        config.max_srqs = 4;
        config.max_pds = 4;
        config.max_mrs = 4_096;
        configs.push(config);
    }
    configs
}

impl Storm<'_> {
    /// Makes everything the scenario names and schedules its faults.
    pub(super) fn set_up_world(&mut self, world: &mut World) {
        let rng = &mut SimRng::new(self.scenario.seed, 1);
        self.start_agents(world);
        let nics = self.scenario.hosts.iter().map(|host| host.nics.len()).sum();
        for nic in (0..nics).map(NicId) {
            let state = self.make_nic(world, nic, rng);
            self.nics.push(state);
        }
        for index in 0..self.scenario.conns.len() {
            self.make_conn(world, index, rng);
            if self.scenario.conns[index].role == Role::Hostage {
                self.surrender(index);
            }
        }
        for index in 0..self.conns.len() {
            self.connect(world, index);
        }
        self.schedule(world, rng);
    }

    fn make_nic(&mut self, world: &mut World, nic: NicId, rng: &mut SimRng) -> NicState {
        let plan = self.nic_plan(nic);
        let engines = &self.engines(world, nic);
        let pd = Pd::create(engines).expect("within the limits");
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let (arena, mut zones) = Arena::new(engines, &pd, &[(ADD_WORDS * 8, access)], rng);
        let adds = zones.remove(0);
        let add_words =
            (0..ADD_WORDS).map(|word| AddWord::new(adds.word(word * 8), rng.bits() | 1)).collect();
        let srq = plan.srq.map(|srq| {
            let queue = Srq::create(engines, &pd, srq.depth, MAX_SGE).expect("within the limits");
            let len = SHARED_RECV_LEN;
            let total = len * srq.depth as usize;
            let plans = [(total, Access::LOCAL_WRITE)];
            let (arena, mut zones) = Arena::new(engines, &pd, &plans, rng);
            let buffers =
                (0..srq.depth as usize).map(|i| vec![(i * len, 100), (i * len + 100, len - 100)]);
            SrqState {
                queue,
                arena,
                zone: zones.remove(0),
                buffers: buffers.collect(),
                receives: RecvOrder::Shared(BTreeSet::new()),
                credits: (0..srq.depth as usize).map(|i| (Time::ZERO, i)).collect(),
            }
        });
        NicState {
            pd,
            cqs: Vec::new(),
            ready: Vec::new(),
            next_poll: Time::ZERO,
            poll_asked: false,
            ends: Vec::new(),
            arena,
            adds,
            add_words,
            srq,
        }
    }

    fn make_conn(&mut self, world: &mut World, index: usize, rng: &mut SimRng) {
        let conn = &self.scenario.conns[index];
        let nics = [0, 1].map(|side| conn.ends[side].nic);
        let pds = nics.map(|nic| (&self.nics[nic].pd, &self.devices[nic]));
        let memories = memory::build(world, pds, conn, index * 2, rng);
        for (side, memory) in memories.into_iter().enumerate() {
            let plan = &conn.ends[side];
            let nic = NicId(plan.nic);
            let number = self.ends.len();
            let tiny = side == 0 && conn.role == Role::Sacrificial(Crime::CqOverflow);
            let tiny_cq =
                tiny.then(|| Cq::create(&self.engines(world, nic), 1).expect("within the limits"));
            let cq = if tiny { 0 } else { self.cq_for(world, nic, plan) };
            let parts = self.nics[nic.0].parts(cq, tiny_cq.as_ref(), plan.uses_srq);
            // Round robin, as the product places them.
            let lane = self.nics[nic.0].ends.len() % self.devices[nic.0].layout().lanes;
            let init = qp_init(conn.qp_type, plan, &parts);
            let moves = conn.qp_type.descriptor().movable;
            let qp = Qp::create(&self.engines(world, nic), lane, &parts, &init, moves);
            let qp = qp.expect("within the limits");
            self.coverage.lanes += u64::from(lane > 0);
            if let Some(config) = plan.fec {
                let spare = qp.spare().map(|_| qp.on(Rail::Backup));
                for (at, qpn) in [Some(qp.on(Rail::Default)), spare].into_iter().flatten() {
                    let engine = self.devices[nic.0].at(at);
                    self.fec.put_under(world.nic_mut(engine), engine, qpn, config);
                }
            }
            if let Some(failover) = &mut self.failover {
                failover.add_end(nic.0, &qp);
            }
            self.nics[nic.0].ends.push(number);
            let receives = if plan.uses_srq {
                RecvOrder::Shared(BTreeSet::new())
            } else {
                RecvOrder::Own(VecDeque::new())
            };
            self.ends.push(End {
                nic,
                qp,
                cq,
                uses_srq: plan.uses_srq,
                memory,
                next_op: 0,
                ready_at: Time::from_nanos(plan.ops.first().map_or(0, |op| op.think_ns)),
                sends: SendOrder::default(),
                delivery: Delivery::default(),
                swap_words: Vec::new(),
                swap_ahead: Vec::new(),
                swaps: vec![None; plan.ops.len()],
                receives,
                recv_credits: VecDeque::new(),
                next_recv: 0,
                first_recv: 0,
                announced: 0,
                was_flushed: false,
                psn: plan.psn,
                psns_used: 0,
                tiny_cq,
            });
        }
        for side in 0..2 {
            let peer = &self.ends[index * 2 + 1 - side].memory.swaps;
            let values: Vec<u64> = (0..SWAP_WORDS).map(|word| peer.word(word * 8)).collect();
            let end = &mut self.ends[index * 2 + side];
            end.swap_words = values.iter().map(|value| SwapWord::new(*value)).collect();
            end.swap_ahead = values;
        }
        self.conns.push(Conn { state: ConnState::Up, epoch: 0, failed: false, crime_done: false });
    }

    /// The index of a completion queue that can hold exactly what may be outstanding.
    fn cq_for(&mut self, world: &mut World, nic: NicId, plan: &EndPlan) -> usize {
        let nic_plan = self.nic_plan(nic);
        let shared_depth = nic_plan.srq.map_or(0, |srq| srq.depth);
        let depth = |end: &EndPlan| end.send_depth + end.recv_depth;
        if nic_plan.one_cq && !self.nics[nic.0].cqs.is_empty() {
            return 0;
        }
        let all = self.scenario.conns.iter().flat_map(|conn| &conn.ends);
        let here = all.filter(|end| end.nic == nic.0).map(depth).sum();
        let entries = shared_depth + if nic_plan.one_cq { here } else { depth(plan) };
        let engines = &self.engines(world, nic);
        let cq = Cq::create(engines, entries).expect("within the limits");
        let Ok(()) = cq.arm(engines, || false, false);
        let state = &mut self.nics[nic.0];
        state.cqs.push(cq);
        state.ready.push(true);
        state.cqs.len() - 1
    }

    /// Takes both QPs of a connection from reset to ready.
    pub(super) fn connect(&mut self, world: &mut World, conn: usize) {
        for side in 0..2 {
            let end = conn * 2 + side;
            self.bring_up(world, end);
            let plan = self.end_plan(end);
            let (start, now) = (Time::from_nanos(plan.recv_start_ns), world.now());
            let state = &mut self.ends[end];
            state.recv_credits = (0..plan.recv_depth).map(|_| start.max(now)).collect();
            let first_op = state.ready_at;
            self.at(world, start, Action::Look);
            self.at(world, first_op, Action::Look);
        }
        self.conns[conn].state = ConnState::Up;
        self.share_memory(world, conn);
        self.adopt(world, conn);
    }

    /// Lets both ends of some connections write each other's memory directly, as processes of one
    /// host do. Drawn separately, so that everything else about a seed stays the same.
    fn share_memory(&mut self, world: &mut World, conn: usize) {
        let plan = &self.scenario.conns[conn];
        let is_coded = plan.ends.iter().any(|end| end.fec.is_some());
        let rng = &mut SimRng::new(self.scenario.seed, DIRECT + conn as u64);
        if plan.qp_type != QpType::Rc
            || is_coded
            || self.seals.is_some()
            || self.failover.is_some()
            || !rng.percent(25)
        {
            return;
        }
        for owner in [conn * 2, conn * 2 + 1] {
            let [(owner_nic, owner_qpn), (writer_nic, writer_qpn)] =
                [owner, owner ^ 1].map(|end| {
                    let (at, qpn) = self.ends[end].qp.on(Rail::Default);
                    (self.devices[self.ends[end].nic.0].at(at), qpn)
                });
            let slots = &self.ends[owner].memory.slots;
            let door = Door::new(Buffer::new(Door::BYTES)).expect("it is long enough");
            let open = world.nic_mut(owner_nic).open_door(owner_qpn, door.clone(), &[slots.key]);
            if open.is_err() {
                // It forbids WRITEs, or its memory is gone.
                continue;
            }
            let here = Region::part(slots.buffer.clone(), slots.base, slots.len);
            let region = PeerRegion::new(slots.key, slots.iova, here.expect("it is inside"));
            let reach = Reach::new(door, vec![region]);
            world.nic_mut(writer_nic).set_reach(writer_qpn, reach).expect("it is connected");
        }
    }

    fn bring_up(&mut self, world: &mut World, end: usize) {
        let conn = self.conn_plan(end);
        let plan = self.end_plan(end);
        let (at, qpn) = self.ends[end].qp.on(Rail::Default);
        let nic = self.devices[self.ends[end].nic.0].at(at);
        let peer = &self.ends[end ^ 1];
        let dst = world.nic(peer.nic).config().addr;
        let now = world.now();
        let engine = world.nic_mut(nic);
        if let Some(seals) = &self.seals {
            let seal = seals.end(end, self.conns[end / 2].epoch, now);
            engine.seal_qp(qpn, seal).expect("it is not connected");
        }
        let connected = if conn.qp_type == QpType::Ud {
            let steps = Connect::datagram_steps(QKEY, Psn::new(self.ends[end].psn));
            steps.iter().try_for_each(|step| engine.modify_qp(now, qpn, step))
        } else {
            let connect = Connect {
                access: qp_access(conn.qp_type, conn.role, end % 2),
                path_mtu: conn.mtu,
                rq_psn: Psn::new(peer.psn),
                sq_psn: Psn::new(self.ends[end].psn),
                max_dest_rd_atomic: conn.ends[1 - end % 2].rd_atomic,
                max_rd_atomic: plan.rd_atomic,
                min_rnr_timer: plan.rnr_timer,
                timeout: plan.timeout,
                retry_count: plan.retry_count,
                rnr_retry: plan.rnr_retry,
                ..Connect::new(dst, peer.qp.qpn())
            };
            engine.connect(now, qpn, &connect)
        };
        connected.expect("legal transitions");
        engine.set_rate_controller(now, qpn, plan.rate.factory()).expect("the QP exists");
        if let Some(bytes) = plan.window {
            engine.set_window(qpn, bytes).expect("the QP exists");
        }
    }

    fn schedule(&mut self, world: &mut World, rng: &mut SimRng) {
        let scenario = self.scenario;
        self.at(world, Time::from_nanos(scenario.heal_ns), Action::Heal);
        for (host, at, ns) in &scenario.pauses {
            self.at(world, Time::from_nanos(*at), Action::Pause { host: *host, ns: *ns });
        }
        for (cable, at, ns) in &scenario.outages {
            self.at(world, Time::from_nanos(*at), Action::LinkDown { cable: *cable });
            self.at(world, Time::from_nanos(at + ns), Action::LinkUp { cable: *cable });
        }
        for burst in scenario.attack.iter().flat_map(|attack| &attack.bursts) {
            let action = Action::Attack { forgeries: burst.forgeries };
            self.at(world, Time::from_nanos(burst.at_ns), action);
        }
        for (conn, plan) in scenario.conns.iter().enumerate() {
            for at in &plan.reconnects_ns {
                self.at(world, Time::from_nanos(*at), Action::Reconnect { conn });
            }
            for (side, at) in &plan.drains_ns {
                self.at(world, Time::from_nanos(*at), Action::Drain { end: conn * 2 + side });
            }
            if let Role::Sacrificial(crime) = plan.role
                && crime.is_gradual()
            {
                let at = rng.below(scenario.heal_ns.min(1_000_000));
                self.at(world, Time::from_nanos(at), Action::Crime { conn, crime });
            }
        }
    }
}

/// The access rights of the peer through a QP.
fn qp_access(qp_type: QpType, role: Role, side: usize) -> Access {
    let forbids = role == Role::Sacrificial(Crime::WriteNoQpRight) && side == 1;
    let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    if qp_type == QpType::Rc {
        access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    }
    if forbids {
        access.remove(Access::REMOTE_WRITE);
    }
    access
}

fn qp_init(qp_type: QpType, plan: &EndPlan, parts: &QpParts<'_>) -> QpInit {
    let at = Place::lane(0);
    let mut init = QpInit::new(qp_type, parts.pd.id(at), parts.send_cq.id(at));
    init.max_send_wr = plan.send_depth;
    init.max_recv_wr = plan.recv_depth;
    init.max_send_sge = MAX_SGE;
    init.max_recv_sge = MAX_SGE;
    init.max_inline = plan.max_inline;
    init.signal_all = plan.signal_all;
    init
}
