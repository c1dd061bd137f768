//! The headers after a packet's BTH.

use bowline_wire::{
    Aeth, AnnounceHeader, AtomicAckEth, AtomicEth, Deth, Opcode, PacketView, Reth, ShimPacket,
    XpCc, XpEth,
};
use serde::{Serialize, Serializer};

/// The extended headers that a packet has.
#[derive(Debug, Default, Serialize)]
pub(super) struct Ext {
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "reth")]
    pub(super) reth: Option<Reth>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "aeth")]
    pub(super) aeth: Option<Aeth>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "atomic")]
    pub(super) atomic_eth: Option<AtomicEth>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "atomic_ack")]
    pub(super) atomic_ack: Option<AtomicAckEth>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "deth")]
    pub(super) deth: Option<Deth>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) invalidate_rkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "xpeth")]
    pub(super) xpeth: Option<XpEth>,
    /// Microseconds until the deadline of an XP READ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_left_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "xpcc")]
    pub(super) xpcc: Option<XpCc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fec: Option<Fec>,
}

/// The contents of a forward error correction packet after the BTH.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Fec {
    Repair {
        response: bool,
        has_first: bool,
        has_last: bool,
        has_ext: bool,
        r: u8,
        c: u8,
        isn: u8,
        base_psn: u32,
        count: u8,
        last_len: u16,
        generation: u8,
    },
    Announce {
        wants_reports: bool,
        r: u8,
        c: u8,
    },
    Report {
        expected: u32,
        lost: u32,
        bursts: u32,
        unrepaired: u32,
        longest_burst: u16,
    },
}

impl Ext {
    pub(super) fn of(packet: &PacketView<'_>) -> Self {
        Self {
            reth: packet.reth(),
            aeth: packet.aeth(),
            atomic_eth: packet.atomic_eth(),
            atomic_ack: packet.atomic_ack(),
            deth: packet.deth(),
            imm: packet.imm(),
            invalidate_rkey: packet.ieth().map(|ieth| ieth.rkey),
            xpeth: packet.xpeth(),
            time_left_us: packet.xp_time_left().map(|left| left.0),
            xpcc: packet.xpcc(),
            fec: Fec::of(packet),
        }
    }
}

impl Fec {
    fn of(packet: &PacketView<'_>) -> Option<Self> {
        if packet.opcode() != Opcode::RC_REPAIR {
            return None;
        }
        Some(match ShimPacket::parse(packet.payload())? {
            ShimPacket::Repair(header, _) => Fec::Repair {
                response: header.response,
                has_first: header.has_first,
                has_last: header.has_last,
                has_ext: header.has_ext,
                r: header.r,
                c: header.c,
                isn: header.isn,
                base_psn: header.base.get(),
                count: header.count,
                last_len: header.last_len,
                generation: header.generation,
            },
            ShimPacket::Announce(AnnounceHeader { wants_reports, r, c }) => {
                Fec::Announce { wants_reports, r, c }
            }
            ShimPacket::Report(header) => Fec::Report {
                expected: header.expected,
                lost: header.lost,
                bursts: header.bursts,
                unrepaired: header.unrepaired,
                longest_burst: header.longest_burst,
            },
        })
    }
}

// The wire crate knows nothing of serialisation. 64-bit numbers are written as strings, because
// many JSON readers store numbers as doubles.

fn reth<S: Serializer>(value: &Option<Reth>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields =
        value.map(|v| Fields([("va", hex(v.va)), ("rkey", v.rkey.into()), ("len", v.len.into())]));
    fields.serialize(serializer)
}

fn aeth<S: Serializer>(value: &Option<Aeth>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = value.map(|v| {
        let meaning = v.syndrome.to_string();
        let syndrome = v.syndrome.to_byte();
        Fields([("syndrome", syndrome.into()), ("meaning", meaning.into()), ("msn", v.msn.into())])
    });
    fields.serialize(serializer)
}

fn atomic<S: Serializer>(value: &Option<AtomicEth>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = value.map(|v| {
        let operands = [("swap_or_add", hex(v.swap_or_add)), ("compare", hex(v.compare))];
        let [swap_or_add, compare] = operands;
        Fields([("va", hex(v.va)), ("rkey", v.rkey.into()), swap_or_add, compare])
    });
    fields.serialize(serializer)
}

fn atomic_ack<S: Serializer>(
    value: &Option<AtomicAckEth>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.map(|v| Fields([("original", hex(v.original))])).serialize(serializer)
}

fn deth<S: Serializer>(value: &Option<Deth>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields =
        value.map(|v| Fields([("qkey", v.qkey.into()), ("src_qpn", v.src_qpn.get().into())]));
    fields.serialize(serializer)
}

fn xpeth<S: Serializer>(value: &Option<XpEth>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = value.map(|v| {
        Fields([
            ("wqe_seq", v.wqe_seq.into()),
            ("recv_seq", v.recv_seq.into()),
            ("len", v.len.into()),
            ("stride_log2", v.stride_log2.into()),
            ("token", v.token.get().into()),
        ])
    });
    fields.serialize(serializer)
}

fn xpcc<S: Serializer>(value: &Option<XpCc>, serializer: S) -> Result<S::Ok, S::Error> {
    let fields = value.map(|v| {
        Fields([
            ("token", v.token.get().into()),
            ("stamp_ns", v.stamp_ns.into()),
            ("hold_ns", v.hold_ns.into()),
            ("bytes", v.bytes.to_string().into()),
            ("marked_bytes", v.marked_bytes.into()),
            ("credit_bytes", v.credit_bytes.into()),
            ("arrival", v.arrival.into()),
        ])
    });
    fields.serialize(serializer)
}

fn hex(value: u64) -> serde_json::Value {
    format!("{value:#x}").into()
}

/// An object with a fixed list of fields, in this order.
struct Fields<const N: usize>([(&'static str, serde_json::Value); N]);

impl<const N: usize> Serialize for Fields<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
