//! Resolving the queue pair of a datagram service: SIDR_REQ and SIDR_REP.

use core::net::IpAddr;

use bowline_link::Time;

use super::connection::{Connection, Role, State};
use super::table::Origin;
use super::{CmError, CmManager, Event};
use crate::mad::{CommId, Mad, SidrRep, SidrReq, SidrStatus};

impl CmManager {
    /// Asks `to` for the queue pair of a service.
    pub fn resolve(&mut self, now: Time, to: IpAddr, req: &SidrReq) -> Result<CommId, CmError> {
        let tid = self.fresh_transaction();
        let mut connection = Connection::new(Role::Active, to, req.service_id, tid);
        connection.pace(self.config.response_timeout, self.config.max_retries);
        let deadline = now.plus_nanos(connection.interval_ns);
        let id = self.add(connection)?;
        let req = SidrReq { request_id: id, ..*req };
        let mad = Mad { transaction_id: tid, message: req.into() }.encode();
        self.change(id, |connection| connection.repeat(mad));
        self.enter(now, id, State::SidrSent, Some(deadline));
        self.send_bytes(to, mad);
        Ok(id)
    }

    pub(super) fn on_sidr_req(&mut self, now: Time, from: IpAddr, tid: u64, req: &SidrReq) {
        let origin = Origin { peer: from, id: req.request_id, sidr: true };
        if let Some(&id) = self.origins.get(&origin) {
            self.counters.duplicates += 1;
            if self.of_message(from, id, tid).is_some_and(|c| c.state == State::SidrReplied) {
                self.send_repeat(id);
            }
            return;
        }
        let Some(listener) = self.admit(req.service_id) else {
            if !self.is_listening(req.service_id) {
                self.refuse_sidr(from, tid, req, SidrStatus::UNSUPPORTED);
            }
            return;
        };
        let mut connection = Connection::new(Role::Passive, from, req.service_id, tid);
        connection.listener = listener;
        connection.remote_id = req.request_id;
        match self.add(connection) {
            Ok(id) => {
                self.origins.insert(origin, id);
                self.enter(now, id, State::SidrReceived, None);
                self.tell(id, Event::SidrRequest { id, from, req: Box::new(*req) });
            }
            Err(_) => {
                self.leave_backlog(req.service_id);
                self.refuse_sidr(from, tid, req, SidrStatus::NO_QP);
            }
        }
    }

    fn refuse_sidr(&mut self, to: IpAddr, tid: u64, req: &SidrReq, status: SidrStatus) {
        let (request_id, service_id) = (req.request_id, req.service_id);
        self.send(to, tid, SidrRep { request_id, service_id, status, ..SidrRep::default() });
    }

    /// Answers a resolution. The manager fills in its ID and service.
    pub fn reply(&mut self, now: Time, id: CommId, rep: &SidrRep) -> Result<(), CmError> {
        if self.owned(id)?.state != State::SidrReceived {
            return Err(CmError::State { id, call: "reply" });
        }
        self.send_sidr_rep(now, id, rep);
        Ok(())
    }

    pub(super) fn answer_sidr(&mut self, now: Time, id: CommId, status: SidrStatus) {
        self.send_sidr_rep(now, id, &SidrRep { status, ..SidrRep::default() });
    }

    fn send_sidr_rep(&mut self, now: Time, id: CommId, rep: &SidrRep) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let rep =
            SidrRep { request_id: connection.remote_id, service_id: connection.service, ..*rep };
        let mad = Mad { transaction_id: connection.tid, message: rep.into() }.encode();
        connection.repeat(mad);
        let peer = connection.peer;
        // As long as the peer may retransmit.
        let deadline = now.plus_nanos(self.config.timewait_ns);
        self.enter(now, id, State::SidrReplied, Some(deadline));
        self.send_bytes(peer, mad);
    }

    pub(super) fn on_sidr_rep(&mut self, now: Time, from: IpAddr, tid: u64, rep: &SidrRep) {
        let id = rep.request_id;
        match self.of_message(from, id, tid).map(|connection| connection.state) {
            Some(State::SidrSent) => {
                self.close(now, id);
                self.tell(id, Event::SidrReply { id, rep: Box::new(*rep) });
            }
            Some(_) => self.counters.duplicates += 1,
            None => self.counters.drop_unknown += 1,
        }
    }
}
