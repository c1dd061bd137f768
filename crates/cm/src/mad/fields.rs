//! Fields of a message, by their byte and bit offsets in the standard.
//!
//! Each message lists its fields once; reading and writing are two passes over that list, so each
//! is the inverse of the other.

use bowline_wire::{Psn, Qpn};

use super::{CommId, RejectReason};
use crate::{CmTimeout, ServiceId};

/// Bytes of a message after its MAD header.
pub(super) const BODY_LEN: usize = 232;

/// A pass over the fields of a message.
pub(super) enum Pass<'a> {
    /// Values come from the bytes.
    Read(&'a [u8; BODY_LEN]),
    /// Values go to the bytes, which are initially 0.
    Write(&'a mut [u8; BODY_LEN]),
}

impl Pass<'_> {
    /// A field of `width` bits that starts at bit `bit` of byte `byte`; bit 0 is the highest.
    pub(super) fn bits<T: Field>(&mut self, byte: usize, bit: usize, width: usize, value: &mut T) {
        let end = byte + (bit + width).div_ceil(8);
        let shift = (end - byte) * 8 - bit - width;
        let mask = u64::MAX >> (64 - width);
        match self {
            Pass::Read(body) => {
                let word = body[byte..end].iter().fold(0, |word, b| word << 8 | u128::from(*b));
                *value = T::from_bits((word >> shift) as u64 & mask);
            }
            Pass::Write(body) => {
                let word = u128::from(value.to_bits() & mask) << shift;
                for (at, byte) in body[byte..end].iter_mut().rev().enumerate() {
                    *byte |= (word >> (8 * at)) as u8;
                }
            }
        }
    }

    /// A field of whole bytes that are not a number.
    pub(super) fn bytes<const N: usize>(&mut self, byte: usize, value: &mut [u8; N]) {
        match self {
            Pass::Read(body) => value.copy_from_slice(&body[byte..byte + N]),
            Pass::Write(body) => body[byte..byte + N].copy_from_slice(value),
        }
    }
}

/// A message with a fixed list of fields.
pub(super) trait Layout: Default + Clone {
    /// Passes every field to `pass`.
    fn fields(&mut self, pass: &mut Pass<'_>);

    /// Reads the message. Every value of every field is valid, so this cannot fail.
    fn read(body: &[u8; BODY_LEN]) -> Self {
        let mut message = Self::default();
        message.fields(&mut Pass::Read(body));
        message
    }

    /// Writes the message; values are truncated to the width of their fields.
    fn write(&self, body: &mut [u8; BODY_LEN]) {
        self.clone().fields(&mut Pass::Write(body));
    }
}

/// A type that a bit field can hold.
pub(super) trait Field {
    fn from_bits(bits: u64) -> Self;
    fn to_bits(&self) -> u64;
}

macro_rules! field {
    ($($type:ty, |$bits:ident| $from:expr, |$value:ident| $to:expr;)*) => {$(
        impl Field for $type {
            fn from_bits($bits: u64) -> Self {
                $from
            }
            fn to_bits(&self) -> u64 {
                let $value = self;
                $to
            }
        }
    )*};
}

field! {
    bool, |bits| bits != 0, |value| u64::from(*value);
    u8, |bits| bits as u8, |value| u64::from(*value);
    u16, |bits| bits as u16, |value| u64::from(*value);
    u32, |bits| bits as u32, |value| u64::from(*value);
    u64, |bits| bits, |value| *value;
    Qpn, |bits| Qpn::new(bits as u32), |value| u64::from(value.get());
    Psn, |bits| Psn::new(bits as u32), |value| u64::from(value.get());
    ServiceId, |bits| ServiceId(bits), |value| value.0;
    CommId, |bits| CommId(bits as u32), |value| u64::from(value.0);
    CmTimeout, |bits| CmTimeout::new(bits as u8), |value| u64::from(value.exponent());
    RejectReason, |bits| RejectReason(bits as u16), |value| u64::from(value.0);
}
