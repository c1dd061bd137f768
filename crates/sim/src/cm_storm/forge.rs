//! An attacker who knows addresses, services and queue pairs, and guesses everything else.

use bowline_cm::mad::{
    About, CommId, Drep, Dreq, Mad, Message, Mra, Rej, RejectReason, Rep, Req, Rtu, SidrRep,
    SidrReq,
};
use bowline_wire::Qpn;

use super::app::{CONNECTIONS, DATAGRAMS};
use super::world::CmWorld;

impl CmWorld<'_> {
    /// Sends a message under a spoofed source.
    pub(super) fn forge(&mut self) {
        let hosts = self.hosts.len();
        let from = self.rng.below(hosts as u64) as usize;
        let to = (from + 1 + self.rng.below(hosts as u64 - 1) as usize) % hosts;
        let mad = Mad { transaction_id: self.rng.bits(), message: self.forged_message() };
        self.coverage.forged += 1;
        self.transmit(from, to, mad.encode());
    }

    fn forged_message(&mut self) -> Message {
        let ids = self.rng.bits();
        let (local_comm_id, remote_comm_id) = (CommId(ids as u32), CommId((ids >> 32) as u32));
        let known = self.ends.len() as u64;
        let end = self.rng.below(known.max(1)) as usize;
        let qpn = self.ends.get(end).map_or(Qpn::new(0x10), |end| end.qpn);
        match self.rng.below(11) {
            0..=1 => Req {
                local_comm_id,
                service_id: CONNECTIONS,
                local_qpn: qpn,
                private_data: [0xee; Req::PRIVATE_LEN],
                ..Req::default()
            }
            .into(),
            2 => Rep { local_comm_id, remote_comm_id, local_qpn: qpn, ..Rep::default() }.into(),
            3 => Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }.into(),
            4 => {
                let reason = RejectReason::STALE_CONNECTION;
                Rej { local_comm_id, remote_comm_id, reason, ..Rej::default() }.into()
            }
            5 => {
                let reason = RejectReason::TIMEOUT;
                Rej { local_comm_id, reason, ..Rej::default() }.into()
            }
            6 => Mra { local_comm_id, remote_comm_id, about: About::Req, ..Mra::default() }.into(),
            7 => Dreq { local_comm_id, remote_comm_id, remote_qpn: qpn, ..Dreq::default() }.into(),
            8 => Drep { local_comm_id, remote_comm_id, ..Drep::default() }.into(),
            9 => {
                let private_data = [0xee; SidrReq::PRIVATE_LEN];
                let service_id = DATAGRAMS;
                SidrReq {
                    request_id: local_comm_id,
                    service_id,
                    private_data,
                    ..Default::default()
                }
                .into()
            }
            _ => SidrRep { request_id: local_comm_id, qpn, ..SidrRep::default() }.into(),
        }
    }
}
