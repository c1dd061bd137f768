//! Finds out whether a default rail works again, with probes at a steady pace to each peer that has
//! connections on the backup rail.

use core::net::IpAddr;
use std::collections::BTreeMap;

use bowline_nic::Time;
use bowline_wire::Qpn;

use crate::agent::{Agent, ConnectionId};
use crate::connection::Phase;
use crate::message::Kind;
use crate::rail::{Rail, Rails};
use crate::report::Cause;

/// A peer's agent on the default rail.
type PeerKey = (IpAddr, Qpn);

/// What is known about the default rail to a peer.
#[derive(Debug)]
struct Probe {
    /// One of the connections to the peer. Probes carry its token.
    connection: ConnectionId,
    /// The latest probe sent, and the latest one answered. On a long path, several are in flight.
    number: u32,
    heard: u32,
    next_at: Time,
    /// An answer has arrived since the last probe was sent.
    answered: bool,
    /// Since when all probes have been answered.
    good_since: Option<Time>,
}

/// How reliable the default rail to a peer has been.
#[derive(Clone, Copy, Debug)]
struct History {
    returned_at: Time,
    /// How long it must work before the next return.
    good_for_ns: u64,
}

/// All probes of an agent.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    probes: BTreeMap<PeerKey, Probe>,
    history: BTreeMap<PeerKey, History>,
    /// Number of probes sent so far, so that late answers from an earlier outage are not taken for
    /// new ones.
    asked: u32,
}

impl Probes {
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.probes.values().map(|probe| probe.next_at).min()
    }
}

impl Agent {
    fn peer_key(&self, id: ConnectionId) -> Option<PeerKey> {
        let peer = self.connections.get(&id)?.peer.as_ref()?;
        Some((peer.addrs[0], peer.agents[0]))
    }

    /// Starts, continues and ends probes, and returns connections when the rail works.
    pub(crate) fn probe(&mut self, now: Time, rails: &mut dyn Rails) {
        let mut wanted: BTreeMap<PeerKey, ConnectionId> = BTreeMap::new();
        for (id, connection) in &self.connections {
            // Only one end starts the return; the other follows.
            if connection.home == Rail::Backup
                && connection.phase == Phase::Settled
                && connection.rests_until.is_none()
                && self.outranks_peer(connection)
                && let Some(key) = self.peer_key(*id)
            {
                wanted.insert(key, *id);
            }
        }
        self.probes.probes.retain(|key, _| wanted.contains_key(key));
        for (key, connection) in wanted {
            let next_at = now.plus_nanos(self.config.probe_ns);
            let asked = self.probes.asked;
            let fresh = Probe {
                connection,
                number: asked,
                heard: asked,
                next_at,
                answered: false,
                good_since: None,
            };
            let probe = self.probes.probes.entry(key).or_insert(fresh);
            if probe.next_at > now {
                continue;
            }
            if !probe.answered {
                probe.good_since = None;
            }
            probe.connection = connection;
            probe.answered = false;
            self.probes.asked = asked.wrapping_add(1);
            probe.number = self.probes.asked;
            probe.next_at = next_at;
            let (number, good_since) = (probe.number, probe.good_since);
            let good_for =
                self.probes.history.get(&key).map_or(self.config.good_for_ns, |h| h.good_for_ns);
            let good = good_since.is_some_and(|since| now.nanos_since(since) >= good_for);
            if good && !self.ports_down[Rail::Default.index()] {
                self.return_from(now, rails, key);
            } else {
                self.say(rails, Rail::Default, connection, Kind::Probe, number);
            }
        }
    }

    /// The peer answered a probe.
    pub(crate) fn heard_echo(&mut self, now: Time, id: ConnectionId, number: u32) {
        let Some(key) = self.peer_key(id) else { return };
        if let Some(probe) = self.probes.probes.get_mut(&key)
            && is_between(number, probe.heard, probe.number)
        {
            probe.heard = number;
            probe.answered = true;
            probe.good_since.get_or_insert(now);
        }
    }

    /// The rail to a peer works: all connections to that peer return.
    fn return_from(&mut self, now: Time, rails: &mut dyn Rails, key: PeerKey) {
        self.probes.probes.remove(&key);
        let returning: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(id, connection)| {
                let settled = connection.home == Rail::Backup && connection.phase == Phase::Settled;
                let rests = connection.rests_until.is_some();
                settled
                    && !rests
                    && self.outranks_peer(connection)
                    && self.peer_key(**id) == Some(key)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in returning {
            self.begin_return(now, rails, id);
        }
    }

    /// Records returns, and those that did not last.
    pub(crate) fn note_move(&mut self, now: Time, id: ConnectionId, cause: Cause) {
        let Some(key) = self.peer_key(id) else { return };
        let (first, max) = (self.config.good_for_ns, self.config.good_for_max_ns);
        if cause == Cause::Return {
            let good_for_ns = self.probes.history.get(&key).map_or(first, |h| h.good_for_ns);
            let entry = History { returned_at: now, good_for_ns };
            self.probes.history.insert(key, entry);
        } else if let Some(history) = self.probes.history.get_mut(&key)
            && history.returned_at != Time::NEVER
        {
            let lasted = now.nanos_since(history.returned_at);
            history.good_for_ns =
                if lasted >= max { first } else { (history.good_for_ns * 2).min(max) };
            // When a rail fails, several connections fail with it: count it once.
            history.returned_at = Time::NEVER;
        }
    }
}

/// Whether `number` comes after `from`, and not after `to`, in wrapping order.
fn is_between(number: u32, from: u32, to: u32) -> bool {
    number.wrapping_sub(from).wrapping_sub(1) < to.wrapping_sub(from)
}
