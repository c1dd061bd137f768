//! What a process with failover does around its supervisor: the exchange of entries, and failing
//! cables. Its objects are the product's ([`bowline_failover::mirror`]).

use std::rc::Rc;

use bowline_failover::mirror::{Place, Qp};
use bowline_failover::{Agent, Entry, Life, Rail, Report};
use bowline_nic::CqId;
use bowline_wire::Qpn;

use super::machine::Machine;
use super::report::FailoverCoverage;
use super::scenario::{FailoverPlan, Outage};
use crate::engines::DeviceNics;
use crate::hash::mix;
use crate::world::World;

/// One end of a connection.
struct EndLink {
    machine: usize,
    qpn: Qpn,
    life: Option<Life>,
    /// Entries that its peer knows, and may look up again when they are long out of date.
    made: u32,
}

/// Failover of all machines of a world.
pub(crate) struct Runtime {
    plan: FailoverPlan,
    machines: Vec<Machine>,
    ends: Vec<EndLink>,
    /// Number of current outages per cable: out of and into each port, and those its host sees.
    cuts: Vec<[u32; 2]>,
    told: Vec<[u32; 2]>,
    coverage: FailoverCoverage,
}

impl Runtime {
    /// Agents for machines, each a device on two rails.
    pub(crate) fn new(
        world: &mut World,
        plan: &FailoverPlan,
        devices: &[Rc<DeviceNics>],
    ) -> Runtime {
        let count = devices.len();
        let machines = devices
            .iter()
            .zip(&plan.clocks_ahead_ns)
            .map(|(nics, ahead_ns)| Machine::new(world, nics, &plan.config, *ahead_ns))
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

    /// Whether some connection of a machine is on its second NIC.
    pub(crate) fn is_split(&self, machine: usize) -> bool {
        self.machines[machine].supervisor().away() > 0
    }

    /// Whether connections of a machine have moved since the last call.
    pub(crate) fn has_moved(&mut self, machine: usize) -> bool {
        self.machines[machine].has_moved()
    }

    /// An end's QP was made. Ends are made in order.
    pub(crate) fn add_end(&mut self, machine: usize, qp: &Qp) {
        self.ends.push(EndLink { machine, qpn: qp.qpn(), life: None, made: 0 });
    }

    pub(crate) fn rail(&self, end: usize) -> Option<Rail> {
        let end = &self.ends[end];
        end.life.and_then(|_| self.machines[end.machine].supervisor().home(end.qpn))
    }

    /// The end that a report of a machine's is about.
    pub(crate) fn end_of(&self, machine: usize, qpn: Qpn) -> Option<usize> {
        self.ends.iter().position(|end| end.machine == machine && end.qpn == qpn)
    }

    /// An end's QP is connected: its agent supervises it from now on.
    pub(crate) fn adopt(&mut self, seed: u64, end: usize, qp: &Qp, world: &mut World) {
        let state = &mut self.ends[end];
        state.made += 1;
        let token = mix(seed ^ mix((end as u64) << 32 | u64::from(state.made)));
        let token = u128::from(mix(token)) << 64 | u128::from(token);
        let machine = &mut self.machines[state.machine];
        let added = machine.with(world, |supervisor, _, _| supervisor.add(qp, token));
        state.life = added.map(|(life, _)| life);
    }

    /// An end's QP is about to be failed or reset.
    pub(crate) fn release(&mut self, world: &mut World, end: usize, qp: &Qp) {
        let state = &mut self.ends[end];
        if state.life.take().is_none() {
            return;
        }
        let machine = &mut self.machines[state.machine];
        let away = machine.supervisor().home(state.qpn) == Some(Rail::Backup);
        self.coverage.removed_away += u64::from(away);
        machine.with(world, |supervisor, _, engines| supervisor.remove(engines, qp));
    }

    /// Tells an end of its peer's spare, as the store does.
    pub(crate) fn introduce(&mut self, world: &mut World, end: usize) -> Result<(), String> {
        let (state, peer) = (&self.ends[end], &self.ends[end ^ 1]);
        let (Some(life), Some(_)) = (state.life, peer.life) else { return Ok(()) };
        let Some(entry) = self.machines[peer.machine].supervisor().entry(peer.qpn) else {
            return Err(format!("end {end}: the peer's agent does not know its connection"));
        };
        self.machines[state.machine]
            .with(world, |supervisor, _, engines| supervisor.peer_found(engines, life, &entry))
            .map(drop)
            .map_err(|error| format!("end {end}: the peer's entry is refused: {error}"))
    }

    /// What the peer of an end knows of it.
    pub(crate) fn entry(&self, end: usize) -> Option<Entry> {
        let end = &self.ends[end];
        end.life.and_then(|_| self.machines[end.machine].supervisor().entry(end.qpn))
    }

    /// A completion queue has entries; returns whether it is an agent's own.
    pub(crate) fn notified(&mut self, machine: usize, at: Place, cq: CqId) -> bool {
        self.machines[machine].notified(at, cq)
    }

    pub(crate) fn path_failed(&mut self, machine: usize, at: Place, qpn: Qpn) {
        self.machines[machine].path_failed(at, qpn);
    }

    /// Lets an agent do its pending work.
    pub(crate) fn drive(&mut self, world: &mut World, machine: usize) -> bool {
        self.machines[machine].drive(world)
    }

    pub(crate) fn poll_report(&mut self, machine: usize) -> Option<Report> {
        self.machines[machine].poll_report()
    }

    /// When to wake an agent, if that has not been requested yet.
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
        for lane in 0..self.machines[machine].lanes() {
            self.machines[machine].with(world, |supervisor, now, engines| {
                supervisor.port_changed(now, engines, Place { rail, lane }, up);
            });
        }
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

    /// Whether all connections are on their default rail, and agents are idle.
    pub(crate) fn is_settled(&self) -> bool {
        self.machines.iter().all(|machine| {
            let supervisor = machine.supervisor();
            supervisor.away() == 0 && supervisor.deadline().is_none()
        })
    }

    /// Keeps count of what happened.
    pub(crate) fn count(&mut self, report: &Report) {
        self.coverage.count(report);
    }

    /// What happened.
    pub(crate) fn coverage(&self) -> FailoverCoverage {
        let mut all = self.coverage;
        for agent in self.machines.iter().flat_map(|machine| machine.supervisor().agents()) {
            all.add_agent(Agent::counters(agent));
        }
        all
    }

    /// An agent's description of an end, for messages about a hang.
    pub(crate) fn describe(&self, end: usize) -> String {
        match self.rail(end) {
            Some(rail) => format!("on the {rail} rail"),
            None => "not looked after".to_owned(),
        }
    }
}
