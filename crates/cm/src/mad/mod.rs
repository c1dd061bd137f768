//! Messages of the communication manager as bytes: chapter 12 of the InfiniBand specification,
//! volume 1.
//!
//! A message is one management datagram (MAD) of 256 bytes: a header of 24 and a body of 232.
//! Bodies have no variable part, and every value of every field is valid, so only the header can be
//! wrong. [`Mad::decode`] and [`Mad::encode`] are inverse to each other except for reserved bits,
//! which are sent as 0.

mod connect;
mod disconnect;
mod fields;
mod refuse;
mod sidr;

#[cfg(test)]
mod tests;

use crate::ServiceId;
pub use connect::{Path, Rep, Req, Rtu};
pub use disconnect::{Drep, Dreq};
use fields::{BODY_LEN, Layout};
pub use refuse::{About, Mra, Rej, RejectReason};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Bytes of its header.
const HEADER_LEN: usize = 24;
/// The Q_Key of queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;
const CM_CLASS: u8 = 0x07;
const CM_CLASS_VERSION: u8 = 2;
/// The only method of CM messages; none is a response in the sense of MADs.
const METHOD_SEND: u8 = 0x03;

/// An ID that one end assigns to a connection, or to the resolution of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

/// Why bytes are not a CM message. The sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// Not the length of a MAD.
    #[error("a MAD has 256 bytes, not {0}")]
    Length(usize),
    /// The base version is not 1.
    #[error("MAD base version {0}, only 1 is defined")]
    BaseVersion(u8),
    /// Not the class of the CM.
    #[error("management class {0:#04x}, the CM's is 0x07")]
    Class(u8),
    /// An unknown version of the CM.
    #[error("CM class version {0}, only 2 is known")]
    ClassVersion(u8),
    /// Not the only valid method.
    #[error("MAD method {0:#04x}, the CM's is 0x03 (Send)")]
    Method(u8),
    /// An unknown message.
    #[error("CM attribute {0:#06x} is not known")]
    Attribute(u16),
}

/// A message of the CM and its transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction: a response carries that of its request.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

macro_rules! messages {
    ($($name:ident, $attribute:literal, $what:literal;)*) => {
        /// A message of the CM.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // each type says what it is
        pub enum Message {
            $($name($name),)*
        }

        impl Message {
            /// The name that the standard gives it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Message::$name(_) => $what,)*
                }
            }

            fn attribute(&self) -> u16 {
                match self {
                    $(Message::$name(_) => $attribute,)*
                }
            }

            fn read(attribute: u16, body: &[u8; BODY_LEN]) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$name($name::read(body))),)*
                    _ => None,
                }
            }

            fn write(&self, body: &mut [u8; BODY_LEN]) {
                match self {
                    $(Message::$name(message) => message.write(body),)*
                }
            }
        }

        $(impl From<$name> for Message {
            fn from(message: $name) -> Message {
                Message::$name(message)
            }
        })*
    };
}

messages! {
    Req, 0x0010, "REQ";
    Mra, 0x0011, "MRA";
    Rej, 0x0012, "REJ";
    Rep, 0x0013, "REP";
    Rtu, 0x0014, "RTU";
    Dreq, 0x0015, "DREQ";
    Drep, 0x0016, "DREP";
    SidrReq, 0x0017, "SIDR_REQ";
    SidrRep, 0x0018, "SIDR_REP";
}

impl Mad {
    /// Reads a MAD.
    pub fn decode(bytes: &[u8]) -> Result<Mad, MadError> {
        let Ok(bytes) = <&[u8; MAD_LEN]>::try_from(bytes) else {
            return Err(MadError::Length(bytes.len()));
        };
        let [base_version, class, class_version, method, ..] = *bytes;
        if base_version != BASE_VERSION {
            return Err(MadError::BaseVersion(base_version));
        }
        if class != CM_CLASS {
            return Err(MadError::Class(class));
        }
        if class_version != CM_CLASS_VERSION {
            return Err(MadError::ClassVersion(class_version));
        }
        if method != METHOD_SEND {
            return Err(MadError::Method(method));
        }
        let transaction_id = u64::from_be_bytes(chunk(bytes, 8));
        let attribute = u16::from_be_bytes(chunk(bytes, 16));
        let body = chunk(bytes, HEADER_LEN);
        match Message::read(attribute, &body) {
            Some(message) => Ok(Mad { transaction_id, message }),
            None => Err(MadError::Attribute(attribute)),
        }
    }

    /// Encodes the MAD. Values are truncated to the width of their fields.
    pub fn encode(&self) -> [u8; MAD_LEN] {
        let mut body = [0; BODY_LEN];
        self.message.write(&mut body);
        let mut out = [0; MAD_LEN];
        out[..4].copy_from_slice(&[BASE_VERSION, CM_CLASS, CM_CLASS_VERSION, METHOD_SEND]);
        out[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        out[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        out[HEADER_LEN..].copy_from_slice(&body);
        out
    }
}

/// Which manager a MAD is for, where several see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The listener of a service.
    Service(ServiceId),
    /// The end that assigned this ID to a connection.
    Connection(CommId),
    /// The end with the request of a peer that does not know this end's ID.
    Origin,
}

impl Destination {
    /// The destination of a MAD; `None` if it is not a CM message.
    pub fn of(bytes: &[u8]) -> Option<Destination> {
        let id = match Mad::decode(bytes).ok()?.message {
            Message::Req(req) => return Some(Destination::Service(req.service_id)),
            Message::SidrReq(req) => return Some(Destination::Service(req.service_id)),
            Message::Rej(rej) if rej.remote_comm_id == CommId(0) => {
                return Some(Destination::Origin);
            }
            Message::Mra(mra) => mra.remote_comm_id,
            Message::Rej(rej) => rej.remote_comm_id,
            Message::Rep(rep) => rep.remote_comm_id,
            Message::Rtu(rtu) => rtu.remote_comm_id,
            Message::Dreq(dreq) => dreq.remote_comm_id,
            Message::Drep(drep) => drep.remote_comm_id,
            Message::SidrRep(rep) => rep.request_id,
        };
        Some(Destination::Connection(id))
    }
}

/// The `N` bytes at `at`, both of which are constants within a MAD.
fn chunk<const N: usize>(bytes: &[u8; MAD_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}
