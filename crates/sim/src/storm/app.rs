//! The application of a storm: reacts to completions and timers.

use core::convert::Infallible;
use std::rc::Rc;

use bowline_failover::mirror::{Place, Turn};
use bowline_link::Faults;
use bowline_nic::{Completion, CqId, Event, Time};

use super::crime::Crime;
use super::end::{Conn, ConnState, End, NicState};
use super::fec::FecWorld;
use super::report::Coverage;
use super::scenario::{ConnPlan, EndPlan, Role, Scenario};
use crate::attack::{AttackPlan, Forger};
use crate::check::Sink;
use crate::engines::DeviceNics;
use crate::failover_storm::Runtime;
use crate::sealed_storm::Seals;
use crate::world::{App, HostId, NicId, World};

/// What a timer is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Somebody may have something to do: the world calls everyone after every timer.
    Look,
    Heal,
    Pause {
        host: usize,
        ns: u64,
    },
    LinkDown {
        cable: usize,
    },
    LinkUp {
        cable: usize,
    },
    Reconnect {
        conn: usize,
    },
    Drain {
        end: usize,
    },
    Crime {
        conn: usize,
        crime: Crime,
    },
    /// An agent has something to do.
    Agent {
        machine: usize,
    },
    /// An agent is not called for a while.
    Nap {
        machine: usize,
        ns: u64,
    },
    /// A cable of a machine dies or comes back.
    Outage {
        index: usize,
        up: bool,
    },
    /// Both ends of a failed hostage are put into error.
    Bury {
        conn: usize,
    },
    /// An attacker sends what it has forged.
    Attack {
        forgeries: u32,
    },
    /// An end learns of its peer's spare.
    Entry {
        end: usize,
        epoch: u32,
    },
}

/// Traffic, its models, and what was found.
pub(super) struct Storm<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) sink: Sink,
    /// The engines of each NIC that the program knows.
    pub(super) devices: Vec<Rc<DeviceNics>>,
    pub(super) nics: Vec<NicState>,
    pub(super) conns: Vec<Conn>,
    /// Two for each connection.
    pub(super) ends: Vec<End>,
    pub(super) coverage: Coverage,
    pub(super) fec: FecWorld,
    pub(super) failover: Option<Runtime>,
    /// Makes an attacker's packets.
    pub(super) forger: Forger,
    pub(super) forged_bytes: usize,
    /// Keys of connections that are sealed.
    pub(super) seals: Option<Seals>,
    pub(super) healed: bool,
    actions: Vec<Action>,
}

/// Completions polled at a time, at most.
const POLL_MAX: usize = 16;

impl<'a> Storm<'a> {
    pub(super) fn new(scenario: &'a Scenario, devices: Vec<Rc<DeviceNics>>) -> Storm<'a> {
        Storm {
            scenario,
            sink: Sink::new(scenario.seed),
            devices,
            nics: Vec::new(),
            conns: Vec::new(),
            ends: Vec::new(),
            coverage: Coverage::default(),
            fec: FecWorld::new(scenario.seed),
            failover: None,
            forger: Forger::new(
                AttackPlan::guesses(scenario.seed),
                scenario.attack.as_ref().is_some_and(|attack| attack.own_ids),
            ),
            forged_bytes: 0,
            seals: scenario.sealed.map(|rollover| Seals::new(scenario.seed, rollover)),
            healed: false,
            actions: vec![Action::Look],
        }
    }

    pub(super) fn at(&mut self, world: &mut World, at: Time, action: Action) {
        if matches!(action, Action::Look) {
            world.wake_at(at, 0);
            return;
        }
        self.actions.push(action);
        world.wake_at(at, (self.actions.len() - 1) as u64);
    }

    pub(super) fn conn_plan(&self, end: usize) -> &'a ConnPlan {
        &self.scenario.conns[end / 2]
    }

    pub(super) fn end_plan(&self, end: usize) -> &'a EndPlan {
        &self.scenario.conns[end / 2].ends[end % 2]
    }

    pub(super) fn crime_of(&self, end: usize) -> Option<Crime> {
        match self.conn_plan(end).role {
            Role::Normal | Role::Hostage => None,
            Role::Sacrificial(crime) => Some(crime),
        }
    }

    /// Whether an attacker guesses the PSNs of an end's connection.
    pub(super) fn is_hostage(&self, end: usize) -> bool {
        self.conn_plan(end).role == Role::Hostage
    }

    fn heal(&mut self, world: &mut World) {
        for cable in world.network().cables() {
            let link = world.network_mut().link_mut(cable);
            link.set_faults(Faults::default());
            link.set_up(true);
        }
        self.healed = true;
        world.note(1, || "healed".into());
        self.heal_failover(world);
    }

    fn set_up(&mut self, world: &mut World, cable: usize, up: bool) {
        let cables = world.network().cables();
        let link = cables[cable % cables.len()];
        world.network_mut().link_mut(link).set_up(up || self.healed);
        world.note(2 + u64::from(up), || format!("link{} up: {up}", link.0));
    }

    fn poll_events(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        let (device, at) = self.device_of(nic);
        let owner = device.0;
        while let Some(event) = world.poll_nic(nic).poll_event() {
            any = true;
            match event {
                Event::CqNotify(cq) => {
                    self.coverage.cq_notifications += 1;
                    let of_agent =
                        self.failover.as_mut().is_some_and(|f| f.notified(owner, at, cq));
                    if !of_agent {
                        self.notified(device, at, cq);
                    }
                }
                Event::CqOverflow(cq) => self.overflowed(world, device, at, cq),
                Event::LastWqeReached(_) => self.coverage.last_wqe_events += 1,
                Event::QpAccessError(_) | Event::QpRequestError(_) | Event::QpFatal(_) => {
                    self.coverage.qp_error_events += 1;
                }
                Event::SqDrained(qpn) => self.drained(world, device, qpn),
                Event::PathFailed(qpn) => {
                    // Without failover no QP is guarded.
                    if let Some(failover) = &mut self.failover {
                        failover.path_failed(owner, at, qpn);
                    }
                }
                Event::CommEstablished(_) | Event::SrqLimit(_) | Event::PeerLost(_) => {}
            }
        }
        any
    }

    fn poll_completions(&mut self, world: &mut World, nic: NicId) -> bool {
        let plan = self.nic_plan(nic);
        let (event_driven, interval_ns, batch) =
            (plan.event_driven, plan.poll_interval_ns, plan.poll_batch.min(POLL_MAX));
        let state = &mut self.nics[nic.0];
        if interval_ns > 0 {
            if world.now() < state.next_poll {
                let (next, asked) =
                    (state.next_poll, std::mem::replace(&mut state.poll_asked, true));
                if !asked {
                    self.at(world, next, Action::Look);
                }
                return false;
            }
            state.next_poll = world.now().plus_nanos(interval_ns);
            state.poll_asked = false;
        }
        let mut any = false;
        for index in 0..self.nics[nic.0].cqs.len() {
            if event_driven && !std::mem::take(&mut self.nics[nic.0].ready[index]) {
                continue;
            }
            any |= self.drain_cq(world, nic, index, batch);
            if event_driven {
                // What arrived between the last poll and arming would raise no notification.
                let cq = &self.nics[nic.0].cqs[index];
                let Ok(()) = cq.arm(&self.engines(world, nic), || self.is_split(nic), false);
                any |= self.drain_cq(world, nic, index, batch);
            }
        }
        any
    }

    /// Polls everything, however rarely the application polls otherwise.
    pub(super) fn poll_now(&mut self, world: &mut World, nic: NicId) {
        for index in 0..self.nics[nic.0].cqs.len() {
            self.drain_cq(world, nic, index, POLL_MAX);
        }
    }

    fn drain_cq(&mut self, world: &mut World, nic: NicId, index: usize, batch: usize) -> bool {
        let mut any = false;
        loop {
            let mut polled = [Completion::default(); POLL_MAX];
            let mut filled = 0;
            let cq = &self.nics[nic.0].cqs[index];
            let split = self.is_split(nic);
            let engines = self.engines(world, nic);
            let Ok(count) = cq.poll(&engines, split, Turn::default, batch, |nic, _, cq, room| {
                let room = &mut polled[filled..filled + room];
                let taken = nic.poll_cq(cq, room).expect("the queue exists");
                filled += taken;
                Ok::<_, Infallible>(taken)
            });
            if count == 0 {
                return any;
            }
            any = true;
            for completion in &polled[..count] {
                self.completed(world, nic, completion);
            }
        }
    }

    /// An engine notifies of a completion queue of the program's.
    fn notified(&mut self, device: NicId, at: Place, cq: CqId) {
        let state = &mut self.nics[device.0];
        if let Some(index) = state.cqs.iter().position(|c| c.id(at) == cq) {
            state.ready[index] |= state.cqs[index].notified();
        }
    }

    pub(super) fn nic_plan(&self, nic: NicId) -> &'a super::scenario::NicPlan {
        let nics = self.scenario.hosts.iter().flat_map(|host| &host.nics);
        nics.into_iter().nth(nic.0).expect("every engine has a plan")
    }

    /// Whether all traffic has finished.
    pub(super) fn is_done(&self) -> bool {
        self.healed
            && self.failover.as_ref().is_none_or(|failover| {
                failover.is_settled() && !self.conns.iter().any(|conn| conn.failed)
            })
            && self.conns.iter().enumerate().all(|(index, conn)| match conn.state {
                ConnState::Draining => false,
                ConnState::Dead => [0, 1].iter().all(|s| self.has_drained(index * 2 + s)),
                ConnState::Up => [0, 1].iter().all(|side| self.end_is_done(index * 2 + side)),
            })
    }

    /// Whether an end of a dead connection has nothing outstanding. The last requests of a hostage
    /// may have succeeded without a completion.
    pub(super) fn has_drained(&self, end: usize) -> bool {
        let sends = &self.ends[end].sends;
        sends.is_empty() || (self.is_hostage(end) && sends.is_drained())
    }

    pub(super) fn end_is_done(&self, end: usize) -> bool {
        let state = &self.ends[end];
        let reliable = self.conn_plan(end).qp_type == bowline_nic::QpType::Rc;
        state.next_op == self.end_plan(end).ops.len()
            && state.sends.is_empty()
            && (!reliable
                || state.delivery.all_delivered()
                || self.conn_plan(end).role != Role::Normal)
    }
}

impl App for Storm<'_> {
    fn on_timer(&mut self, world: &mut World, token: u64) {
        match self.actions[token as usize] {
            Action::Look => {}
            Action::Heal => self.heal(world),
            Action::Pause { host, ns } => {
                let until = world.now().plus_nanos(ns);
                world.pause(HostId(host), until);
                if self.failover.is_some() {
                    world.pause(HostId(host + self.nics.len()), until);
                }
            }
            Action::LinkDown { cable } => self.set_up(world, cable, false),
            Action::LinkUp { cable } => self.set_up(world, cable, true),
            Action::Reconnect { conn } => self.reconnect(world, conn),
            Action::Drain { end } => self.drain(world, end),
            Action::Crime { conn, crime } => self.commit(world, conn, crime),
            Action::Agent { machine } => self.wake_agent(world, machine),
            Action::Nap { machine, ns } => self.nap(world, machine, ns),
            Action::Outage { index, up } => self.outage(world, index, up),
            Action::Bury { conn } => self.bury(world, conn),
            Action::Attack { forgeries } => self.attack(world, forgeries),
            Action::Entry { end, epoch } => self.introduce(world, end, epoch),
        }
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        if world.is_paused(world.host_of(nic)) || !self.sink.is_empty() {
            return false;
        }
        let mut any = self.poll_events(world, nic);
        let (nic, _) = self.device_of(nic);
        any |= self.drive_agent(world, nic.0);
        any |= self.poll_completions(world, nic);
        any |= self.post_shared_receives(world, nic);
        for index in 0..self.nics[nic.0].ends.len() {
            let end = self.nics[nic.0].ends[index];
            if self.conns[end / 2].state == ConnState::Up {
                any |= self.post_receives(world, end);
                any |= self.post_sends(world, end);
            }
        }
        any
    }

    fn is_finished(&self, _world: &World) -> bool {
        !self.sink.is_empty() || self.is_done()
    }
}
