//! All movable connections of a device: one agent for each lane, and the mapping from queue pairs
//! to connections.

use core::net::IpAddr;
use std::collections::HashMap;

use bowline_nic::{ControlError, CqId, Time};
use bowline_wire::Qpn;

use crate::agent::{Agent, ConnectionId};
use crate::config::Config;
use crate::entry::Entry;
use crate::keys::TaughtKeys;
use crate::mirror::{Engines, Place, Qp};
use crate::nic::RailNic;
use crate::rail::{Rail, Rails};
use crate::report::Report;

/// One life of a queue pair. A reset begins a new life, and what was looked up for an earlier one
/// no longer applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    /// The queue pair's number on the default rail.
    pub qpn: Qpn,
    /// The number of the life.
    pub life: u64,
}

/// Manages the connections of a device that can move between its rails.
///
/// A connection moves between the two engines of its lane, and each lane has its own [`Agent`] with
/// its own queue pairs, datagrams and probes. A supervisor's owner has the same duties as an
/// agent's.
pub struct Supervisor {
    agents: Vec<Agent>,
    watched: HashMap<Qpn, Watched>,
    lives: u64,
}

struct Watched {
    connection: ConnectionId,
    lane: usize,
    life: u64,
    /// The entry of its peer is known.
    ready: bool,
    keys: TaughtKeys,
}

/// The two engines of a lane, as its agent sees them.
struct LaneRails<'a, E> {
    engines: &'a E,
    lane: usize,
}

impl<E: Engines> Rails for LaneRails<'_, E> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut dyn RailNic, Time)) {
        // When an engine has ended, its connections are gone too, so there is nothing left to do.
        let _ = self.engines.with(Place { rail, lane: self.lane }, |nic, now| f(nic, now));
    }
}

impl Supervisor {
    /// A supervisor for the lanes of a device that has both rails. `config` returns the
    /// configuration of each lane's agent.
    pub fn new<E: Engines>(
        engines: &E,
        mut config: impl FnMut() -> Config,
    ) -> Result<Supervisor, ControlError> {
        let agents = (0..engines.layout().lanes)
            .map(|lane| Agent::new(config(), &mut LaneRails { engines, lane }))
            .collect::<Result<_, _>>()?;
        Ok(Supervisor { agents, watched: HashMap::new(), lives: 0 })
    }

    /// The completion queues for the agents' datagrams.
    pub fn control_cqs(&self) -> impl Iterator<Item = (Place, CqId)> {
        self.agents.iter().enumerate().flat_map(|(lane, agent)| {
            let cqs = Rail::ALL.into_iter().zip(agent.control_cqs());
            cqs.map(move |(rail, cq)| (Place { rail, lane }, cq))
        })
    }

    /// Manages a queue pair, and returns the entry for its peer. `None` if it has no spare.
    pub fn add(&mut self, qp: &Qp, token: u128) -> Option<(Life, Entry)> {
        let agent = &mut self.agents[qp.lane()];
        let connection = agent.add([qp.qpn(), qp.spare()?], token);
        let entry = agent.entry(connection)?;
        self.lives += 1;
        let life = self.lives;
        let (lane, keys) = (qp.lane(), TaughtKeys::default());
        self.watched.insert(qp.qpn(), Watched { connection, lane, life, ready: false, keys });
        Some((Life { qpn: qp.qpn(), life }, entry))
    }

    /// The current life of a queue pair, if it is managed.
    pub fn life_of(&self, qpn: Qpn) -> Option<Life> {
        self.watched.get(&qpn).map(|watched| Life { qpn, life: watched.life })
    }

    /// Takes the peer's entry, unless the queue pair has begun another life since. Returns whether
    /// this made the queue pair ready to move.
    pub fn peer_found<E: Engines>(
        &mut self,
        engines: &E,
        who: Life,
        entry: &Entry,
    ) -> Result<bool, ControlError> {
        let watched = self.watched.get_mut(&who.qpn).filter(|w| w.life == who.life);
        let Some(watched) = watched else { return Ok(false) };
        let rails = &mut LaneRails { engines, lane: watched.lane };
        self.agents[watched.lane].connect(rails, watched.connection, entry)?;
        // A spare with a new peer address knows no keys.
        watched.keys = TaughtKeys::default();
        Ok(!std::mem::replace(&mut watched.ready, true))
    }

    /// Teaches spares the keys of their peers' memory, for peers whose keys differ between NICs.
    /// Given the address of a peer's first NIC and the key there, `look` returns the key on its
    /// second NIC, if known; `changes` is a number that changes whenever `look` would answer
    /// differently.
    pub fn teach_keys<E: Engines>(
        &mut self,
        engines: &E,
        changes: u64,
        mut look: impl FnMut(IpAddr, u32) -> Option<u32>,
    ) {
        for Watched { connection, lane, keys, .. } in self.watched.values_mut() {
            let agent = &self.agents[*lane];
            let Some((peer, qpns)) = agent.peer_keys(*connection) else { continue };
            let Some(home) = agent.home(*connection) else { continue };
            let place = |rail| Place { rail, lane: *lane };
            // A NIC that is gone has no requests.
            let named = engines.with(place(home), |nic, _| {
                nic.named_keys(qpns[home.index()], keys.looked_until())
            });
            let Ok((named, until)) = named else { continue };
            if !keys.hear(&named, until, changes) {
                continue;
            }
            let _ = engines.with(place(Rail::Backup), |nic, _| {
                keys.teach(
                    |key| look(peer, key),
                    |named, here| {
                        // A spare that is gone needs no keys.
                        let _ = nic.learn_peer_key(qpns[1], named, here);
                    },
                );
            });
        }
    }

    /// Moves a queue pair back to the default rail and forgets it. Returns the life that this ends.
    pub fn remove<E: Engines>(&mut self, engines: &E, qp: &Qp) -> Option<Life> {
        let Watched { connection, lane, life, .. } = self.watched.remove(&qp.qpn())?;
        self.agents[lane].remove(&mut LaneRails { engines, lane }, connection);
        qp.seen_on(Rail::Default);
        Some(Life { qpn: qp.qpn(), life })
    }

    /// An engine reports that the path of a guarded QP has failed.
    pub fn path_failed<E: Engines>(&mut self, now: Time, engines: &E, at: Place, qpn: Qpn) {
        let Place { rail, lane } = at;
        if let Some(agent) = self.agents.get_mut(lane) {
            agent.path_failed(now, &mut LaneRails { engines, lane }, rail, qpn);
        }
    }

    /// The link of one lane's port went down or came up.
    pub fn port_changed<E: Engines>(&mut self, now: Time, engines: &E, at: Place, up: bool) {
        let Place { rail, lane } = at;
        if let Some(agent) = self.agents.get_mut(lane) {
            agent.port_changed(now, &mut LaneRails { engines, lane }, rail, up);
        }
    }

    /// Handles received messages and timers that are due.
    pub fn handle<E: Engines>(&mut self, now: Time, engines: &E) {
        for (lane, agent) in self.agents.iter_mut().enumerate() {
            agent.handle(now, &mut LaneRails { engines, lane });
        }
    }

    /// When to call [`Supervisor::handle`], unless something arrives earlier.
    pub fn deadline(&self) -> Option<Time> {
        self.agents.iter().filter_map(Agent::deadline).min()
    }

    /// Number of connections that are on the backup rail now.
    pub fn away(&self) -> usize {
        self.agents.iter().map(Agent::away).sum()
    }

    /// How often a connection has been attached to a QP, on either rail.
    pub fn moves(&self) -> u64 {
        self.agents.iter().map(Agent::moves).sum()
    }

    /// The number of connections, and how many of them are ready to move.
    pub fn count(&self) -> (usize, usize) {
        (self.watched.len(), self.watched.values().filter(|watched| watched.ready).count())
    }

    /// The rail that a queue pair is on, if it is managed.
    pub fn home(&self, qpn: Qpn) -> Option<Rail> {
        let watched = self.watched.get(&qpn)?;
        self.agents[watched.lane].home(watched.connection)
    }

    /// The agents, lane by lane.
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// The next report.
    pub fn poll_report(&mut self) -> Option<Report> {
        self.agents.iter_mut().find_map(Agent::poll_report)
    }

    /// The current entry of a queue pair, for its peer.
    pub fn entry(&self, qpn: Qpn) -> Option<Entry> {
        let watched = self.watched.get(&qpn)?;
        self.agents[watched.lane].entry(watched.connection)
    }
}
