//! Acknowledge extended transport header (IBA volume 1, section 9.3).

use core::fmt;

use crate::view::{be24, put_be24};

const LEN: usize = 4;
const KIND: u8 = 0xe0;
const VALUE: u8 = 0x1f;
const KIND_ACK: u8 = 0x00;
const KIND_RNR: u8 = 0x20;
const KIND_NAK: u8 = 0x60;

header_views! {
    "an acknowledge extended transport header", AethView, AethMut, LEN;
    /// The responder's verdict.
    syndrome, set_syndrome: Syndrome {
        get |b| Syndrome::from_byte(b[0]);
        set |b, v| b[0] = v.to_byte();
    }
    /// Message sequence number, 24 bits: messages the responder has completed.
    msn, set_msn: u32 {
        get |b| be24(b, 1);
        set |b, v| put_be24(b, 1, v);
    }
}

/// Acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// The responder's verdict.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits: messages the responder has completed.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = AethView::of(bytes);
        Self { syndrome: v.syndrome(), msn: v.msn() }
    }

    /// Writes the header; fields are truncated to their widths.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = AethMut::of(out);
        v.set_syndrome(self.syndrome);
        v.set_msn(self.msn);
    }
}

/// The first byte of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// A positive acknowledgement.
    Ack {
        /// Encoded end-to-end credits, 5 bits; [`Syndrome::NO_CREDITS`] means that there are none.
        credits: u8,
    },
    /// Receiver not ready: no receive was posted.
    Rnr {
        /// Encoded time to wait before the next attempt, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// A byte without a defined meaning; [`Syndrome::from_byte`] uses it for no other.
    Reserved(u8),
}

impl Syndrome {
    /// The credit code of a responder without end-to-end flow control.
    pub const NO_CREDITS: u8 = 31;

    /// Reads a syndrome.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & VALUE;
        match byte & KIND {
            KIND_ACK => Self::Ack { credits: value },
            KIND_RNR => Self::Rnr { timer: value },
            KIND_NAK => Self::Nak(NakCode::from_bits(value)),
            _ => Self::Reserved(byte),
        }
    }

    /// The byte on the wire; fields are truncated to their widths.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => KIND_ACK | (credits & VALUE),
            Self::Rnr { timer } => KIND_RNR | (timer & VALUE),
            Self::Nak(code) => KIND_NAK | code.to_bits(),
            Self::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ack { credits: Self::NO_CREDITS } => f.write_str("ACK"),
            Self::Ack { credits } => write!(f, "ACK credits={credits}"),
            Self::Rnr { timer } => write!(f, "RNR timer={timer}"),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "reserved {byte:#04x}"),
        }
    }
}

/// Why a responder refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A request is missing: go back to the PSN of this packet.
    PsnSequence,
    /// The request is not valid at this point.
    InvalidRequest,
    /// The memory key, its bounds or its rights do not allow the access.
    RemoteAccess,
    /// The responder could not carry out a valid request.
    RemoteOperational,
    /// A request of the reliable datagram service is not valid.
    InvalidRdRequest,
    /// Any higher code, 5 bits.
    Reserved(u8),
}

impl NakCode {
    /// Reads the low 5 bits.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & VALUE {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    /// The code, 5 bits.
    #[inline]
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(bits) => bits & VALUE,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PsnSequence => f.write_str("PSN sequence error"),
            Self::InvalidRequest => f.write_str("invalid request"),
            Self::RemoteAccess => f.write_str("remote access error"),
            Self::RemoteOperational => f.write_str("remote operational error"),
            Self::InvalidRdRequest => f.write_str("invalid RD request"),
            Self::Reserved(bits) => write!(f, "reserved code {bits}"),
        }
    }
}
