//! The table of connections, and its indices.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::Qpn;
use rand::Rng;

use super::connection::{Connection, State};
use super::{CmError, CmManager, Ended, Event};
use crate::mad::{CommId, MAD_LEN};

/// A request of a peer: its sender, and the sender's ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Origin {
    pub(super) peer: IpAddr,
    pub(super) id: CommId,
    pub(super) sidr: bool,
}

/// A queue pair of a peer.
pub(super) type PeerQp = (IpAddr, Qpn);

impl CmManager {
    /// Adds a connection under an unguessable ID.
    pub(super) fn add(&mut self, connection: Connection) -> Result<CommId, CmError> {
        if self.connections.len() >= self.config.max_connections {
            return Err(CmError::Full(self.config.max_connections));
        }
        let id = loop {
            let drawn = self.rng.next_u32();
            let id = match self.config.comm_id_prefix {
                Some(prefix) => CommId(drawn >> 8 | u32::from(prefix) << 24),
                None => CommId(drawn),
            };
            // 0 stands for none.
            if id != CommId(0) && !self.connections.contains_key(&id) {
                break id;
            }
        };
        self.connections.insert(id, connection);
        Ok(id)
    }

    /// A connection that the application owns.
    pub(super) fn owned(&self, id: CommId) -> Result<&Connection, CmError> {
        let found = self.connections.get(&id).filter(|connection| connection.owned);
        found.ok_or(CmError::Unknown(id))
    }

    /// The connection that a message from `from` refers to, if it belongs to transaction `tid`.
    pub(super) fn of_message(&self, from: IpAddr, id: CommId, tid: u64) -> Option<&Connection> {
        self.connections.get(&id).filter(|c| c.peer == from && c.tid == tid)
    }

    /// Changes a connection that is known to exist.
    pub(super) fn change(&mut self, id: CommId, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
    }

    /// Moves a connection to a state, until `deadline`, and updates the indices.
    pub(super) fn enter(&mut self, now: Time, id: CommId, state: State, deadline: Option<Time>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let before = core::mem::replace(&mut connection.state, state);
        let at = (connection.peer, connection.remote_qpn);
        let (service, listener) = (connection.service, connection.listener);
        self.set_deadline(id, deadline);
        if before.is_pending()
            && !state.is_pending()
            && let Some(entry) = self.listeners.get_mut(&service)
            && entry.number == listener
        {
            entry.pending -= 1;
        }
        match (before.holds_peer_qp(), state.holds_peer_qp()) {
            (false, true) => {
                if let Some(older) = self.peer_qps.insert(at, id) {
                    // The peer has proved that its queue pair is in this connection now.
                    self.end(now, older, Ended::Replaced);
                }
            }
            (true, false) if self.peer_qps.get(&at) == Some(&id) => {
                self.peer_qps.remove(&at);
            }
            _ => {}
        }
    }

    /// Ends a connection that both ends know to be over.
    pub(super) fn end(&mut self, now: Time, id: CommId, how: Ended) {
        self.change(id, |connection| connection.repeat = None);
        let deadline = now.plus_nanos(self.config.timewait_ns);
        self.enter(now, id, State::TimeWait, Some(deadline));
        self.tell(id, Event::Disconnected { id, how });
    }

    /// Ends a connection that was never established. `refusal` answers a peer that repeats its
    /// request.
    pub(super) fn refuse(&mut self, now: Time, id: CommId, refusal: Option<[u8; MAD_LEN]>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.repeat = refusal.map(Box::new);
        // If the refusal is lost, the peer retransmits after an interval.
        let remember_ns = self.config.timewait_ns.max(2 * connection.interval_ns);
        self.enter(now, id, State::Refused, Some(now.plus_nanos(remember_ns)));
    }

    /// Drops all state of a connection, except its ID if the application owns it.
    pub(super) fn close(&mut self, now: Time, id: CommId) {
        self.enter(now, id, State::Closed, None);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.repeat = None;
        let origin = |sidr| Origin { peer: connection.peer, id: connection.remote_id, sidr };
        for origin in [origin(false), origin(true)] {
            if self.origins.get(&origin) == Some(&id) {
                self.origins.remove(&origin);
            }
        }
        if !connection.owned {
            self.connections.remove(&id);
        }
    }

    /// Tells the application, unless it has let go of the connection.
    pub(super) fn tell(&mut self, id: CommId, event: Event) {
        if self.connections.get(&id).is_some_and(|connection| connection.owned) {
            self.events.push_back(event);
        }
    }

    pub(super) fn set_deadline(&mut self, id: CommId, deadline: Option<Time>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = core::mem::replace(&mut connection.deadline, deadline) {
            self.timers.remove(&(before, id));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, id));
        }
    }
}
