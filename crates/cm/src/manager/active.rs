//! The active end: REQ out, REP in, RTU out.

use core::net::IpAddr;

use bowline_link::Time;

use super::connection::{Connection, Role, State};
use super::{CmError, CmManager, Event};
use crate::mad::{About, CommId, Mad, Rej, RejectReason, Rep, Req, Rtu};

impl CmManager {
    /// Requests a connection with `to`. `req` describes it; the manager fills in the IDs of
    /// connection and adapter, and the CM's timeouts and retries.
    pub fn connect(&mut self, now: Time, to: IpAddr, req: &Req) -> Result<CommId, CmError> {
        let tid = self.fresh_transaction();
        let mut connection = Connection::new(Role::Active, to, req.service_id, tid);
        connection.local_qpn = req.local_qpn;
        connection.pace(self.config.response_timeout, self.config.max_retries.min(15));
        let deadline = now.plus_nanos(connection.interval_ns);
        let id = self.add(connection)?;
        let req = Req {
            local_comm_id: id,
            local_ca_guid: self.config.ca_guid,
            remote_response_timeout: self.config.response_timeout,
            local_response_timeout: self.config.response_timeout,
            max_cm_retries: self.config.max_retries.min(15),
            ..*req
        };
        let mad = Mad { transaction_id: tid, message: req.into() }.encode();
        self.change(id, |connection| connection.repeat(mad));
        self.enter(now, id, State::ReqSent, Some(deadline));
        self.send_bytes(to, mad);
        Ok(id)
    }

    pub(super) fn on_rep(&mut self, now: Time, from: IpAddr, tid: u64, rep: &Rep) {
        let id = rep.remote_comm_id;
        let Some(connection) = self.of_message(from, id, tid) else {
            // The peer waits for an end that is gone; tell it to stop.
            self.counters.drop_unknown += 1;
            return self.refuse_rep(from, tid, rep);
        };
        let is_ours = connection.remote_id == rep.local_comm_id;
        match connection.state {
            State::ReqSent => {
                let (remote_id, remote_qpn) = (rep.local_comm_id, rep.local_qpn);
                self.change(id, |connection| {
                    connection.remote_id = remote_id;
                    connection.remote_qpn = remote_qpn;
                    connection.repeat = None;
                });
                self.enter(now, id, State::RepReceived, None);
                self.tell(id, Event::Reply { id, rep: Box::new(*rep) });
            }
            State::RepReceived if is_ours => {
                self.counters.duplicates += 1;
                self.send_mra(id, About::Rep);
            }
            State::Established | State::Refused if is_ours && connection.role == Role::Active => {
                self.counters.duplicates += 1;
                self.send_repeat(id);
            }
            // The DREQ in flight will tell.
            State::DreqSent if is_ours => self.counters.duplicates += 1,
            _ => {
                self.counters.drop_state += 1;
                self.refuse_rep(from, tid, rep);
            }
        }
    }

    fn refuse_rep(&mut self, to: IpAddr, tid: u64, rep: &Rep) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            about: About::Rep,
            reason: RejectReason::INVALID_COMM_ID,
            ..Rej::default()
        };
        self.send(to, tid, rej);
    }

    /// Accepts the peer's REP: from here on the connection is established.
    pub fn establish(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8; Rtu::PRIVATE_LEN],
    ) -> Result<(), CmError> {
        let connection = self.owned(id)?;
        if connection.state != State::RepReceived {
            return Err(CmError::State { id, call: "establish" });
        }
        let (peer, tid) = (connection.peer, connection.tid);
        let rtu = Rtu {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            private_data: *private_data,
        };
        let mad = Mad { transaction_id: tid, message: rtu.into() }.encode();
        self.change(id, |connection| connection.repeat(mad));
        self.enter(now, id, State::Established, None);
        self.send_bytes(peer, mad);
        Ok(())
    }
}
