//! Connections that move between the NICs of their machine.
//!
//! An end's `nic` and `qpn` are those that the program knows; [`Storm::home`] says where its queues
//! are. Without failover the two are the same.

use bowline_failover::mirror::Place;
use bowline_failover::{Mode, Outcome, Rail, Report};
use bowline_nic::Time;
use bowline_wire::Qpn;

use super::app::{Action, Storm};
use super::end::ConnState;
use crate::engines::DeviceEngines;
use crate::failover_storm::Runtime;
use crate::world::{NicId, World};

/// How long after healing a connection may still give up, in units of the agents' patience.
const PATIENCE_AFTER_HEALING: u64 = 3;

impl Storm<'_> {
    pub(super) fn start_agents(&mut self, world: &mut World) {
        let Some(plan) = &self.scenario.failover else { return };
        self.failover = Some(Runtime::new(world, plan, &self.devices));
        for machine in 0..plan.clocks_ahead_ns.len() {
            self.at(world, Time::ZERO, Action::Agent { machine });
        }
        for (index, outage) in plan.outages.iter().enumerate() {
            let (from, to) = (outage.at_ns, outage.at_ns + outage.for_ns);
            self.at(world, Time::from_nanos(from), Action::Outage { index, up: false });
            self.at(world, Time::from_nanos(to), Action::Outage { index, up: true });
        }
        for (machine, at, ns) in &plan.naps {
            let action = Action::Nap { machine: *machine, ns: *ns };
            self.at(world, Time::from_nanos(*at), action);
        }
    }

    /// Where an end's queues are now.
    pub(super) fn home(&self, end: usize) -> (NicId, Qpn) {
        let state = &self.ends[end];
        let rail = self.failover.as_ref().and_then(|failover| failover.rail(end));
        let (at, qpn) = state.qp.on(rail.unwrap_or(Rail::Default));
        (self.devices[state.nic.0].at(at), qpn)
    }

    /// The engines of the device that a program knows as `nic`.
    pub(super) fn engines<'w>(&self, world: &'w mut World, nic: NicId) -> DeviceEngines<'w> {
        DeviceEngines::new(world, &self.devices[nic.0])
    }

    /// Whether some connection of a device is on its second NIC.
    pub(super) fn is_split(&self, nic: NicId) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.is_split(nic.0))
    }

    /// The device that an engine belongs to, as the program knows it, and its place there.
    pub(super) fn device_of(&self, nic: NicId) -> (NicId, Place) {
        let places = self.devices.iter().map(|device| device.place_of(nic));
        let found = places.enumerate().find_map(|(index, at)| Some((NicId(index), at?)));
        found.expect("every engine is a device's")
    }

    /// An end is connected: its agent supervises it, and learns of the peer's spare when that is
    /// due.
    pub(super) fn adopt(&mut self, world: &mut World, conn: usize) {
        let Some(failover) = &mut self.failover else { return };
        let delays = failover.plan().entries_ns[conn];
        let epoch = self.conns[conn].epoch;
        for end in [conn * 2, conn * 2 + 1] {
            failover.adopt(self.scenario.seed, end, &self.ends[end].qp, world);
        }
        for (side, delay) in delays.into_iter().enumerate() {
            let healed = self.healed.then_some(0);
            if let Some(ns) = delay.or(healed) {
                let at = world.now().plus_nanos(ns);
                self.at(world, at, Action::Entry { end: conn * 2 + side, epoch });
            }
        }
    }

    pub(super) fn introduce(&mut self, world: &mut World, end: usize, epoch: u32) {
        let conn = &self.conns[end / 2];
        let Some(failover) = &mut self.failover else { return };
        if conn.epoch == epoch && conn.state == ConnState::Up {
            let done = failover.introduce(world, end);
            self.sink.check(world.now(), "failover", done);
        }
    }

    /// A cable fails or recovers.
    pub(super) fn outage(&mut self, world: &mut World, index: usize, up: bool) {
        let Some(failover) = &mut self.failover else { return };
        if self.healed {
            return;
        }
        let outage = failover.plan().outages[index];
        world.note(9, || format!("{outage:?} up: {up}"));
        failover.set_up(world, &outage, up);
        self.hear_agent(world, outage.machine);
    }

    pub(super) fn nap(&mut self, world: &mut World, machine: usize, ns: u64) {
        let Some(failover) = self.failover.as_mut().filter(|_| !self.healed) else { return };
        world.note(10, || format!("agent {machine} sleeps for {ns} ns"));
        failover.nap(world, machine, ns);
        self.at(world, world.now().plus_nanos(ns), Action::Agent { machine });
    }

    /// All rails work, and ends that do not know their peer's spare yet learn of it now.
    pub(super) fn heal_failover(&mut self, world: &mut World) {
        let Some(failover) = &mut self.failover else { return };
        failover.heal(world);
        let machines = failover.machine_count();
        for end in 0..self.ends.len() {
            self.introduce(world, end, self.conns[end / 2].epoch);
        }
        for machine in 0..machines {
            self.drive_agent(world, machine);
        }
    }

    pub(super) fn wake_agent(&mut self, world: &mut World, machine: usize) {
        if let Some(failover) = &mut self.failover {
            failover.woken(machine);
        }
        self.drive_agent(world, machine);
    }

    /// Lets an agent do its pending work.
    pub(super) fn drive_agent(&mut self, world: &mut World, machine: usize) -> bool {
        let Some(failover) = &mut self.failover else { return false };
        let any = failover.drive(world, machine);
        self.hear_agent(world, machine);
        any
    }

    /// An end finishes: it is back on its default rail afterwards.
    pub(super) fn release(&mut self, world: &mut World, end: usize) {
        let Some(failover) = &mut self.failover else { return };
        failover.release(world, end, &self.ends[end].qp);
        self.wake_sleepers(self.ends[end].nic.0);
    }

    /// When connections have moved, a sleeper's completions may arrive on the other rail.
    fn wake_sleepers(&mut self, machine: usize) {
        if self.failover.as_mut().is_some_and(|failover| failover.has_moved(machine)) {
            let state = &mut self.nics[machine];
            for (cq, ready) in state.cqs.iter().zip(&mut state.ready) {
                *ready |= cq.notified();
            }
        }
    }

    fn hear_agent(&mut self, world: &mut World, machine: usize) {
        self.wake_sleepers(machine);
        while let Some(report) = self.failover.as_mut().and_then(|f| f.poll_report(machine)) {
            world.note(u64::from(report.epoch), || format!("machine {machine}: {report:?}"));
            self.judge_report(world, machine, &report);
        }
        if let Some(at) = self.failover.as_mut().and_then(|f| f.wants_wake(world, machine)) {
            self.at(world, at, Action::Agent { machine });
        }
    }

    /// A connection that fails must have a reason, and a program that re-establishes it.
    fn judge_report(&mut self, world: &mut World, machine: usize, report: &Report) {
        let now = world.now();
        let Some(failover) = &mut self.failover else { return };
        failover.count(report);
        let Some(end) = failover.end_of(machine, report.qpn) else {
            let what = format!("machine {machine} reports on an unknown connection: {report:?}");
            self.sink.report(now, "failover", what);
            return;
        };
        if matches!(report.outcome, Outcome::Moved { .. }) {
            return;
        }
        let recovery_ns = failover.plan().recovery_ns;
        let conn = &mut self.conns[end / 2];
        let already =
            std::mem::replace(&mut conn.failed, true) || conn.state == ConnState::Draining;
        let excused = match report.outcome {
            Outcome::AtomicInFlight => self.starts_anew() && self.has_atomic_outstanding(end),
            _ => already || !(self.scenario.mild || self.is_past_excuses(now, end)),
        };
        if !excused {
            self.sink.report(now, "failover", format!("end {end}: {report:?}"));
        }
        let at = now.plus_nanos(recovery_ns);
        self.at(world, at, Action::Reconnect { conn: end / 2 });
    }

    fn has_atomic_outstanding(&self, end: usize) -> bool {
        let ops = &self.end_plan(end).ops[..self.ends[end].next_op];
        let outstanding = self.ends[end].sends.len();
        ops[ops.len() - outstanding.min(ops.len())..].iter().any(|op| op.kind.is_atomic())
    }

    /// Whether connections that move restart their messages.
    pub(super) fn starts_anew(&self) -> bool {
        self.scenario.failover.as_ref().is_some_and(|plan| plan.config.mode == Mode::Shift)
    }

    /// How much longer connections with failover may take to give up.
    pub(super) fn patience_ns(&self) -> u64 {
        let plan = self.scenario.failover.as_ref();
        plan.map_or(0, |plan| PATIENCE_AFTER_HEALING * plan.config.give_up_ns)
    }

    /// The rule for shared receives at quiescence: none is missing.
    pub(super) fn judge_failover(&mut self, world: &mut World) {
        let now = world.now();
        for (machine, nic) in self.nics.iter().enumerate() {
            if let Some(srq) = &nic.srq {
                let (posted, held) = (srq.receives.len(), srq.queue.len() as usize);
                let what = format!("machine {machine}: {posted} receives posted, {held} held");
                let judged = if posted == held { Ok(()) } else { Err(what) };
                self.sink.check(now, "failover", judged);
            }
        }
    }
}
