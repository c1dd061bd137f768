//! Headers of XP, OptiNIC's transport (`docs/xp.md`).

use crate::Psn;
use crate::view::{be24, be32, be64, put, put_be24};

const XPETH_LEN: usize = 16;

header_views! {
    "an XP extended transport header", XpEthView, XpEthMut, XPETH_LEN;
    /// Number of the message, or of the READ.
    wqe_seq, set_wqe_seq: u32 {
        get |b| be32(b, 0);
        set |b, v| put(b, 0, v.to_be_bytes());
    }
    /// Number of earlier messages that consume a receive.
    recv_seq, set_recv_seq: u32 {
        get |b| be32(b, 4);
        set |b, v| put(b, 4, v.to_be_bytes());
    }
    /// Bytes of the whole message.
    message_len, set_message_len: u32 {
        get |b| be32(b, 8);
        set |b, v| put(b, 8, v.to_be_bytes());
    }
    /// Blocks that share a packet, as a power of two.
    stride_log2, set_stride_log2: u8 {
        get |b| b[12];
        set |b, v| b[12] = v;
    }
    /// Token that both ends agreed on at connection set-up.
    token, set_token: Psn {
        get |b| Psn::new(be24(b, 13));
        set |b, v| put_be24(b, 13, v.get());
    }
}

/// XP extended transport header: which message a packet belongs to. It is the same in all packets
/// of a message; the fragment is in the BTH's PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XpEth {
    /// Number of the message, or of the READ.
    pub wqe_seq: u32,
    /// Number of earlier messages that consume a receive.
    pub recv_seq: u32,
    /// Bytes of the whole message.
    pub len: u32,
    /// Blocks that share a packet, as a power of two.
    pub stride_log2: u8,
    /// Token that both ends agreed on at connection set-up.
    pub token: Psn,
}

impl XpEth {
    /// Bytes on the wire.
    pub const LEN: usize = XPETH_LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; XPETH_LEN]) -> Self {
        let v = XpEthView::of(bytes);
        Self {
            wqe_seq: v.wqe_seq(),
            recv_seq: v.recv_seq(),
            len: v.message_len(),
            stride_log2: v.stride_log2(),
            token: v.token(),
        }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; XPETH_LEN]) {
        let mut v = XpEthMut::of(out);
        v.set_wqe_seq(self.wqe_seq);
        v.set_recv_seq(self.recv_seq);
        v.set_message_len(self.len);
        v.set_stride_log2(self.stride_log2);
        v.set_token(self.token);
    }
}

const TIME_LEFT_LEN: usize = 4;

/// Microseconds left to a READ when its request is sent; 0 means no deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XpTimeLeft(pub u32);

impl XpTimeLeft {
    /// Bytes on the wire.
    pub const LEN: usize = TIME_LEFT_LEN;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; TIME_LEFT_LEN]) -> Self {
        Self(u32::from_be_bytes(*bytes))
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; TIME_LEFT_LEN]) {
        *out = self.0.to_be_bytes();
    }
}

const XPCC_LEN: usize = 32;

header_views! {
    "an XP congestion control header", XpCcView, XpCcMut, XPCC_LEN;
    /// Zero.
    reserved, set_reserved: u8 {
        get |b| b[0];
        set |b, v| b[0] = v;
    }
    /// Token that both ends agreed on at connection set-up.
    token, set_token: Psn {
        get |b| Psn::new(be24(b, 1));
        set |b, v| put_be24(b, 1, v.get());
    }
    /// The prober's clock.
    stamp_ns, set_stamp_ns: u32 {
        get |b| be32(b, 4);
        set |b, v| put(b, 4, v.to_be_bytes());
    }
    /// How long the responder held the probe before it answered.
    hold_ns, set_hold_ns: u32 {
        get |b| be32(b, 8);
        set |b, v| put(b, 8, v.to_be_bytes());
    }
    /// Payload so far.
    bytes, set_bytes: u64 {
        get |b| be64(b, 12);
        set |b, v| put(b, 12, v.to_be_bytes());
    }
    /// Marked payload so far.
    marked_bytes, set_marked_bytes: u32 {
        get |b| be32(b, 20);
        set |b, v| put(b, 20, v.to_be_bytes());
    }
    /// Granted payload so far.
    credit_bytes, set_credit_bytes: u32 {
        get |b| be32(b, 24);
        set |b, v| put(b, 24, v.to_be_bytes());
    }
    /// When the probe arrived, by the responder's clock.
    arrival, set_arrival: u32 {
        get |b| be32(b, 28);
        set |b, v| put(b, 28, v.to_be_bytes());
    }
}

/// XP congestion control header, of a probe and of the feedback that answers it. Both are best
/// effort, and all counts are cumulative and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XpCc {
    /// Zero.
    pub reserved: u8,
    /// Token that both ends agreed on at connection set-up.
    pub token: Psn,
    /// Lower 32 bits of the prober's clock; feedback repeats its probe's.
    pub stamp_ns: u32,
    /// How long the responder held the probe before it answered.
    pub hold_ns: u32,
    /// Payload sent so far, in a probe; received so far, in feedback.
    pub bytes: u64,
    /// Marked part of the payload received so far.
    pub marked_bytes: u32,
    /// Payload that the responder has granted so far.
    pub credit_bytes: u32,
    /// When the probe arrived, by the responder's clock, in units of [`XpCc::ARRIVAL_NS`].
    pub arrival: u32,
}

impl XpCc {
    /// Bytes on the wire.
    pub const LEN: usize = XPCC_LEN;
    /// Nanoseconds per unit of [`XpCc::arrival`], which then wraps after minutes.
    pub const ARRIVAL_NS: u64 = 64;

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; XPCC_LEN]) -> Self {
        let v = XpCcView::of(bytes);
        Self {
            reserved: v.reserved(),
            token: v.token(),
            stamp_ns: v.stamp_ns(),
            hold_ns: v.hold_ns(),
            bytes: v.bytes(),
            marked_bytes: v.marked_bytes(),
            credit_bytes: v.credit_bytes(),
            arrival: v.arrival(),
        }
    }

    /// Writes the header.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; XPCC_LEN]) {
        let mut v = XpCcMut::of(out);
        v.set_reserved(self.reserved);
        v.set_token(self.token);
        v.set_stamp_ns(self.stamp_ns);
        v.set_hold_ns(self.hold_ns);
        v.set_bytes(self.bytes);
        v.set_marked_bytes(self.marked_bytes);
        v.set_credit_bytes(self.credit_bytes);
        v.set_arrival(self.arrival);
    }
}
