//! Ends connections: DREQ, DREP, and an application that goes away.

use core::net::IpAddr;

use bowline_link::Time;

use super::connection::State;
use super::{CmError, CmManager, Ended};
use crate::mad::{CommId, Drep, Dreq, Mad, Rej, RejectReason, SidrStatus};

impl CmManager {
    /// Asks the peer to end a connection.
    pub fn disconnect(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        if self.owned(id)?.state != State::Established {
            return Err(CmError::State { id, call: "disconnect" });
        }
        self.send_dreq(now, id);
        Ok(())
    }

    /// The transport has found the peer of a connection gone. The application is told at once. The
    /// peer is also asked to disconnect, without waiting for its response: it may be there after
    /// all.
    pub fn peer_lost(&mut self, now: Time, id: CommId) -> Result<(), CmError> {
        if self.owned(id)?.state != State::Established {
            return Err(CmError::State { id, call: "peer_lost" });
        }
        self.send_dreq(now, id);
        self.end(now, id, Ended::PeerSilent);
        Ok(())
    }

    fn send_dreq(&mut self, now: Time, id: CommId) {
        let tid = self.fresh_transaction();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.dreq_tid = tid;
        let dreq = Dreq {
            local_comm_id: id,
            remote_comm_id: connection.remote_id,
            remote_qpn: connection.remote_qpn,
            ..Dreq::default()
        };
        let mad = Mad { transaction_id: tid, message: dreq.into() }.encode();
        connection.repeat(mad);
        let (peer, deadline) = (connection.peer, now.plus_nanos(connection.interval_ns));
        self.enter(now, id, State::DreqSent, Some(deadline));
        self.send_bytes(peer, mad);
    }

    pub(super) fn on_dreq(&mut self, now: Time, from: IpAddr, tid: u64, dreq: &Dreq) {
        let id = dreq.remote_comm_id;
        let Some(connection) = self.connections.get(&id).filter(|c| c.peer == from) else {
            // Tell the peer that there is nothing to disconnect.
            self.counters.drop_unknown += 1;
            return self.send_drep(from, tid, dreq);
        };
        let is_ours =
            connection.remote_id == dreq.local_comm_id && connection.local_qpn == dreq.remote_qpn;
        match connection.state {
            _ if !is_ours => self.counters.drop_unknown += 1,
            // In RepSent the RTU was lost, and the connection was established anyway.
            State::Established | State::RepSent | State::DreqSent => {
                self.send_drep(from, tid, dreq);
                self.end(now, id, Ended::ByPeer);
            }
            State::TimeWait | State::Refused | State::Closed => {
                self.counters.duplicates += 1;
                self.send_drep(from, tid, dreq);
            }
            _ => self.counters.drop_state += 1,
        }
    }

    fn send_drep(&mut self, to: IpAddr, tid: u64, dreq: &Dreq) {
        let drep = Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            ..Drep::default()
        };
        self.send(to, tid, drep);
    }

    pub(super) fn on_drep(&mut self, now: Time, from: IpAddr, tid: u64, drep: &Drep) {
        let id = drep.remote_comm_id;
        let found = self.connections.get(&id);
        match found.filter(|c| c.peer == from && c.dreq_tid == tid).map(|c| c.state) {
            Some(State::DreqSent) => self.end(now, id, Ended::ByUs),
            Some(_) => self.counters.duplicates += 1,
            None => self.counters.drop_unknown += 1,
        }
    }

    /// Releases an ID. The peer of an established or pending connection is told.
    pub fn forget(&mut self, now: Time, id: CommId) {
        let Some(connection) = self.connections.get_mut(&id).filter(|c| c.owned) else { return };
        connection.owned = false;
        self.events.retain(|event| event.id() != id);
        let nothing = [0; Rej::PRIVATE_LEN];
        match self.connections.get(&id).map_or(State::Closed, |c| c.state) {
            State::ReqSent => {
                self.send_refusal(now, id, RejectReason::TIMEOUT, &nothing);
            }
            State::ReqReceived | State::RepReceived | State::RepSent => {
                self.send_refusal(now, id, RejectReason::CONSUMER, &nothing);
            }
            State::Established => self.send_dreq(now, id),
            State::SidrReceived => self.answer_sidr(now, id, SidrStatus::REJECT),
            State::SidrSent | State::Closed => self.close(now, id),
            State::DreqSent | State::TimeWait | State::Refused | State::SidrReplied => {}
        }
    }
}
