//! REJ and MRA (sections 12.6.6 and 12.6.7).

use core::fmt;

use super::CommId;
use super::fields::{Field, Layout, Pass};
use crate::CmTimeout;

/// Why a message was rejected, in the standard's encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No queue pair is available.
    pub const NO_QP: RejectReason = RejectReason(1);
    /// Another resource is not available.
    pub const NO_RESOURCES: RejectReason = RejectReason(3);
    /// No response came in time.
    pub const TIMEOUT: RejectReason = RejectReason(4);
    /// The message is not supported.
    pub const UNSUPPORTED: RejectReason = RejectReason(5);
    /// The receiver knows no such connection.
    pub const INVALID_COMM_ID: RejectReason = RejectReason(6);
    /// The IDs do not belong together.
    pub const INVALID_COMM_INSTANCE: RejectReason = RejectReason(7);
    /// The service has no listener.
    pub const INVALID_SERVICE_ID: RejectReason = RejectReason(8);
    /// The service does not use that transport.
    pub const INVALID_TRANSPORT: RejectReason = RejectReason(9);
    /// The receiver still has a connection with that queue pair.
    pub const STALE_CONNECTION: RejectReason = RejectReason(10);
    /// The application rejected; its private data may give the reason.
    pub const CONSUMER: RejectReason = RejectReason(28);
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::NO_QP => "no queue pair is to be had",
            Self::NO_RESOURCES => "out of resources",
            Self::TIMEOUT => "the answer did not come in time",
            Self::UNSUPPORTED => "the request is not supported",
            Self::INVALID_COMM_ID => "no such connection",
            Self::INVALID_COMM_INSTANCE => "IDs of different connections",
            Self::INVALID_SERVICE_ID => "nobody listens there",
            Self::INVALID_TRANSPORT => "the service has another transport",
            Self::STALE_CONNECTION => "an older connection has that queue pair",
            Self::CONSUMER => "the application refused",
            Self(code) => return write!(f, "reject reason {code}"),
        };
        f.write_str(text)
    }
}

/// Which message a REJ or an MRA refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum About {
    /// A REQ.
    #[default]
    Req,
    /// A REP.
    Rep,
    /// Another message: for a REJ none in particular, for an MRA a LAP.
    Other,
    /// The reserved value.
    Reserved,
}

impl Field for About {
    fn from_bits(bits: u64) -> About {
        match bits {
            0 => About::Req,
            1 => About::Rep,
            2 => About::Other,
            _ => About::Reserved,
        }
    }

    fn to_bits(&self) -> u64 {
        match self {
            About::Req => 0,
            About::Rep => 1,
            About::Other => 2,
            About::Reserved => 3,
        }
    }
}

/// REJ: refuses a message, or gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rej {
    /// The sender's ID of the connection; 0 if it has none.
    pub local_comm_id: CommId,
    /// The receiver's ID of it; 0 if the sender knows none.
    pub remote_comm_id: CommId,
    /// What is rejected.
    pub about: About,
    /// Valid bytes of `info`, 7 bits.
    pub info_len: u8,
    /// Why.
    pub reason: RejectReason,
    /// More about the reason.
    pub info: [u8; Rej::INFO_LEN],
    /// The application's private data.
    pub private_data: [u8; Rej::PRIVATE_LEN],
}

impl Rej {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;
}

impl Default for Rej {
    fn default() -> Rej {
        Rej {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            about: About::Req,
            info_len: 0,
            reason: RejectReason(0),
            info: [0; Rej::INFO_LEN],
            private_data: [0; Rej::PRIVATE_LEN],
        }
    }
}

impl Layout for Rej {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bits(8, 0, 2, &mut self.about);
        pass.bits(9, 0, 7, &mut self.info_len);
        pass.bits(10, 0, 16, &mut self.reason);
        pass.bytes(12, &mut self.info);
        pass.bytes(84, &mut self.private_data);
    }
}

/// MRA: the message has arrived, the response will take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mra {
    /// The sender's ID of the connection.
    pub local_comm_id: CommId,
    /// The receiver's ID of it.
    pub remote_comm_id: CommId,
    /// What has arrived.
    pub about: About,
    /// How long the response may take.
    pub service_timeout: CmTimeout,
    /// The application's private data.
    pub private_data: [u8; Mra::PRIVATE_LEN],
}

impl Mra {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 222;
}

impl Default for Mra {
    fn default() -> Mra {
        Mra {
            local_comm_id: CommId(0),
            remote_comm_id: CommId(0),
            about: About::Req,
            service_timeout: CmTimeout::new(0),
            private_data: [0; Mra::PRIVATE_LEN],
        }
    }
}

impl Layout for Mra {
    fn fields(&mut self, pass: &mut Pass<'_>) {
        pass.bits(0, 0, 32, &mut self.local_comm_id);
        pass.bits(4, 0, 32, &mut self.remote_comm_id);
        pass.bits(8, 0, 2, &mut self.about);
        pass.bits(9, 0, 5, &mut self.service_timeout);
        pass.bytes(10, &mut self.private_data);
    }
}
