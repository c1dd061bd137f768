//! Atomic extended transport headers (IBA volume 1, section 9.3).

use crate::view::{be32, be64, put};

const LEN: usize = 28;
const ACK_LEN: usize = 8;

header_views! {
    "an atomic extended transport header", AtomicEthView, AtomicEthMut, LEN;
    /// Virtual address of the 8 bytes at the responder.
    va, set_va: u64 {
        get |b| be64(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
    /// Key of the responder's memory region.
    rkey, set_rkey: u32 {
        get |b| be32(b, 8);
        set |b, v| put(b, 8, v.to_be_bytes());
    }
    /// The value that a compare-and-swap stores, or a fetch-and-add adds.
    swap_or_add, set_swap_or_add: u64 {
        get |b| be64(b, 12);
        set |b, v| put(b, 12, v.to_be_bytes());
    }
    /// The value that a compare-and-swap compares with; unused by fetch-and-add.
    compare, set_compare: u64 {
        get |b| be64(b, 20);
        set |b, v| put(b, 20, v.to_be_bytes());
    }
}

header_views! {
    "an atomic acknowledge extended transport header", AtomicAckEthView, AtomicAckEthMut, ACK_LEN;
    /// The 8 bytes as they were before the operation.
    original, set_original: u64 {
        get |b| be64(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes at the responder.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// The value that a compare-and-swap stores, or a fetch-and-add adds.
    pub swap_or_add: u64,
    /// The value that a compare-and-swap compares with; unused by fetch-and-add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = AtomicEthView::of(bytes);
        Self { va: v.va(), rkey: v.rkey(), swap_or_add: v.swap_or_add(), compare: v.compare() }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = AtomicEthMut::of(out);
        v.set_va(self.va);
        v.set_rkey(self.rkey);
        v.set_swap_or_add(self.swap_or_add);
        v.set_compare(self.compare);
    }
}

/// Atomic acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicAckEth {
    /// The 8 bytes as they were before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = ACK_LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; ACK_LEN]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; ACK_LEN]) {
        *out = self.original.to_be_bytes();
    }
}
