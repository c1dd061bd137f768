//! The passive end: REQ in, REP out, RTU in.

use core::net::IpAddr;

use bowline_link::Time;

use super::connection::{Connection, Role, State};
use super::table::Origin;
use super::{CmError, CmManager, Event};
use crate::ServiceId;
use crate::mad::{About, CommId, Mad, Rej, RejectReason, Rep, Req, Rtu};

/// A listener for a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    /// Distinguishes it from earlier ones for the same service.
    pub(super) number: u64,
    pub(super) backlog: usize,
    /// Requests that the application has not answered.
    pub(super) pending: usize,
}

impl CmManager {
    /// Listens for a service. A request that exceeds the backlog is not answered, and the peer
    /// retransmits it.
    pub fn listen(&mut self, service: ServiceId, backlog: usize) -> Result<(), CmError> {
        if self.listeners.contains_key(&service) {
            return Err(CmError::InUse(service));
        }
        self.listeners_made += 1;
        let listener = Listener { number: self.listeners_made, backlog, pending: 0 };
        self.listeners.insert(service, listener);
        Ok(())
    }

    /// Stops listening. The application keeps the requests that it has got.
    pub fn unlisten(&mut self, service: ServiceId) {
        self.listeners.remove(&service);
    }

    /// Whether there is a listener for a service.
    pub fn is_listening(&self, service: ServiceId) -> bool {
        self.listeners.contains_key(&service)
    }

    pub(super) fn on_req(&mut self, now: Time, from: IpAddr, tid: u64, req: &Req) {
        let origin = Origin { peer: from, id: req.local_comm_id, sidr: false };
        if let Some(&id) = self.origins.get(&origin) {
            return self.on_repeated_req(from, tid, req, id);
        }
        if self.peer_qps.contains_key(&(from, req.local_qpn)) {
            // The connection that has it stays: anybody can forge a REQ (docs/cm.md).
            self.counters.stale += 1;
            return self.refuse_req(from, tid, req, RejectReason::STALE_CONNECTION);
        }
        if req.transport > 1 {
            return self.refuse_req(from, tid, req, RejectReason::INVALID_TRANSPORT);
        }
        let Some(listener) = self.admit(req.service_id) else {
            if !self.is_listening(req.service_id) {
                self.refuse_req(from, tid, req, RejectReason::INVALID_SERVICE_ID);
            }
            return;
        };
        let mut connection = Connection::new(Role::Passive, from, req.service_id, tid);
        connection.listener = listener;
        connection.remote_id = req.local_comm_id;
        connection.remote_qpn = req.local_qpn;
        connection.pace(req.local_response_timeout, req.max_cm_retries);
        match self.add(connection) {
            Ok(id) => {
                self.origins.insert(origin, id);
                self.enter(now, id, State::ReqReceived, None);
                self.tell(id, Event::Request { id, from, req: Box::new(*req) });
            }
            Err(_) => {
                self.leave_backlog(req.service_id);
                self.refuse_req(from, tid, req, RejectReason::NO_RESOURCES);
            }
        }
    }

    /// Takes a place in a listener's backlog; returns the listener's number, if there is one with a
    /// free place.
    pub(super) fn admit(&mut self, service: ServiceId) -> Option<u64> {
        let listener = self.listeners.get_mut(&service)?;
        if listener.pending >= listener.backlog {
            self.counters.drop_backlog += 1;
            return None;
        }
        listener.pending += 1;
        Some(listener.number)
    }

    /// Returns the place that [`admit`](CmManager::admit) has just taken.
    pub(super) fn leave_backlog(&mut self, service: ServiceId) {
        if let Some(listener) = self.listeners.get_mut(&service) {
            listener.pending -= 1;
        }
    }

    fn on_repeated_req(&mut self, from: IpAddr, tid: u64, req: &Req, id: CommId) {
        self.counters.duplicates += 1;
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.tid != tid {
            // Another request under an ID that the peer has used before.
            return self.refuse_req(from, tid, req, RejectReason::STALE_CONNECTION);
        }
        match connection.state {
            State::ReqReceived => self.send_mra(id, About::Req),
            State::RepSent | State::Refused => self.send_repeat(id),
            _ => {}
        }
    }

    fn refuse_req(&mut self, to: IpAddr, tid: u64, req: &Req, reason: RejectReason) {
        let remote_comm_id = req.local_comm_id;
        self.send(to, tid, Rej { remote_comm_id, about: About::Req, reason, ..Rej::default() });
    }

    /// Accepts a request. `rep` describes this end; the manager fills in the IDs of connection and
    /// adapter.
    pub fn accept(&mut self, now: Time, id: CommId, rep: &Rep) -> Result<(), CmError> {
        let connection = self.owned(id)?;
        if connection.state != State::ReqReceived {
            return Err(CmError::State { id, call: "accept" });
        }
        let (peer, tid) = (connection.peer, connection.tid);
        let deadline = now.plus_nanos(connection.interval_ns);
        let rep = Rep {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            local_ca_guid: self.config.ca_guid,
            ..*rep
        };
        let mad = Mad { transaction_id: tid, message: rep.into() }.encode();
        self.change(id, |connection| {
            connection.local_qpn = rep.local_qpn;
            connection.repeat(mad);
        });
        self.enter(now, id, State::RepSent, Some(deadline));
        self.send_bytes(peer, mad);
        Ok(())
    }

    pub(super) fn on_rtu(&mut self, now: Time, from: IpAddr, tid: u64, rtu: &Rtu) {
        let id = rtu.remote_comm_id;
        let Some(connection) = self.of_message(from, id, tid) else {
            self.counters.drop_unknown += 1;
            return;
        };
        if connection.remote_id != rtu.local_comm_id || connection.role != Role::Passive {
            self.counters.drop_unknown += 1;
            return;
        }
        match connection.state {
            State::RepSent => self.established(now, id, rtu.private_data),
            // Tell the peer that this end has given up.
            State::Refused => self.send_repeat(id),
            _ => self.counters.duplicates += 1,
        }
    }

    /// Reports that a message has arrived over a connection whose RTU has not: the peer has
    /// established it.
    pub fn notify_established(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        if self.owned(id)?.state == State::RepSent {
            self.established(now, id, [0; Rtu::PRIVATE_LEN]);
        }
        Ok(())
    }

    fn established(&mut self, now: Time, id: CommId, private_data: [u8; Rtu::PRIVATE_LEN]) {
        self.change(id, |connection| connection.repeat = None);
        self.enter(now, id, State::Established, None);
        self.tell(id, Event::Established { id, private_data: Box::new(private_data) });
    }
}
