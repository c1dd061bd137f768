//! What a process that uses failover does around its agent: mirrors of all objects on the second NIC, the
//! exchange of entries, and receives of shared queues where they are needed.

use bowline_failover::{LinkId, Rail, Report};
use bowline_nic::{CqId, MrKey, PdId, QpInit, RecvWr, Region, SrqId};
use bowline_wire::Qpn;

use super::machine::Machine;
use super::report::FailoverCoverage;
use super::scenario::{FailoverPlan, Outage};
use crate::hash::mix;
use crate::storm::SrqPlan;
use crate::world::{NicId, World};

/// One end of a connection.
struct EndLink {
    machine: usize,
    qpns: [Qpn; 2],
    uses_srq: bool,
    link: Option<LinkId>,
    /// Entries that its peer knows, and may find again when they are long out of date.
    made: u32,
}

/// Failover of all machines of a world.
pub(crate) struct Runtime {
    plan: FailoverPlan,
    machines: Vec<Machine>,
    ends: Vec<EndLink>,
    /// How many outages each cable has now: out of and into each port, and those its host sees.
    cuts: Vec<[u32; 2]>,
    told: Vec<[u32; 2]>,
    coverage: FailoverCoverage,
}

impl Runtime {
    /// Agents for a world whose hosts are the machines' first NICs, then their second ones.
    pub(crate) fn new(world: &mut World, plan: &FailoverPlan) -> Runtime {
        let count = world.nic_count() / 2;
        let machines = (0..count)
            .map(|index| {
                let nics = [NicId(index), NicId(count + index)];
                Machine::new(world, nics, &plan.config, plan.clocks_ahead_ns[index])
            })
            .collect();
        Runtime {
            plan: plan.clone(),
            machines,
            ends: Vec::new(),
            cuts: vec![[0; 2]; count * 2],
            told: vec![[0; 2]; count],
            coverage: FailoverCoverage::default(),
        }
    }

    pub(crate) fn plan(&self) -> &FailoverPlan {
        &self.plan
    }

    pub(crate) fn machine_count(&self) -> usize {
        self.machines.len()
    }

    /// Registers memory of a machine on its second NIC too, under the same key.
    pub(crate) fn mirror_region(
        &self,
        world: &mut World,
        machine: usize,
        (key, region): (MrKey, Region),
        iova: u64,
        access: bowline_nic::Access,
    ) {
        let machine = &self.machines[machine];
        let shared = world.nic_mut(machine.nics[0]).share_key(key).expect("it was just registered");
        let nic = world.nic_mut(machine.nics[1]);
        nic.register_as(&shared, machine.pd, region, iova, access)
            .expect("keys are drawn from 2^32");
    }

    /// A completion queue like one that was just made on the first NIC.
    pub(crate) fn mirror_cq(&mut self, world: &mut World, machine: usize, entries: u32) {
        let machine = &mut self.machines[machine];
        let nic = world.nic_mut(machine.nics[1]);
        let cq = nic.create_cq(entries).expect("within the limits");
        nic.arm_cq(cq, false).expect("the queue exists");
        machine.cqs.push(cq);
    }

    pub(crate) fn mirror_srq(
        &mut self,
        world: &mut World,
        machine: usize,
        plan: SrqPlan,
        max_sge: u8,
    ) {
        let machine = &mut self.machines[machine];
        let srq = world.nic_mut(machine.nics[1]).create_srq(machine.pd, plan.depth, max_sge);
        machine.srq = Some(srq.expect("within the limits"));
    }

    /// The queue on the second NIC that mirrors the `index`-th of the first.
    pub(crate) fn mirror_of(&self, machine: usize, index: usize) -> (NicId, CqId) {
        let machine = &self.machines[machine];
        (machine.nics[1], machine.cqs[index])
    }

    /// A spare for an end's QP, whose completions go to the `cq`-th queue. Ends are made in order.
    pub(crate) fn make_spare(
        &mut self,
        world: &mut World,
        machine: usize,
        qpn: Qpn,
        init: &QpInit,
        cq: usize,
    ) -> (NicId, Qpn) {
        let owner = &self.machines[machine];
        let (pd, cq): (PdId, CqId) = (owner.pd, owner.cqs[cq]);
        let uses_srq = init.srq.is_some();
        let srq: Option<SrqId> = owner.srq.filter(|_| uses_srq);
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, srq, ..*init };
        let nic = owner.nics[1];
        let spare = world.nic_mut(nic).create_spare_qp(&init).expect("within the limits");
        self.ends.push(EndLink { machine, qpns: [qpn, spare], uses_srq, link: None, made: 0 });
        (nic, spare)
    }

    /// Where an end's queues are now.
    pub(crate) fn home(&self, end: usize) -> (NicId, Qpn) {
        let rail = self.rail(end).unwrap_or(Rail::Default).index();
        let end = &self.ends[end];
        (self.machines[end.machine].nics[rail], end.qpns[rail])
    }

    pub(crate) fn rail(&self, end: usize) -> Option<Rail> {
        let end = &self.ends[end];
        self.machines[end.machine].home(end.link?)
    }

    /// The end that a report of a machine's is about.
    pub(crate) fn end_of(&self, machine: usize, qpn: Qpn) -> Option<usize> {
        self.ends.iter().position(|end| end.machine == machine && end.qpns[0] == qpn)
    }

    /// An end's QP is connected: its agent looks after it from now on.
    pub(crate) fn adopt(&mut self, seed: u64, end: usize, world: &mut World) {
        let state = &mut self.ends[end];
        state.made += 1;
        let token = mix(seed ^ mix((end as u64) << 32 | u64::from(state.made)));
        let token = u128::from(mix(token)) << 64 | u128::from(token);
        let qpns = state.qpns;
        let added = self.machines[state.machine].with(world, |agent, _, _| agent.add(qpns, token));
        state.link = Some(added);
    }

    /// An end's QP is about to be reset.
    pub(crate) fn release(&mut self, world: &mut World, end: usize) {
        let state = &mut self.ends[end];
        let Some(link) = state.link.take() else { return };
        let machine = &mut self.machines[state.machine];
        self.coverage.removed_away += u64::from(machine.home(link) == Some(Rail::Backup));
        machine.with(world, |agent, _, rails| agent.remove(rails, link));
    }

    /// Tells an end of its peer's spare, as the store does.
    pub(crate) fn introduce(&mut self, world: &mut World, end: usize) -> Result<(), String> {
        let (state, peer) = (&self.ends[end], &self.ends[end ^ 1]);
        let (Some(link), Some(peer_link)) = (state.link, peer.link) else { return Ok(()) };
        let Some(entry) = self.machines[peer.machine].agent().entry(peer_link) else {
            return Err(format!("end {end}: the peer's agent does not know its connection"));
        };
        self.machines[state.machine]
            .with(world, |agent, _, rails| agent.connect(rails, link, &entry))
            .map_err(|error| format!("end {end}: the peer's entry is refused: {error}"))
    }

    /// A completion queue has something; tells whether it is an agent's own, or which of the
    /// program's it is.
    pub(crate) fn notified(&mut self, machine: usize, nic: NicId, cq: CqId) -> Option<usize> {
        let machine = &mut self.machines[machine];
        if machine.notified(nic, cq) || nic != machine.nics[1] {
            return None;
        }
        machine.cqs.iter().position(|mirror| *mirror == cq)
    }

    pub(crate) fn path_failed(&mut self, machine: usize, nic: NicId, qpn: Qpn) {
        self.machines[machine].path_failed(nic, qpn);
    }

    /// Lets an agent do what there is to do.
    pub(crate) fn drive(&mut self, world: &mut World, machine: usize) -> bool {
        self.machines[machine].drive(world)
    }

    pub(crate) fn poll_report(&mut self, machine: usize) -> Option<Report> {
        self.machines[machine].poll_report()
    }

    /// When an agent is to be woken, if that has not been asked for yet.
    pub(crate) fn wants_wake(
        &mut self,
        world: &World,
        machine: usize,
    ) -> Option<bowline_nic::Time> {
        self.machines[machine].wants_wake(world)
    }

    pub(crate) fn woken(&mut self, machine: usize) {
        self.machines[machine].woken();
    }

    /// An agent is not called for a while.
    pub(crate) fn nap(&mut self, world: &World, machine: usize, ns: u64) {
        self.coverage.naps += 1;
        self.machines[machine].sleep(world.now().plus_nanos(ns));
    }

    /// An outage begins or ends.
    pub(crate) fn set_up(&mut self, world: &mut World, outage: &Outage, up: bool) {
        let (machine, rail) = (outage.machine, outage.rail);
        let port = rail.index() * self.machines.len() + machine;
        // Each host's cable is a link out and a link in, in the order of hosts.
        let links = world.network().cables();
        for (way, cut) in outage.cut.ways().into_iter().enumerate() {
            let count = &mut self.cuts[port][way];
            *count = if up { *count - u32::from(cut) } else { *count + u32::from(cut) };
            world.network_mut().link_mut(links[port * 2 + way]).set_up(*count == 0);
        }
        if outage.told {
            let count = &mut self.told[machine][rail.index()];
            *count = if up { *count - 1 } else { *count + 1 };
            if *count == u32::from(!up) {
                self.port_changed(world, machine, rail, up);
            }
        }
    }

    fn port_changed(&mut self, world: &mut World, machine: usize, rail: Rail, up: bool) {
        self.coverage.port_changes += 1;
        self.machines[machine]
            .with(world, |agent, now, rails| agent.port_changed(now, rails, rail, up));
    }

    /// All ports are up, and agents awake.
    pub(crate) fn heal(&mut self, world: &mut World) {
        for machine in 0..self.machines.len() {
            self.machines[machine].wake();
            for rail in Rail::ALL {
                if core::mem::take(&mut self.told[machine][rail.index()]) > 0 {
                    self.port_changed(world, machine, rail, true);
                }
            }
        }
    }

    /// Puts receives of a machine's shared queue where connections need them: all of them on one
    /// rail, or half on each.
    pub(crate) fn share_receives(&self, world: &mut World, machine: usize, srq: SrqId) -> bool {
        let owner = &self.machines[machine];
        let Some(mirror) = owner.srq else { return false };
        let queues = [(owner.nics[0], srq), (owner.nics[1], mirror)];
        let mut users = [0; 2];
        for (index, end) in self.ends.iter().enumerate() {
            if end.machine == machine && end.uses_srq {
                users[self.rail(index).unwrap_or(Rail::Default).index()] += 1;
            }
        }
        let held = queues.map(|(nic, srq)| world.nic(nic).srq_len(srq).unwrap_or(0));
        let mut any = false;
        for from in [0, 1] {
            let to = 1 - from;
            let surplus = match (users[from], users[to]) {
                (0, 1..) => held[from],
                (_, 1..) if held[to] == 0 => held[from] / 2,
                _ => 0,
            };
            any |= surplus > 0;
            move_receives(world, queues[from], queues[to], surplus);
        }
        any
    }

    /// Whether all connections are where they belong, and agents have nothing left to do.
    pub(crate) fn is_settled(&self) -> bool {
        self.machines.iter().all(|machine| {
            let agent = machine.agent();
            agent.away() == 0 && agent.deadline().is_none()
        })
    }

    /// Keeps count of what happened.
    pub(crate) fn count(&mut self, report: &Report) {
        self.coverage.count(report);
    }

    /// What happened.
    pub(crate) fn coverage(&self) -> FailoverCoverage {
        let mut all = self.coverage;
        for machine in &self.machines {
            all.add_agent(machine.agent().counters());
        }
        all
    }

    /// What an end's agent says about it, for messages about a hang.
    pub(crate) fn describe(&self, end: usize) -> String {
        match self.rail(end) {
            Some(rail) => format!("on the {rail} rail"),
            None => "not looked after".to_owned(),
        }
    }

    /// Judges what is left when all is at rest: nothing may be left on second NICs, and of `posted`
    /// shared receives of a machine none may be missing.
    pub(crate) fn judge(
        &mut self,
        world: &mut World,
        machine: usize,
        shared: Option<(SrqId, usize)>,
    ) -> Result<(), String> {
        let owner = &self.machines[machine];
        for cq in &owner.cqs {
            let mut left = [bowline_nic::Completion::default(); 1];
            let count = world.poll_nic(owner.nics[1]).poll_cq(*cq, &mut left);
            if count != Ok(0) {
                return Err(format!("machine {machine}: left at the second NIC: {:?}", left[0]));
            }
        }
        if let Some((srq, posted)) = shared {
            let first = world.nic(owner.nics[0]).srq_len(srq).unwrap_or(0);
            let second = owner.srq.and_then(|srq| world.nic(owner.nics[1]).srq_len(srq));
            let held = [first, second.unwrap_or(0)];
            if held.iter().sum::<u32>() as usize != posted {
                return Err(format!(
                    "machine {machine}: {posted} shared receives are posted, the rails hold {held:?}"
                ));
            }
        }
        Ok(())
    }
}

fn move_receives(world: &mut World, from: (NicId, SrqId), to: (NicId, SrqId), count: u32) {
    if count == 0 {
        return;
    }
    let mut taken: Vec<(u64, Vec<bowline_nic::Sge>)> = Vec::new();
    let took = world.nic_mut(from.0).take_srq_recvs(from.1, count, |wr| {
        taken.push((wr.wr_id, wr.sges.to_vec()));
        true
    });
    debug_assert_eq!(took.map(|n| n as usize), Ok(taken.len()));
    for (wr_id, sges) in taken {
        let posted = world.nic_mut(to.0).post_srq_recv(to.1, &RecvWr { wr_id, sges: &sges });
        posted.expect("both queues hold what the program may post");
    }
}
