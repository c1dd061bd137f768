//! A host with two NICs, and the supervisor of the connections between them.

use std::rc::Rc;

use bowline_failover::mirror::Place;
use bowline_failover::{Config, Report, Supervisor};
use bowline_nic::{CqId, Time};
use bowline_wire::Qpn;

use crate::engines::{DeviceEngines, DeviceNics};
use crate::world::{HostId, World};

/// A host with two NICs.
pub(super) struct Machine {
    supervisor: Supervisor,
    nics: Rc<DeviceNics>,
    /// Moves that the program's sleepers have been woken for.
    moves_seen: u64,
    /// How far the agent's clock is ahead.
    ahead_ns: u64,
    /// The agent is not called before this.
    asleep_until: Time,
    /// Earliest wake-up that was requested.
    armed: Time,
    /// Datagrams have arrived.
    mail: bool,
    /// Paths that failed while the agent slept.
    failed: Vec<(Place, Qpn)>,
    /// When it was last called, and how often then.
    called: (Time, u32),
}

/// Calls of an agent at one instant. An agent that is always busy would stop the clock.
const MAX_CALLS_PER_INSTANT: u32 = 10_000;

impl Machine {
    pub(super) fn new(
        world: &mut World,
        nics: &Rc<DeviceNics>,
        config: &Config,
        ahead_ns: u64,
    ) -> Machine {
        let engines = DeviceEngines::new(world, nics);
        let supervisor = Supervisor::new(&engines, || config.clone()).expect("within the limits");
        Machine {
            supervisor,
            nics: Rc::clone(nics),
            moves_seen: 0,
            ahead_ns,
            asleep_until: Time::ZERO,
            armed: Time::NEVER,
            mail: true,
            failed: Vec::new(),
            called: (Time::ZERO, 0),
        }
    }

    pub(super) fn supervisor(&self) -> &Supervisor {
        &self.supervisor
    }

    /// Calls the supervisor.
    pub(super) fn with<R>(
        &mut self,
        world: &mut World,
        f: impl FnOnce(&mut Supervisor, Time, &DeviceEngines<'_>) -> R,
    ) -> R {
        let now = self.clock(world);
        f(&mut self.supervisor, now, &DeviceEngines::new(world, &self.nics))
    }

    /// Whether connections have moved since the last call.
    pub(super) fn has_moved(&mut self) -> bool {
        let moves = self.supervisor.moves();
        core::mem::replace(&mut self.moves_seen, moves) != moves
    }

    fn clock(&self, world: &World) -> Time {
        world.now().plus_nanos(self.ahead_ns)
    }

    fn host(&self, world: &World) -> HostId {
        world.host_of(self.nics.at(Place::lane(0)))
    }

    pub(super) fn lanes(&self) -> usize {
        self.nics.layout().lanes
    }

    /// A completion queue has entries; returns whether it is the agent's own.
    pub(super) fn notified(&mut self, at: Place, cq: CqId) -> bool {
        let own = self.supervisor.control_cqs().any(|control| control == (at, cq));
        self.mail |= own;
        own
    }

    pub(super) fn path_failed(&mut self, at: Place, qpn: Qpn) {
        self.failed.push((at, qpn));
    }

    pub(super) fn sleep(&mut self, until: Time) {
        self.asleep_until = self.asleep_until.max(until);
    }

    pub(super) fn wake(&mut self) {
        self.asleep_until = Time::ZERO;
    }

    pub(super) fn is_asleep(&self, world: &World) -> bool {
        self.asleep_until > world.now() || world.is_paused(self.host(world))
    }

    /// Lets the agent do its pending work; returns whether there was any.
    pub(super) fn drive(&mut self, world: &mut World) -> bool {
        let due = self.supervisor.deadline().is_some_and(|at| at <= self.clock(world));
        if self.is_asleep(world) || !(due || self.mail || !self.failed.is_empty()) {
            return false;
        }
        let called = if self.called.0 == world.now() { self.called.1 + 1 } else { 0 };
        assert!(called < MAX_CALLS_PER_INSTANT, "an agent never comes to rest");
        self.called = (world.now(), called);
        for (at, qpn) in core::mem::take(&mut self.failed) {
            self.with(world, |supervisor, now, engines| {
                supervisor.path_failed(now, engines, at, qpn);
            });
        }
        self.mail = false;
        self.with(world, |supervisor, now, engines| supervisor.handle(now, engines));
        true
    }

    /// When to wake it, if that has not been requested yet.
    pub(super) fn wants_wake(&mut self, world: &World) -> Option<Time> {
        if world.is_paused(self.host(world)) {
            // It is checked again when it resumes.
            return None;
        }
        let at = self.supervisor.deadline()?.as_nanos().saturating_sub(self.ahead_ns);
        let at = Time::from_nanos(at).max(self.asleep_until).max(world.now());
        (at < self.armed).then(|| {
            self.armed = at;
            at
        })
    }

    /// The wake-up has come.
    pub(super) fn woken(&mut self) {
        self.armed = Time::NEVER;
    }

    pub(super) fn poll_report(&mut self) -> Option<Report> {
        self.supervisor.poll_report()
    }
}
