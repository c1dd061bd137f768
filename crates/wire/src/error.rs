//! What can be wrong with received bytes.

use core::fmt;

use crate::Opcode;

/// Why bytes are not a packet. Always the sender's or the path's doing, never the caller's.
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
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Truncated { need, have } => write!(f, "truncated: {have} bytes, {need} needed"),
            Self::UnknownOpcode(opcode) => write!(f, "unknown opcode {:#04x}", opcode.0),
            Self::BadVersion(version) => {
                write!(f, "transport header version {version}, only 0 is defined")
            }
        }
    }
}

impl core::error::Error for ParseError {}
