//! Sends and handles REJ and MRA.

use core::net::IpAddr;

use bowline_link::Time;

use super::connection::{Connection, Role, State};
use super::table::Origin;
use super::{CmError, CmManager, Ended, Event};
use crate::mad::{About, CommId, MAD_LEN, Mad, Mra, Rej, RejectReason};

impl CmManager {
    /// Rejects a request, or a reply to this end's own.
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        private_data: &[u8; Rej::PRIVATE_LEN],
    ) -> Result<(), CmError> {
        let state = self.owned(id)?.state;
        if !matches!(state, State::ReqReceived | State::RepReceived) {
            return Err(CmError::State { id, call: "reject" });
        }
        self.send_refusal(now, id, reason, private_data);
        Ok(())
    }

    /// Sends a REJ, and keeps it for a peer that repeats its message.
    pub(super) fn send_refusal(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejectReason,
        private_data: &[u8; Rej::PRIVATE_LEN],
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let peer = connection.peer;
        let mad = self.refusal(id, connection, reason, private_data);
        self.refuse(now, id, Some(mad));
        self.send_bytes(peer, mad);
    }

    fn refusal(
        &self,
        id: CommId,
        connection: &Connection,
        reason: RejectReason,
        private_data: &[u8; Rej::PRIVATE_LEN],
    ) -> [u8; MAD_LEN] {
        let about = match connection.state {
            State::ReqSent | State::ReqReceived => About::Req,
            _ => About::Rep,
        };
        let mut rej = Rej {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            about,
            reason,
            private_data: *private_data,
            ..Rej::default()
        };
        if reason == RejectReason::TIMEOUT {
            // The peer may know the connection only by this end's IDs.
            rej.info[..8].copy_from_slice(&self.config.ca_guid.to_be_bytes());
            rej.info_len = 8;
        }
        Mad { transaction_id: connection.tid, message: rej.into() }.encode()
    }

    /// The connection that a REJ refers to. A peer that gave up waiting may not know this end's ID.
    fn rejected(&self, from: IpAddr, tid: u64, rej: &Rej) -> Option<CommId> {
        let id = if rej.remote_comm_id == CommId(0) && rej.reason == RejectReason::TIMEOUT {
            let origin = Origin { peer: from, id: rej.local_comm_id, sidr: false };
            *self.origins.get(&origin)?
        } else {
            rej.remote_comm_id
        };
        let connection = self.of_message(from, id, tid)?;
        // Once the peer's ID is known, a REJ without it is a late response to a duplicate REQ.
        let is_peer = [CommId(0), rej.local_comm_id].contains(&connection.remote_id);
        is_peer.then_some(id)
    }

    pub(super) fn on_rej(&mut self, now: Time, from: IpAddr, tid: u64, rej: &Rej) {
        let Some(id) = self.rejected(from, tid, rej) else {
            self.counters.drop_unknown += 1;
            return;
        };
        let Some(connection) = self.connections.get(&id) else { return };
        let (state, role) = (connection.state, connection.role);
        let event =
            Event::Rejected { id, reason: rej.reason, private_data: Box::new(rej.private_data) };
        match state {
            State::ReqSent | State::RepReceived => {
                self.close(now, id);
                self.tell(id, event);
            }
            State::ReqReceived | State::RepSent => {
                // A REQ that this REJ overtook is not a new one.
                self.refuse(now, id, None);
                self.tell(id, event);
            }
            State::Established if role == Role::Active => {
                self.end(now, id, Ended::Rejected(rej.reason));
            }
            State::DreqSent => self.end(now, id, Ended::ByUs),
            _ => self.counters.duplicates += 1,
        }
    }

    pub(super) fn send_mra(&mut self, id: CommId, about: About) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mra = Mra {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            about,
            service_timeout: self.config.service_timeout,
            ..Mra::default()
        };
        self.send(connection.peer, connection.tid, mra);
    }

    pub(super) fn on_mra(&mut self, now: Time, from: IpAddr, tid: u64, mra: &Mra) {
        let id = mra.remote_comm_id;
        let Some(connection) = self.of_message(from, id, tid) else {
            self.counters.drop_unknown += 1;
            return;
        };
        match (connection.state, mra.about) {
            (State::ReqSent, About::Req) | (State::RepSent, About::Rep) => {
                let deadline = connection.after_mra(now, mra.service_timeout);
                self.set_deadline(id, Some(deadline));
            }
            _ => self.counters.drop_state += 1,
        }
    }

    /// Retransmits the response to a duplicate, if there is one.
    pub(super) fn send_repeat(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(mad) = &connection.repeat {
            let (peer, mad) = (connection.peer, **mad);
            self.send_bytes(peer, mad);
        }
    }
}
