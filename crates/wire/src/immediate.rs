//! Immediate data and invalidate headers (IBA volume 1, section 9.3).

use crate::view::{be32, put};

const LEN: usize = 4;

header_views! {
    "immediate data", ImmDtView, ImmDtMut, LEN;
    /// The data as a number in host order.
    value, set_value: u32 {
        get |b| be32(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
}

header_views! {
    "an invalidate extended transport header", IethView, IethMut, LEN;
    /// Key the receiver is to invalidate.
    rkey, set_rkey: u32 {
        get |b| be32(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
}

/// Immediate data, in host order; big-endian on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmDt(pub u32);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads the data.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        Self(u32::from_be_bytes(*bytes))
    }

    /// Writes the data.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.0.to_be_bytes();
    }
}

/// Invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ieth {
    /// Key the receiver is to invalidate.
    pub rkey: u32,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        Self { rkey: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        *out = self.rkey.to_be_bytes();
    }
}
