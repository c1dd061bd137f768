//! All groups, as the world drives them.

use std::collections::BTreeMap;

use bowline_multicast::plan::IdPool;
use bowline_multicast::{Event, GroupKey, InvalidTable, Merge, Policy};
use bowline_nic::{Completion, Time, WcStatus};

use super::control::Control;
use super::group::{Group, State};
use super::report::MulticastCoverage;
use super::scenario::{Action, MulticastScenario};
use crate::attack::AttackPlan;
use crate::check::{Sink, bounds};
use crate::rng::SimRng;
use crate::world::{App, HostId, NicId, World};

/// Completions polled at a time.
const POLLED: usize = 16;

/// The application of the storm.
pub(super) struct MulticastStorm<'a> {
    pub(super) scenario: &'a MulticastScenario,
    pub(super) groups: Vec<Group<'a>>,
    control: Control,
    /// A merge rule under test.
    merge: Option<&'static dyn Merge>,
    pub(super) sink: Sink,
    pub(super) coverage: MulticastCoverage,
    pub(super) guesses: SimRng,
    /// Actions that have happened.
    acted: usize,
}

impl<'a> MulticastStorm<'a> {
    /// Makes and connects everything.
    pub(super) fn new(
        world: &mut World,
        scenario: &'a MulticastScenario,
        merge: Option<&'static dyn Merge>,
    ) -> MulticastStorm<'a> {
        let control = Control::new(world, scenario.ecmp);
        let mut pools = BTreeMap::<usize, IdPool>::new();
        let groups = scenario.groups.iter().enumerate().map(|(index, plan)| {
            let pool = pools.entry(plan.sender).or_default();
            let mut take = || pool.take().expect("there are few groups");
            let key = GroupKey { sender: world.addr_of(HostId(plan.sender)), id: take() };
            let ids: Vec<_> = plan.members.iter().map(|_| take()).collect();
            Group::new(world, (index, plan), key, &ids, scenario.seed)
        });
        let groups = groups.collect();
        let mut storm = MulticastStorm {
            scenario,
            groups,
            control,
            merge,
            sink: Sink::new(scenario.seed),
            coverage: MulticastCoverage::default(),
            guesses: AttackPlan::guesses(scenario.seed),
            acted: 0,
        };
        storm.start(world);
        storm
    }

    fn start(&mut self, world: &mut World) {
        for group in &mut self.groups {
            group.connect_sender(world);
            for member in 0..group.members.len() {
                if group.plan.members[member].joins_before == 0 {
                    group.connect_member(world, member);
                }
            }
            let spec = group.spec(world, self.merge);
            let sender = sender_node(world, group);
            let installed = self.control.install(world, sender, &spec, group.trunk());
            installed.expect("the first tables are good");
        }
        let links = world.network().cables();
        for (index, link) in links.into_iter().enumerate() {
            let faults = self.scenario.faults[index % self.scenario.faults.len()];
            world.network_mut().link_mut(link).set_faults(faults);
        }
        for (token, (at, _)) in self.scenario.actions.iter().enumerate() {
            world.wake_at(Time::from_nanos(*at), token as u64);
        }
    }

    fn act(&mut self, world: &mut World, action: Action) {
        match action {
            Action::Post(group) => {
                self.groups[group].due += 1;
                self.post(world, group);
            }
            Action::Receive(group, member) => {
                let group = &mut self.groups[group];
                let member = &mut group.members[member];
                member.allowed = member.allowed.saturating_add(1);
                member.post_receives(world.nic_mut(member.nic), &group.plan.messages);
            }
            Action::Pause(group, member, until) => {
                let host = HostId(self.groups[group].members[member].plan.host);
                world.pause(host, Time::from_nanos(until));
            }
            Action::Kill(group, member) => self.kill(world, group, member),
            Action::Revoke(group, member) => {
                let member = &mut self.groups[group].members[member];
                if !std::mem::replace(&mut member.is_broken, true) {
                    self.coverage.revoked += 1;
                    let key = member.memory.at(0).key;
                    world.nic_mut(member.nic).deregister(key).expect("it is registered");
                }
            }
            Action::Leave(group, member) => self.leave(world, group, member),
            Action::Restart(switch) => {
                self.coverage.restarts += 1;
                let events = self.control.restart(switch);
                self.hear(events);
            }
            Action::Reinstall(switch) => {
                self.control.bring_up(switch);
                for group in 0..self.groups.len() {
                    self.update(world, group).expect("nobody joins");
                }
            }
            Action::LoseTrunk(group) => {
                if let Some(trunk) = self.groups[group].trunk() {
                    self.coverage.lost_trunks += 1;
                    self.control.lose(trunk);
                }
            }
            Action::Attack(forgeries) => self.attack(world, forgeries),
            Action::Heal => {
                for link in world.network().cables() {
                    world.network_mut().link_mut(link).set_faults(Default::default());
                }
            }
        }
    }

    /// Posts what is due. A member joins when everything posted before is done.
    fn post(&mut self, world: &mut World, index: usize) {
        loop {
            let group = &mut self.groups[index];
            if group.failed.is_some() || group.posted >= group.due {
                return;
            }
            if self.next_to_join(index).is_some() {
                let group = &self.groups[index];
                if group.completed < group.posted {
                    return;
                }
                self.join(world, index);
            }
            let posted = self.groups[index].post(world);
            self.sink.check(world.now(), "posting", posted);
        }
    }

    /// A member that is to join before the next request.
    fn next_to_join(&self, group: usize) -> Option<usize> {
        let group = &self.groups[group];
        let is_due = |member: &super::group::Member| {
            member.state == State::Waiting && member.plan.joins_before <= group.posted
        };
        group.members.iter().position(is_due)
    }

    /// Lets members join whose turn it is.
    fn join(&mut self, world: &mut World, index: usize) {
        let mut joined = Vec::new();
        while let Some(member) = self.next_to_join(index) {
            self.groups[index].connect_member(world, member);
            joined.push(member);
        }
        match self.update(world, index) {
            Ok(()) => self.coverage.joined += joined.len() as u64,
            Err(error) => {
                // A forgery or corruption has changed what the root believes was sent.
                let is_excused = !self.scenario.is_calm() && error == InvalidTable::NotDrained;
                if !is_excused {
                    self.sink.report(world.now(), "joining", error.to_string());
                }
                joined.iter().for_each(|m| self.groups[index].members[*m].state = State::Gone);
            }
        }
    }

    /// Gives the switches the current list of members.
    fn update(&mut self, world: &World, index: usize) -> Result<(), InvalidTable> {
        let events = self.control.events();
        self.hear(events);
        let group = &mut self.groups[index];
        if group.members.iter().all(|member| member.state != State::Active) {
            return Ok(());
        }
        let spec = group.spec(world, self.merge);
        // Too few are left for the policy: without tables, the sender's retries run out.
        if least_of(spec.root.policy) > spec.members.len() {
            return Ok(());
        }
        let group = &self.groups[index];
        self.control.install(world, sender_node(world, group), &spec, group.trunk())
    }

    fn kill(&mut self, world: &mut World, group: usize, member: usize) {
        let victim = &self.groups[group].members[member];
        if victim.is_dead || victim.state == State::Waiting {
            return;
        }
        self.coverage.killed += 1;
        self.poll_members(world, group);
        let victim = &mut self.groups[group].members[member];
        victim.is_dead = true;
        world.nic_mut(victim.nic).destroy_qp(victim.qpn).expect("it exists");
    }

    fn leave(&mut self, world: &mut World, index: usize, member: usize) {
        // Members evicted meanwhile must not be listed again.
        let events = self.control.events();
        self.hear(events);
        let group = &mut self.groups[index];
        let active = group.members.iter().filter(|m| m.state == State::Active).count();
        let least = least_of(group.plan.policy);
        if group.members[member].state != State::Active || active <= least {
            return;
        }
        self.coverage.left += 1;
        group.members[member].state = State::Gone;
        self.update(world, index).expect("nobody joins");
    }

    /// Handles events of the switches.
    fn hear(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Evicted { group, member, .. } => {
                    self.coverage.evicted += 1;
                    if self.scenario.is_calm() {
                        let what = format!("member {member} was evicted without a reason");
                        self.sink.report(Time::ZERO, "policy", what);
                    }
                    let group = self.groups.iter_mut().find(|g| g.key == group);
                    let mut members = group.into_iter().flat_map(|g| &mut g.members);
                    if let Some(member) = members.find(|m| m.id == member) {
                        member.state = State::Gone;
                    }
                }
                Event::Failed { group, .. } => {
                    let group = self.groups.iter_mut().find(|g| g.key == group);
                    group.into_iter().for_each(|group| group.failed_by_policy = true);
                }
            }
        }
    }

    /// Judges the receives of a group's members that have completed.
    fn poll_members(&mut self, world: &mut World, index: usize) -> bool {
        let mut any = false;
        for number in 0..self.groups[index].members.len() {
            let member = &self.groups[index].members[number];
            if member.is_dead {
                continue;
            }
            let (nic, cq) = (member.nic, member.cq);
            let mut polled = [Completion::default(); POLLED];
            loop {
                let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
                for completion in &polled[..count] {
                    let group = &mut self.groups[index];
                    let member = &group.members[number];
                    let judged = match completion.status {
                        WcStatus::Success => {
                            group.judge_receive(member, completion, self.scenario.seed)
                        }
                        _ if member.is_broken => continue,
                        status => Err(format!("a receive failed with {status}")),
                    };
                    let judged = judged.map_err(|e| format!("group {index} member {number}: {e}"));
                    group.members[number].received += 1;
                    self.sink.check(world.now(), "receives", judged);
                }
                any |= count > 0;
                if count < POLLED {
                    break;
                }
            }
        }
        any
    }

    /// Judges the requests of a group's sender that have completed.
    fn poll_sender(&mut self, world: &mut World, index: usize) -> bool {
        let (nic, cq) = (self.groups[index].nic, self.groups[index].cq);
        let mut polled = [Completion::default(); POLLED];
        let count = world.poll_nic(nic).poll_cq(cq, &mut polled).expect("it exists");
        if count == 0 {
            return false;
        }
        let events = self.control.events();
        self.hear(events);
        self.poll_members(world, index);
        for completion in &polled[..count] {
            let judged = self.judge_send(index, completion);
            let what = format!("group {index} request {}", completion.wr_id);
            world.note(completion.wr_id << 8 | index as u64, || {
                format!("{what}: {}", completion.status)
            });
            let judged = judged.map_err(|error| format!("{what}: {error}"));
            self.sink.check(world.now(), "completions", judged);
        }
        self.post(world, index);
        true
    }

    fn judge_send(&mut self, index: usize, completion: &Completion) -> Result<(), String> {
        let (seed, is_calm) = (self.scenario.seed, self.scenario.is_calm());
        let group = &mut self.groups[index];
        let message = completion.wr_id as usize;
        match (completion.status, group.failed) {
            (WcStatus::WrFlushErr, Some(_)) => Ok(()),
            (status, Some(_)) => Err(format!("{status} after a request that failed")),
            (WcStatus::Success, None) if message != group.completed => {
                Err(format!("completed before request {}", group.completed))
            }
            (WcStatus::Success, None) => {
                group.completed += 1;
                self.coverage.completed += 1;
                self.groups[index].judge_success(message, seed, &mut self.coverage)
            }
            (status, None) => {
                group.failed = Some(status);
                group.judge_failure(message, status, is_calm, &mut self.coverage)
            }
        }
    }

    /// Whether everything is done, and nothing more will happen.
    pub(super) fn is_done(&self) -> bool {
        self.acted == self.scenario.actions.len() && self.groups.iter().all(Group::is_finished)
    }

    /// What is not done.
    pub(super) fn unfinished(&self) -> String {
        let of = |group: &Group<'_>| {
            let count = group.plan.messages.len();
            format!("group {}: {} of {count} requests", group.index, group.completed)
        };
        let open = self.groups.iter().filter(|group| !group.is_finished()).map(of);
        open.collect::<Vec<_>>().join("; ")
    }

    /// Checks the final state at quiescence.
    pub(super) fn judge(&mut self, world: &World) {
        let (now, seed) = (world.now(), self.scenario.seed);
        let events = self.control.events();
        self.hear(events);
        let had_restarts = self.coverage.restarts > 0;
        for group in &self.groups {
            let judged = group.judge_rest(seed, had_restarts);
            let judged = judged.map_err(|e| format!("group {}: {e}", group.index));
            self.sink.check(now, "memory", judged);
        }
        // The paper's rule forwards every member's NAK, and the sender goes back for each: a flood.
        let may_flood = self.groups.iter().any(|group| group.plan.as_in_the_paper);
        let bounded = if may_flood { bounds::check_queues(world) } else { bounds::check(world) };
        self.sink.check(now, "bounds", bounded);
    }

    /// What was exercised.
    pub(super) fn coverage(&self) -> MulticastCoverage {
        let mut coverage = MulticastCoverage {
            switches: self.control.counters(),
            by_ip_multicast: self.control.by_ip_multicast(),
            ..self.coverage
        };
        for group in &self.groups {
            let plan = group.plan;
            let is_shared = plan.members.iter().enumerate().any(|(index, member)| {
                plan.members[..index].iter().any(|other| other.host == member.host)
            });
            coverage.groups += 1;
            coverage.members += plan.members.len() as u64;
            coverage.single += u64::from(plan.members.len() == 1);
            coverage.shared += u64::from(is_shared);
            coverage.whole += u64::from(group.failed.is_none());
            coverage.wraps += u64::from(group.psn_of(group.completed).get() < plan.first_psn);
        }
        coverage
    }
}

/// The group fails with fewer members than this.
fn least_of(policy: Policy) -> usize {
    match policy {
        Policy::Fail => 1,
        Policy::Evict { least, .. } => least,
        Policy::Quorum { k, .. } => k,
    }
}

fn sender_node(world: &World, group: &Group<'_>) -> crate::net::NodeId {
    world.node_of(HostId(group.plan.sender))
}

impl App for MulticastStorm<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        self.acted += 1;
        self.act(world, self.scenario.actions[token as usize].1);
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        for index in 0..self.groups.len() {
            if self.groups[index].nic == nic {
                any |= self.poll_sender(world, index);
            } else if self.groups[index].members.iter().any(|member| member.nic == nic) {
                any |= self.poll_members(world, index);
            }
        }
        any
    }

    fn is_finished(&self, _world: &World) -> bool {
        !self.sink.is_empty() || self.is_done()
    }
}
