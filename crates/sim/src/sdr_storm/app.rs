//! Both ends of both connections, as the world drives them.

use bowline_link::Faults;
use bowline_nic::{AddressVector, Nic, Time};

use super::attack::Known;
use super::plain::PlainEnd;
use super::reliable::ReliableEnd;
use super::report::SdrCoverage;
use super::scenario::SdrScenario;
use crate::attack::{AttackCoverage, AttackPlan, Forger};
use crate::check::Sink;
use crate::sealed_storm::Seals;
use crate::world::{App, HostId, NicId, World};

/// How long to wait before a receive without space is tried again.
pub(super) const RETRY_NS: u64 = 20_000_000;

/// The kinds of wake-ups; lower values are the hosts' own.
const HEAL: u64 = 8;
const PAUSE: u64 = 16;
const DOWN: u64 = 32;
const UP: u64 = 33;
const ATTACK: u64 = 64;

/// The context in which an end is serviced.
pub(super) struct Service<'a> {
    pub(super) nic: &'a mut Nic,
    pub(super) now: Time,
    pub(super) scenario: &'a SdrScenario,
    pub(super) sink: &'a mut Sink,
    pub(super) coverage: &'a mut SdrCoverage,
    /// Notes for the world's trace.
    notes: &'a mut Vec<(u64, String)>,
}

impl Service<'_> {
    pub(super) fn report(&mut self, checker: &'static str, what: String) {
        self.sink.report(self.now, checker, what);
    }

    pub(super) fn note(&mut self, word: u64, text: impl FnOnce() -> String) {
        self.notes.push((word, text()));
    }
}

struct Host {
    reliable: ReliableEnd,
    plain: PlainEnd,
    /// The state when the host was last serviced: it is serviced again only if that changes.
    seen: (u64, u64, u64, u64),
    /// Wake-ups so far.
    kicks: u64,
    armed: Time,
}

/// The application of the storm.
pub(super) struct SdrStorm<'a> {
    pub(super) scenario: &'a SdrScenario,
    hosts: Vec<Host>,
    pub(super) sink: Sink,
    pub(super) coverage: SdrCoverage,
    healed: bool,
    /// What outsiders know of all ends.
    pub(super) known: Vec<Known>,
    pub(super) forger: Forger,
    pub(super) attacked: AttackCoverage,
    /// Keys of connections that are sealed.
    pub(super) seals: Option<Seals>,
}

impl<'a> SdrStorm<'a> {
    /// Makes and connects everything, and schedules the scenario's faults.
    pub(super) fn new(world: &mut World, scenario: &'a SdrScenario) -> SdrStorm<'a> {
        let mut hosts: Vec<Host> = (0..2)
            .map(|host| {
                let nic = world.nic_mut(NicId(host));
                let pd = nic.alloc_pd().expect("within the limits");
                Host {
                    reliable: ReliableEnd::new(nic, pd, scenario, host),
                    plain: PlainEnd::new(nic, pd, scenario, host),
                    seen: (u64::MAX, 0, 0, 0),
                    kicks: 0,
                    armed: Time::NEVER,
                }
            })
            .collect();
        let infos: Vec<_> =
            hosts.iter().map(|h| (h.reliable.qp.info(), h.plain.qp.info())).collect();
        let mut known = Vec::new();
        for (host, (reliable, plain)) in infos.iter().enumerate() {
            let (first, second) = (&scenario.reliable.sdr, &scenario.plain.config);
            known.push(Known::new(host, first.mtu.bytes(), first.layout, &reliable.parts()[0]));
            known.push(Known::new(host, second.mtu.bytes(), second.layout, plain));
        }
        let seals = scenario.sealed.map(|rollover| Seals::new(scenario.seed, rollover));
        for (host, state) in hosts.iter_mut().enumerate() {
            let (reliable, plain) = &infos[1 - host];
            let av = AddressVector::new(world.nic(NicId(1 - host)).config().addr);
            let now = world.now();
            let nic = world.nic_mut(NicId(host));
            if let Some(seals) = &seals {
                let mut numbers = 0..;
                let mut next = || seals.between(numbers.next().unwrap_or(0), host, now);
                state.reliable.qp.seal(nic, &mut next).expect("it is not connected");
                state.plain.qp.seal(nic, &mut next).expect("it is not connected");
            }
            state.reliable.qp.connect(nic, now, av, reliable).expect("both ends are alike");
            state.plain.qp.connect(nic, now, av, plain).expect("both ends are alike");
        }
        world.wake_at(Time::from_nanos(scenario.heal_ns), HEAL);
        for (index, (_, at, _)) in scenario.pauses.iter().enumerate() {
            world.wake_at(Time::from_nanos(*at), PAUSE + index as u64);
        }
        for (at, ns) in &scenario.outages {
            world.wake_at(Time::from_nanos(*at), DOWN);
            world.wake_at(Time::from_nanos(at + ns), UP);
        }
        for (index, burst) in scenario.attack.iter().flat_map(|a| &a.bursts).enumerate() {
            world.wake_at(Time::from_nanos(burst.at_ns), ATTACK + index as u64);
        }
        let own_ids = scenario.attack.as_ref().is_some_and(|attack| attack.own_ids);
        let mut storm = SdrStorm {
            scenario,
            hosts,
            sink: Sink::new(scenario.seed),
            coverage: SdrCoverage::default(),
            healed: false,
            known,
            forger: Forger::new(AttackPlan::guesses(scenario.seed), own_ids),
            attacked: AttackCoverage::default(),
            seals,
        };
        storm.set_faults(world, scenario.faults);
        storm
    }

    fn cables(&self, world: &World) -> [crate::net::LinkId; 2] {
        [0, 1].map(|host| {
            let peer = world.nic(NicId(1 - host)).config().addr;
            world.link_from(HostId(host), peer).expect("the pair is routed")
        })
    }

    fn set_faults(&mut self, world: &mut World, faults: [Faults; 2]) {
        for (cable, faults) in self.cables(world).into_iter().zip(faults) {
            world.network_mut().link_mut(cable).set_faults(faults);
        }
    }

    fn set_up(&mut self, world: &mut World, up: bool) {
        for cable in self.cables(world) {
            world.network_mut().link_mut(cable).set_up(up);
        }
    }

    /// Whether everything is over.
    pub(super) fn is_done(&self) -> bool {
        let over = |h: &Host| {
            let idle =
                h.reliable.qp.poll_timeout().is_none() && h.plain.qp.poll_timeout().is_none();
            idle && h.reliable.is_done() && h.plain.is_done(self.scenario)
        };
        self.healed && self.hosts.iter().all(over)
    }

    /// What is not over yet.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let plain = self.hosts.iter().flat_map(|h| h.plain.unfinished(self.scenario));
        let mut all: Vec<_> =
            self.hosts.iter().flat_map(|h| h.reliable.unfinished()).chain(plain).collect();
        if all.is_empty() {
            all.push("a timer that never expires".to_owned());
        }
        all
    }

    /// Checks the final state, and adds up what the connections counted.
    pub(super) fn judge(&mut self, world: &World) {
        for host in &self.hosts {
            self.sink.check(world.now(), "guards", host.reliable.judge());
            self.sink.check(world.now(), "guards", host.plain.judge());
        }
        self.sink.check(world.now(), "bounds", crate::check::bounds::check(world));
    }

    /// What an attacker did.
    pub(super) fn attack_coverage(&self) -> AttackCoverage {
        let refused =
            |h: &Host| h.reliable.qp.stats().landing.refused + h.plain.qp.landing_stats().refused;
        let mut coverage = self.attacked;
        coverage.refused = self.hosts.iter().map(refused).sum();
        coverage
    }

    /// What was exercised.
    pub(super) fn coverage(&self) -> SdrCoverage {
        let mut coverage = self.coverage;
        for host in &self.hosts {
            coverage.add_reliable(&host.reliable.qp.stats(), &host.reliable.qp.path());
            coverage.add_landing(&host.plain.qp.landing_stats());
        }
        coverage
    }
}

impl App for SdrStorm<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        match token {
            HEAL => {
                self.healed = true;
                self.set_faults(world, [Faults::default(); 2]);
            }
            DOWN => self.set_up(world, false),
            UP => self.set_up(world, true),
            host @ 0..HEAL => {
                let host = &mut self.hosts[host as usize];
                host.kicks += 1;
                host.armed = Time::NEVER;
            }
            ATTACK.. => {
                let bursts = self.scenario.attack.iter().flat_map(|attack| &attack.bursts);
                if let Some(burst) = bursts.into_iter().nth((token - ATTACK) as usize) {
                    self.attack(world, burst.forgeries);
                }
            }
            pause => {
                if let Some((host, _, ns)) = self.scenario.pauses.get((pause - PAUSE) as usize) {
                    world.pause(HostId(*host), world.now().plus_nanos(*ns));
                }
            }
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let host = &mut self.hosts[nic.0];
        let stats = world.stats();
        let seen = (stats.delivered, stats.timeouts, stats.sent, host.kicks);
        if std::mem::replace(&mut host.seen, seen) == seen {
            return false;
        }
        let mut notes = Vec::new();
        let mut cx = Service {
            now: world.now(),
            nic: world.nic_mut(nic),
            scenario: self.scenario,
            sink: &mut self.sink,
            coverage: &mut self.coverage,
            notes: &mut notes,
        };
        let next = [host.reliable.service(&mut cx), host.plain.service(&mut cx)];
        for (word, text) in notes {
            world.note(word << 1 | nic.0 as u64, || format!("host{} {text}", nic.0));
        }
        if let Some(at) = next.into_iter().flatten().min()
            && at < host.armed
        {
            host.armed = at.max(world.now());
            world.wake_at(at, nic.0 as u64);
        }
        true
    }

    fn is_finished(&self, _world: &World) -> bool {
        !self.sink.is_empty() || self.is_done()
    }
}
