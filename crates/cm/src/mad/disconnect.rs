//! Messages that end a connection: DREQ and DREP (sections 12.6.10 and 12.6.11).

use bowline_wire::Qpn;

use super::CommId;
use super::fields::{Layout, Pass};

/// DREQ: asks to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dreq {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of it.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// The application's private data.
    pub private_data: [u8; Dreq::PRIVATE_LEN],
}

impl Dreq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 220;
}

impl Default for Dreq {
    fn default() -> Dreq {
        Dreq {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            remote_qpn: Qpn::new(0),
            private_data: [0; Dreq::PRIVATE_LEN],
        }
    }
}

impl Layout for Dreq {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bits(8, 0, 24, &mut self.remote_qpn);
        pass.bytes(12, &mut self.private_data);
    }
}

/// DREP: the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drep {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of it.
    pub remote_comm_id: CommId,
    /// The application's private data.
    pub private_data: [u8; Drep::PRIVATE_LEN],
}

impl Drep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 224;
}

impl Default for Drep {
    fn default() -> Drep {
        Drep {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            private_data: [0; Drep::PRIVATE_LEN],
        }
    }
}

impl Layout for Drep {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bytes(8, &mut self.private_data);
    }
}
