//! Errors in received bytes and in packets to be written.

use core::fmt;

use crate::Opcode;

/// Why bytes are not a header or a packet: the sender's or the path's fault, never the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParseError {
    /// Fewer bytes than headers, padding and trailer need.
    Truncated {
        /// Bytes that would have been enough.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// The opcode is unknown, and so is the length of the headers after it.
    UnknownOpcode(Opcode),
    /// The transport header version is not 0.
    BadVersion(u8),
    /// The IP version is not the expected one.
    BadIpVersion(u8),
    /// The IPv4 header length field, in units of four bytes, is less than its fixed part.
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

/// Why a representation cannot be written: the caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitError {
    /// The buffer is too small.
    BufferTooSmall {
        /// Bytes that would have been enough.
        need: usize,
        /// Bytes available.
        have: usize,
    },
    /// The opcode is unknown, and so are the headers after it.
    UnknownOpcode(Opcode),
    /// A header that the opcode requires is missing.
    MissingHeader(&'static str),
    /// More bytes than the 16-bit length fields of a datagram can express.
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
