//! Headers of the reliable datagram and the extended reliable connected service (IBA volume 1,
//! section 9.3). Bowline implements only the second; the other is here so that captures can be
//! decoded.

use crate::view::{be24, put_be24};

const LEN: usize = 4;

header_views! {
    "a reliable datagram extended transport header", RdethView, RdethMut, LEN;
    /// Reserved byte.
    reserved8, set_reserved8: u8 {
        get |b| b[0];
        set |b, v| b[0] = v;
    }
    /// End-to-end context, 24 bits.
    eec, set_eec: u32 {
        get |b| be24(b, 1);
        set |b, v| put_be24(b, 1, v);
    }
}

header_views! {
    "an extended reliable connected extended transport header", XrcEthView, XrcEthMut, LEN;
    /// Reserved byte.
    reserved8, set_reserved8: u8 {
        get |b| b[0];
        set |b, v| b[0] = v;
    }
    /// Shared receive queue at the responder, 24 bits.
    srqn, set_srqn: u32 {
        get |b| be24(b, 1);
        set |b, v| put_be24(b, 1, v);
    }
}

/// Reliable datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rdeth {
    /// Reserved.
    pub reserved8: u8,
    /// End-to-end context, 24 bits.
    pub eec: u32,
}

impl Rdeth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = RdethView::of(bytes);
        Self { reserved8: v.reserved8(), eec: v.eec() }
    }

    /// Writes the header; fields are truncated to their widths.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = RdethMut::of(out);
        v.set_reserved8(self.reserved8);
        v.set_eec(self.eec);
    }
}

/// Extended reliable connected extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcEth {
    /// Reserved.
    pub reserved8: u8,
    /// Shared receive queue at the responder, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = XrcEthView::of(bytes);
        Self { reserved8: v.reserved8(), srqn: v.srqn() }
    }

    /// Writes the header; fields are truncated to their widths.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = XrcEthMut::of(out);
        v.set_reserved8(self.reserved8);
        v.set_srqn(self.srqn);
    }
}
