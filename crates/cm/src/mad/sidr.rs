//! Service ID resolution for datagrams: SIDR_REQ and SIDR_REP (section 12.11).

use bowline_wire::Qpn;

use super::CommId;
use super::fields::{Field, Layout, Pass};
use crate::ServiceId;

/// The outcome of a resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// The response contains the queue pair.
    pub const VALID: SidrStatus = SidrStatus(0);
    /// The service has no listener.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The application rejected.
    pub const REJECT: SidrStatus = SidrStatus(2);
    /// There is no queue pair for it.
    pub const NO_QP: SidrStatus = SidrStatus(3);
}

impl Field for SidrStatus {
    fn from_bits(bits: u64) -> SidrStatus {
        SidrStatus(bits as u8)
    }

    fn to_bits(&self) -> u64 {
        u64::from(self.0)
    }
}

/// SIDR_REQ: asks for the queue pair of a datagram service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrReq {
    /// The sender's ID of the request.
    pub request_id: CommId,
    /// The partition.
    pub pkey: u16,
    /// The requested service.
    pub service_id: ServiceId,
    /// The application's private data.
    pub private_data: [u8; SidrReq::PRIVATE_LEN],
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 216;
}

impl Default for SidrReq {
    fn default() -> SidrReq {
        SidrReq {
            request_id: CommId(0),
            pkey: 0,
            service_id: ServiceId(0),
            private_data: [0; SidrReq::PRIVATE_LEN],
        }
    }
}

impl Layout for SidrReq {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.request_id);
        pass.bits(4, 0, 16, &mut self.pkey);
        pass.bits(8, 0, 64, &mut self.service_id);
        pass.bytes(16, &mut self.private_data);
    }
}

/// SIDR_REP: answers a SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrRep {
    /// The receiver's ID of the request.
    pub request_id: CommId,
    /// Whether there is a queue pair.
    pub status: SidrStatus,
    /// Valid bytes of `info`.
    pub info_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// The requested service.
    pub service_id: ServiceId,
    /// The Q_Key that datagrams to it need.
    pub qkey: u32,
    /// More about the status.
    pub info: [u8; SidrRep::INFO_LEN],
    /// The application's private data.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 136;
}

impl Default for SidrRep {
    fn default() -> SidrRep {
        SidrRep {
            request_id: CommId(0),
            status: SidrStatus(0),
            info_len: 0,
            qpn: Qpn::new(0),
            service_id: ServiceId(0),
            qkey: 0,
            info: [0; SidrRep::INFO_LEN],
            private_data: [0; SidrRep::PRIVATE_LEN],
        }
    }
}

impl Layout for SidrRep {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.request_id);
        pass.bits(4, 0, 8, &mut self.status);
        pass.bits(5, 0, 8, &mut self.info_len);
        pass.bits(8, 0, 24, &mut self.qpn);
        pass.bits(12, 0, 64, &mut self.service_id);
        pass.bits(20, 0, 32, &mut self.qkey);
        pass.bytes(24, &mut self.info);
        pass.bytes(96, &mut self.private_data);
    }
}
