//! The agent: connections, the messages about them, and timers.

use core::net::IpAddr;
use std::collections::{BTreeMap, HashMap, VecDeque};

use bowline_nic::{ControlError, CqId, Time};
use bowline_wire::Qpn;

use crate::config::Config;
use crate::connection::{Connection, Phase};
use crate::control::Control;
use crate::counters::Counters;
use crate::entry::Entry;
use crate::message::{Kind, Message};
use crate::probe::Probes;
use crate::rail::{Rail, Rails, on};
use crate::report::{Cause, Report};

/// A connection of an agent. Identifiers are not reused, so the identifier of a removed connection
/// stays invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// Manages the connections of a process that can move between two NICs.
///
/// # Driving it
/// Its owner calls [`handle`](Agent::handle) when one of [`control_cqs`](Agent::control_cqs) has
/// completions (the agent arms them itself) and when [`deadline`](Agent::deadline) has passed;
/// [`path_failed`](Agent::path_failed) for each [`Event::PathFailed`](bowline_nic::Event); and
/// [`port_changed`](Agent::port_changed) when the link of a NIC's port goes down or up. `now` comes
/// from one monotonic clock, which may differ from that of the NICs.
///
/// Whatever datagrams contain, an agent does not panic and holds no more than its connections. It
/// moves a connection only if the datagram has the token, which only the peer could have read in
/// the store.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) controls: [Control; 2],
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    by_qpn: HashMap<(Rail, Qpn), ConnectionId>,
    next: u64,
    pub(crate) ports_down: [bool; 2],
    pub(crate) probes: Probes,
    pub(crate) reports: VecDeque<Report>,
    pub(crate) moves: u64,
    pub(crate) counters: Counters,
    inbox: Vec<Message>,
}

/// Maximum number of reports kept for an owner that never polls them.
const MAX_REPORTS: usize = 4096;

impl Agent {
    /// An agent on two NICs. It creates its own queue pair on each.
    pub fn new(config: Config, rails: &mut dyn Rails) -> Result<Agent, ControlError> {
        let qkey = config.qkey;
        let mut open = |rail| {
            on(rails, rail, |nic, now| Control::new(nic, now, qkey))
                .unwrap_or(Err(ControlError::NotFound { what: "NIC" }))
        };
        let first = open(Rail::Default)?;
        let second = match open(Rail::Backup) {
            Ok(control) => control,
            Err(error) => {
                on(rails, Rail::Default, |nic, _| first.close(nic));
                return Err(error);
            }
        };
        Ok(Agent {
            config,
            controls: [first, second],
            connections: BTreeMap::new(),
            by_qpn: HashMap::new(),
            next: 0,
            ports_down: [false; 2],
            probes: Probes::default(),
            reports: VecDeque::new(),
            moves: 0,
            counters: Counters::default(),
            inbox: Vec::new(),
        })
    }

    /// The completion queues for its datagrams.
    pub fn control_cqs(&self) -> [CqId; 2] {
        [self.controls[0].cq, self.controls[1].cq]
    }

    /// Manages a connection: its QP on the default NIC, and its spare on the other.
    pub fn add(&mut self, qpns: [Qpn; 2], token: u128) -> ConnectionId {
        let id = ConnectionId(self.next);
        self.next += 1;
        for rail in Rail::ALL {
            self.by_qpn.insert((rail, qpns[rail.index()]), id);
        }
        self.connections.insert(id, Connection::new(qpns, token));
        id
    }

    /// What the peer needs to know about a connection.
    pub fn entry(&self, connection: ConnectionId) -> Option<Entry> {
        let connection = self.connections.get(&connection)?;
        let [first, second] = &self.controls;
        Some(Entry {
            addrs: [first.addr, second.addr],
            qpns: connection.qpns,
            agents: [first.qpn, second.qpn],
            qkey: self.config.qkey,
            token: connection.token,
            keys_differ: self.config.keys_differ,
        })
    }

    /// For a connection to a peer whose memory has different keys on its second NIC: the address of
    /// the peer's first NIC, and the QPs here.
    pub fn peer_keys(&self, connection: ConnectionId) -> Option<(IpAddr, [Qpn; 2])> {
        let connection = self.connections.get(&connection)?;
        let peer = connection.peer.filter(|peer| peer.keys_differ)?;
        Some((peer.addrs[0], connection.qpns))
    }

    /// Takes the peer's entry for a connection, which can move from now on. The QP must be
    /// connected. An entry that differs from an earlier one replaces it.
    pub fn connect(
        &mut self,
        rails: &mut dyn Rails,
        connection: ConnectionId,
        peer: &Entry,
    ) -> Result<(), ControlError> {
        let Some(connection) = self.connections.get_mut(&connection) else { return Ok(()) };
        if connection.peer == Some(*peer) || connection.home != Rail::Default {
            return Ok(());
        }
        let [first, spare] = connection.qpns;
        let gone = Err(ControlError::NotFound { what: "NIC" });
        on(rails, Rail::Backup, |nic, _| {
            nic.aim_spare_qp(spare, peer.addrs[1], peer.qpns[1])?;
            nic.set_peer_keys_differ(spare, peer.keys_differ)?;
            nic.guard_qp(spare, true)
        })
        .unwrap_or(gone)?;
        on(rails, Rail::Default, |nic, _| nic.guard_qp(first, true)).unwrap_or(gone)?;
        connection.peer = Some(*peer);
        Ok(())
    }

    /// Stops managing a connection that is about to be reset or destroyed. If it is on the backup
    /// rail, it is moved back, with its sends withheld.
    pub fn remove(&mut self, rails: &mut dyn Rails, connection: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            self.moves += u64::from(connection.bring_home(rails));
        }
        if let Some(connection) = self.connections.remove(&connection) {
            for rail in Rail::ALL {
                self.by_qpn.remove(&(rail, connection.qpns[rail.index()]));
            }
            on(rails, Rail::Default, |nic, _| nic.guard_qp(connection.qpns[0], false));
        }
    }

    /// A guarded QP has exhausted its retries and is held.
    pub fn path_failed(&mut self, now: Time, rails: &mut dyn Rails, rail: Rail, qpn: Qpn) {
        let Some(id) = self.by_qpn.get(&(rail, qpn)).copied() else { return };
        let Some(connection) = self.connections.get(&id) else { return };
        // This event may be outdated: since then the connection has been reconnected, or has moved.
        let held = on(rails, rail, |nic, _| nic.is_held(qpn)) == Some(true);
        if connection.home != rail || !held {
            return;
        }
        let silence = on(rails, rail, |nic, now| nic.silence_ns(now, qpn));
        let cause = if self.ports_down[rail.index()] { Cause::LocalPort } else { Cause::Path };
        match connection.phase {
            Phase::Waiting(_) | Phase::Failed => {}
            Phase::Settled | Phase::Returning(_) | Phase::Draining { .. } => {
                self.begin_move(now, rails, id, cause, silence.flatten());
            }
        }
    }

    /// The link of a NIC's port went down or came up.
    pub fn port_changed(&mut self, now: Time, rails: &mut dyn Rails, rail: Rail, up: bool) {
        self.ports_down[rail.index()] = !up;
        if up || self.ports_down[rail.other().index()] {
            return;
        }
        let stranded: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                connection.home == rail
                    && connection.peer.is_some()
                    && connection.phase != Phase::Failed
            })
            .map(|(id, _)| *id)
            .collect();
        for id in stranded {
            self.begin_move(now, rails, id, Cause::LocalPort, None);
        }
    }

    /// Handles received messages and timers that are due.
    pub fn handle(&mut self, now: Time, rails: &mut dyn Rails) {
        for rail in Rail::ALL {
            let mut inbox = core::mem::take(&mut self.inbox);
            let control = &self.controls[rail.index()];
            on(rails, rail, |nic, _| control.receive(nic, now, &mut inbox));
            for message in inbox.drain(..) {
                self.take(now, rails, rail, &message);
            }
            self.inbox = inbox;
        }
        let due: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.deadline().is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            match self.connections.get(&id).map(|connection| connection.phase) {
                Some(Phase::Waiting(_)) => self.wait_on(now, rails, id),
                Some(Phase::Returning(_)) => self.return_on(now, rails, id),
                Some(Phase::Draining { .. }) => self.drain_on(now, rails, id),
                Some(Phase::Settled) => self.rested(id),
                Some(Phase::Failed) | None => {}
            }
        }
        self.probe(now, rails);
    }

    fn take(&mut self, now: Time, rails: &mut dyn Rails, rail: Rail, message: &Message) {
        let Some(id) = self.by_qpn.get(&(Rail::Default, message.to)).copied() else { return };
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.token != message.token {
            self.counters.strangers += 1;
            return;
        }
        if connection.peer.is_none() || connection.phase == Phase::Failed {
            return;
        }
        match message.kind {
            Kind::Move | Kind::Moved => self.heard_move(now, rails, rail, id, message),
            Kind::Return => self.heard_return(now, rails, rail, id, message),
            Kind::Busy => self.heard_busy(now, rails, id, message),
            Kind::Draining => self.heard_draining(now, id, message),
            Kind::Probe => self.say(rails, rail, id, Kind::Echo, message.number),
            Kind::Echo => self.heard_echo(now, id, message.number),
        }
    }

    /// Sends a message to the agent of a connection's peer, over a rail.
    pub(crate) fn say(
        &self,
        rails: &mut dyn Rails,
        rail: Rail,
        id: ConnectionId,
        kind: Kind,
        number: u32,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(peer) = &connection.peer else { return };
        let message = Message {
            kind,
            to: peer.qpns[0],
            token: peer.token,
            epoch: connection.epoch,
            number,
            rail: connection.home,
            ports_down: self.ports_down,
            resume: connection.resume,
        };
        let to = (peer.addrs[rail.index()], peer.agents[rail.index()]);
        let control = &self.controls[rail.index()];
        on(rails, rail, |nic, now| control.send(nic, now, to, peer.qkey, &message));
    }

    /// When to call [`Agent::handle`], unless something arrives earlier.
    pub fn deadline(&self) -> Option<Time> {
        let connections = self.connections.values().filter_map(Connection::deadline).min();
        connections.into_iter().chain(self.probes.deadline()).min()
    }

    /// Number of connections that are on the backup rail now.
    pub fn away(&self) -> usize {
        self.connections.values().filter(|connection| connection.home == Rail::Backup).count()
    }

    /// How often a connection has been attached to a QP, on either rail.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Counters of what it has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The rail that a connection is on.
    pub fn home(&self, connection: ConnectionId) -> Option<Rail> {
        Some(self.connections.get(&connection)?.home)
    }

    /// The next report.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.reports.pop_front()
    }

    pub(crate) fn report(&mut self, report: Report) {
        if self.reports.len() < MAX_REPORTS {
            self.reports.push_back(report);
        }
    }

    /// Fails a connection as if there were no failover.
    pub(crate) fn fail(&mut self, rails: &mut dyn Rails, id: ConnectionId, why: Report) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.moves += u64::from(connection.bring_home(rails));
        let qpn = connection.qpn();
        on(rails, connection.home, |nic, now| nic.fail_qp(now, qpn));
        connection.phase = Phase::Failed;
        debug_assert!(why.outcome.handover().is_none());
        self.report(why);
    }
}
