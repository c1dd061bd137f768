//! Datagram extended transport header (IBA volume 1, section 9.3).

use crate::Qpn;
use crate::view::{be24, be32, put, put_be24};

const LEN: usize = 8;

header_views! {
    "a datagram extended transport header", DethView, DethMut, LEN;
    /// Queue key; the receiver drops a datagram that carries another key than its own.
    qkey, set_qkey: u32 {
        get |b| be32(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
    /// Reserved byte.
    reserved8, set_reserved8: u8 {
        get |b| b[4];
        set |b, v| b[4] = v;
    }
    /// Queue pair that sent the datagram.
    src_qpn, set_src_qpn: Qpn {
        get |b| Qpn::new(be24(b, 5));
        set |b, v| put_be24(b, 5, v.get());
    }
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Queue key; the receiver drops a datagram that carries another key than its own.
    pub qkey: u32,
    /// Queue pair that sent the datagram.
    pub src_qpn: Qpn,
    /// Reserved.
    pub reserved8: u8,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = DethView::of(bytes);
        Self { qkey: v.qkey(), src_qpn: v.src_qpn(), reserved8: v.reserved8() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = DethMut::of(out);
        v.set_qkey(self.qkey);
        v.set_reserved8(self.reserved8);
        v.set_src_qpn(self.src_qpn);
    }
}
