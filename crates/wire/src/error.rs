//! What can be wrong with bytes received and with packets to be written.

use core::fmt;

use crate::Opcode;

/// Why bytes are not a header or a packet. The sender's or the path's doing, never the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than the headers, the pad and the trailer take up.
    Truncated {
        /// Bytes that would have been enough.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The opcode is in no table, so that the length of the headers behind it is not known.
    UnknownOpcode(Opcode),
    /// The transport header version is not 0.
    BadVersion(u8),
    /// The IP version is not that of the header expected.
    BadIpVersion(u8),
    /// The IPv4 header says that it is shorter than its fixed part, in units of four bytes.
    BadHeaderLength(u8),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => write!(f, "truncated: {have} bytes, {need} needed"),
            Self::UnknownOpcode(opcode) => write!(f, "unknown opcode {:#04x}", opcode.0),
            Self::BadVersion(version) => {
                write!(f, "transport header version {version}, only 0 is defined")
            }
            Self::BadIpVersion(version) => write!(f, "unexpected IP version {version}"),
            Self::BadHeaderLength(words) => write!(f, "IPv4 header length of {words} words"),
        }
    }
}

impl core::error::Error for ParseError {}

/// Why a representation cannot be written. The caller's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Bytes that would have been enough.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The opcode is in no table, so that the headers behind it are not known.
    UnknownOpcode(Opcode),
    /// A header that the opcode calls for is missing.
    MissingHeader(&'static str),
    /// More bytes than the 16-bit length fields of a datagram can say.
    TooLong {
        /// Bytes of UDP payload.
        len: usize,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BufferTooSmall { need, have } => {
                write!(f, "buffer of {have} bytes, {need} needed")
            }
            Self::UnknownOpcode(opcode) => write!(f, "unknown opcode {:#04x}", opcode.0),
            Self::MissingHeader(name) => write!(f, "the opcode calls for a header: {name}"),
            Self::TooLong { len } => write!(f, "{len} bytes do not fit into one datagram"),
        }
    }
}

impl core::error::Error for EmitError {}
