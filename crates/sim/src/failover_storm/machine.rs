//! A host with two NICs, and the agent that looks after both.

use bowline_failover::{Agent, Config, LinkId, Rail, Rails, Report};
use bowline_nic::{CqId, Nic, PdId, SrqId, Time};
use bowline_wire::Qpn;

use crate::world::{NicId, World};

/// The two NICs of a machine, lent to its agent.
struct Lent<'a> {
    world: &'a mut World,
    nics: [NicId; 2],
}

impl Rails for Lent<'_> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut Nic, Time)) {
        let now = self.world.now();
        f(self.world.nic_mut(self.nics[rail.index()]), now);
    }
}

/// A host with two NICs.
pub(super) struct Machine {
    agent: Agent,
    pub(super) nics: [NicId; 2],
    /// On the second NIC: what mirrors the first one's.
    pub(super) pd: PdId,
    pub(super) cqs: Vec<CqId>,
    pub(super) srq: Option<SrqId>,
    /// How far the agent's clock is ahead.
    ahead_ns: u64,
    /// The agent is not called before.
    asleep_until: Time,
    /// Earliest wake-up that was asked for.
    armed: Time,
    /// Datagrams have come.
    mail: bool,
    /// Paths that failed while the agent slept.
    failed: Vec<(Rail, Qpn)>,
    /// When it was last called, and how often then.
    called: (Time, u32),
}

/// Calls of an agent at one instant. One that always has something to do would stop the clock.
const MAX_CALLS_PER_INSTANT: u32 = 10_000;

impl Machine {
    pub(super) fn new(
        world: &mut World,
        nics: [NicId; 2],
        config: &Config,
        ahead_ns: u64,
    ) -> Machine {
        let agent = Agent::new(config.clone(), &mut Lent { world, nics });
        let agent = agent.expect("within the limits");
        let pd = world.nic_mut(nics[1]).alloc_pd().expect("within the limits");
        Machine {
            agent,
            nics,
            pd,
            cqs: Vec::new(),
            srq: None,
            ahead_ns,
            asleep_until: Time::ZERO,
            armed: Time::NEVER,
            mail: true,
            failed: Vec::new(),
            called: (Time::ZERO, 0),
        }
    }

    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Calls the agent.
    pub(super) fn with<R>(
        &mut self,
        world: &mut World,
        f: impl FnOnce(&mut Agent, Time, &mut dyn Rails) -> R,
    ) -> R {
        let now = self.clock(world);
        f(&mut self.agent, now, &mut Lent { world, nics: self.nics })
    }

    fn clock(&self, world: &World) -> Time {
        world.now().plus_nanos(self.ahead_ns)
    }

    pub(super) fn rail_of(&self, nic: NicId) -> Rail {
        if nic == self.nics[0] { Rail::Default } else { Rail::Backup }
    }

    /// A completion queue has something; tells whether it is the agent's own.
    pub(super) fn notified(&mut self, nic: NicId, cq: CqId) -> bool {
        let own = self.agent.control_cqs()[self.rail_of(nic).index()] == cq;
        self.mail |= own;
        own
    }

    pub(super) fn path_failed(&mut self, nic: NicId, qpn: Qpn) {
        self.failed.push((self.rail_of(nic), qpn));
    }

    pub(super) fn sleep(&mut self, until: Time) {
        self.asleep_until = self.asleep_until.max(until);
    }

    pub(super) fn wake(&mut self) {
        self.asleep_until = Time::ZERO;
    }

    pub(super) fn is_asleep(&self, world: &World) -> bool {
        self.asleep_until > world.now() || world.is_paused(world.host_of(self.nics[0]))
    }

    /// Lets the agent do what there is to do; tells whether there was anything.
    pub(super) fn drive(&mut self, world: &mut World) -> bool {
        let due = self.agent.deadline().is_some_and(|at| at <= self.clock(world));
        if self.is_asleep(world) || !(due || self.mail || !self.failed.is_empty()) {
            return false;
        }
        let called = if self.called.0 == world.now() { self.called.1 + 1 } else { 0 };
        assert!(called < MAX_CALLS_PER_INSTANT, "an agent never comes to rest");
        self.called = (world.now(), called);
        for (rail, qpn) in core::mem::take(&mut self.failed) {
            self.with(world, |agent, now, rails| agent.path_failed(now, rails, rail, qpn));
        }
        self.mail = false;
        self.with(world, |agent, now, rails| agent.handle(now, rails));
        true
    }

    /// When to be woken, if that has not been asked for yet.
    pub(super) fn wants_wake(&mut self, world: &World) -> Option<Time> {
        if world.is_paused(world.host_of(self.nics[0])) {
            // Whoever resumes it looks again.
            return None;
        }
        let at = self.agent.deadline()?.as_nanos().saturating_sub(self.ahead_ns);
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
        self.agent.poll_report()
    }

    pub(super) fn home(&self, link: LinkId) -> Option<Rail> {
        self.agent.home(link)
    }
}
