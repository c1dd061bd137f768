//! Both ends, as the world drives them.

use bowline_nic::{AddressVector, Time};

use super::end::End;
use super::judge::{Judge, judge_writes};
use super::report::XpCoverage;
use super::scenario::XpScenario;
use crate::attack::{AttackCoverage, AttackPlan, Forger};
use crate::check::{Sink, bounds};
use crate::sealed_storm::Seals;
use crate::world::{App, HostId, NicId, World};

/// Everything has ended this long after the last deadline.
const SLACK_NS: u64 = 10_000;

/// Timers of the attacker; those before are the hosts'.
const ATTACK: u64 = 2;

/// The application of the storm.
pub(super) struct XpStorm<'a> {
    pub(super) scenario: &'a XpScenario,
    pub(super) ends: [End; 2],
    /// When each end wakes up next.
    armed: [Time; 2],
    pub(super) sink: Sink,
    pub(super) coverage: XpCoverage,
    pub(super) forger: Forger,
    pub(super) attacked: AttackCoverage,
    /// Keys of connections that are sealed.
    pub(super) seals: Option<Seals>,
}

impl<'a> XpStorm<'a> {
    /// Makes and connects everything.
    pub(super) fn new(world: &mut World, scenario: &'a XpScenario) -> XpStorm<'a> {
        let ends = [0, 1].map(|host| End::new(world.nic_mut(NicId(host)), scenario, host));
        let seals = scenario.sealed.map(|rollover| Seals::new(scenario.seed, rollover));
        for (host, end) in ends.iter().enumerate() {
            let now = world.now();
            let peer = AddressVector::new(world.nic(NicId(1 - host)).config().addr);
            let nic = world.nic_mut(NicId(host));
            if let Some(seals) = &seals {
                let sealed = nic.seal_qp(end.qpn, seals.between(0, host, now));
                sealed.expect("it is not connected");
            }
            end.connect(nic, now, scenario, (peer, ends[1 - host].qpn));
            let cable = world.link_from(HostId(host), peer.dst).expect("the pair is routed");
            world.network_mut().link_mut(cable).set_faults(scenario.faults[host]);
            world.wake_at(now, host as u64);
        }
        for (index, burst) in scenario.attack.iter().flat_map(|a| &a.bursts).enumerate() {
            world.wake_at(Time::from_nanos(burst.at_ns), ATTACK + index as u64);
        }
        let own_ids = scenario.attack.as_ref().is_some_and(|attack| attack.own_ids);
        XpStorm {
            scenario,
            ends,
            armed: [Time::NEVER; 2],
            sink: Sink::new(scenario.seed),
            coverage: XpCoverage::default(),
            forger: Forger::new(AttackPlan::guesses(scenario.seed), own_ids),
            attacked: AttackCoverage::default(),
            seals,
        }
    }

    /// When everything must have ended.
    pub(super) fn end_of(scenario: &XpScenario) -> Time {
        let sends = scenario.messages.iter().flatten().map(|plan| plan.at_ns + plan.timeout_ns);
        let receives = scenario.receives.iter().flatten().map(|plan| plan.at_ns + plan.timeout_ns);
        Time::from_nanos(sends.chain(receives).max().unwrap_or(0) + SLACK_NS)
    }

    /// Reports requests that have not ended.
    pub(super) fn check_ended(&mut self, now: Time) {
        for end in &self.ends {
            let (messages, receives) =
                (&self.scenario.messages[end.host], &self.scenario.receives[end.host]);
            let sends = end.sends.iter().zip(messages);
            let open_sends = sends.filter(|(posted, plan)| !posted.ended && plan.signaled).count();
            let open = end.receives.iter().filter(|posted| !posted.ended).count();
            let unposted = messages.len() + receives.len() - end.sends.len() - end.receives.len();
            if open_sends + open + unposted > 0 {
                let what = format!(
                    "host {}: {open_sends} requests and {open} receives have not ended, {unposted} were not posted",
                    end.host
                );
                self.sink.report(now, "deadlines", what);
            }
        }
    }

    /// Judges what is left when nothing moves any more.
    pub(super) fn judge(&mut self, world: &World) {
        let now = world.now();
        for end in &self.ends {
            let judged = judge_writes(end, self.scenario, &mut self.coverage);
            self.sink.check(now, "placement", judged);
            for (index, plan) in self.scenario.messages[end.host].iter().enumerate() {
                end.places.sources.restore(index, plan.len.into());
            }
            let places = &end.places;
            for memory in [&places.sources, &places.receives, &places.exposed, &places.reads] {
                self.sink.check(now, "placement", memory.check());
            }
        }
        self.sink.check(now, "bounds", bounds::check(world));
    }
}

impl App for XpStorm<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        let Some(index) = token.checked_sub(ATTACK) else {
            self.armed[token as usize] = Time::NEVER;
            return;
        };
        let mut bursts = self.scenario.attack.iter().flat_map(|attack| &attack.bursts);
        if let Some(burst) = bursts.nth(index as usize) {
            self.attack(world, burst.forgeries);
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let (now, host) = (world.now(), nic.0);
        let [first, second] = &mut self.ends;
        let (end, peer) = if host == 0 { (first, second) } else { (second, first) };
        let posts = end.next_post(self.scenario).is_some_and(|at| at <= now);
        if posts {
            let posted = end.post(world.nic_mut(nic), now, self.scenario, &peer.places);
            self.sink.check(now, "posting", posted);
        }
        let completions = end.poll(world.poll_nic(nic));
        let judge = Judge {
            scenario: self.scenario,
            now,
            peer_posted: peer.sends.len(),
            peer: &peer.places,
        };
        for completion in &completions {
            let judged = judge.completion(end, completion, &mut self.coverage);
            let what = || format!("host{host} {:#x} {:?}", completion.wr_id, completion.end);
            world.note(completion.wr_id << 1 | host as u64, what);
            self.sink.check(now, "completions", judged.map_err(|e| format!("{}: {e}", what())));
        }
        if let Some(at) = end.next_post(self.scenario)
            && at < self.armed[host]
        {
            self.armed[host] = at;
            world.wake_at(at.max(now), host as u64);
        }
        posts || !completions.is_empty()
    }

    fn is_finished(&self, _world: &World) -> bool {
        !self.sink.is_empty()
    }
}
