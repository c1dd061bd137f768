//! RDMA extended transport header (IBA volume 1, section 9.3).

use crate::view::{be32, be64, put};

const LEN: usize = 16;

header_views! {
    "an RDMA extended transport header", RethView, RethMut, LEN;
    /// Virtual address at the responder.
    va, set_va: u64 {
        get |b| be64(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
    /// Key of the responder's memory region.
    rkey, set_rkey: u32 {
        get |b| be32(b, 8);
        set |b, v| put(b, 8, v.to_be_bytes());
    }
    /// Bytes of the whole message, not of this packet.
    message_len, set_message_len: u32 {
        get |b| be32(b, 12);
        set |b, v| put(b, 12, v.to_be_bytes());
    }
}

/// RDMA extended transport header: where at the responder a WRITE goes or a READ comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address at the responder.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Bytes of the whole message, not of this packet.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = RethView::of(bytes);
        Self { va: v.va(), rkey: v.rkey(), len: v.message_len() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = RethMut::of(out);
        v.set_va(self.va);
        v.set_rkey(self.rkey);
        v.set_message_len(self.len);
    }
}
