//! What is told about one packet, and about all.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bowline_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, FrameError, IcrcVerdict, PacketView, Reth, RoceFrame,
    UdpHeader, XpCc, XpEth,
};
use serde::{Serialize, Serializer};

use super::capture::Frame;

/// One packet.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// Place of the frame in the file, from 1.
    pub(super) frame: u64,
    /// Seconds since the first packet.
    pub(super) time_s: f64,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
    pub(super) opcode: String,
    pub(super) service: Option<&'static str>,
    pub(super) dest_qpn: u32,
    pub(super) psn: u32,
    pub(super) pkey: u16,
    pub(super) ack_req: bool,
    pub(super) solicited: bool,
    pub(super) mig_req: bool,
    pub(super) fecn: bool,
    pub(super) becn: bool,
    pub(super) tos: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ip_id: Option<u16>,
    #[serde(flatten)]
    pub(super) ext: Ext,
    pub(super) pad: u8,
    pub(super) payload_len: usize,
    pub(super) icrc: Icrc,
    /// Why the packet could not be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) malformed: Option<String>,
}

/// The extended headers there are.
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
    /// Microseconds that are left to an XP READ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_left_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "xpcc")]
    pub(super) xpcc: Option<XpCc>,
}

/// What is known about a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Icrc {
    Ok,
    Bad,
    /// The capture does not have the whole packet.
    Unchecked,
}

/// Counts over a capture.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    /// Datagrams for the RoCEv2 port with room for BTH and ICRC.
    pub(super) packets: u64,
    pub(super) icrc_ok: u64,
    pub(super) icrc_bad: u64,
    /// Packets of which the capture has only the beginning.
    pub(super) icrc_unchecked: u64,
    pub(super) by_opcode: BTreeMap<String, u64>,
    /// Frames that are not for the RoCEv2 port.
    pub(super) other: u64,
    /// Frames for the RoCEv2 port that do not decode. Those with room for BTH and ICRC are among
    /// the packets too.
    pub(super) malformed: u64,
    pub(super) malformed_reasons: BTreeMap<String, u64>,
    #[serde(skip)]
    first_ns: Option<u64>,
}

impl Totals {
    /// Counts a frame, and describes it if it is a packet.
    pub(super) fn take(&mut self, frame: &Frame) -> Option<Record> {
        let parsed = match frame.link {
            Some(link) => RoceFrame::parse(link, &frame.bytes),
            None => Err(FrameError::NotRoce),
        };
        match parsed {
            Ok(roce) => {
                let first_ns = *self.first_ns.get_or_insert(frame.time_ns);
                let record = Record::new(frame, &roce, first_ns);
                self.count(&record);
                Some(record)
            }
            Err(FrameError::NotRoce) => {
                self.other += 1;
                None
            }
            Err(_) if frame.is_cut() => {
                self.count_malformed("cut by the capture before the end of the BTH".to_owned());
                None
            }
            Err(error) => {
                self.count_malformed(error.to_string());
                None
            }
        }
    }

    fn count(&mut self, record: &Record) {
        self.packets += 1;
        match record.icrc {
            Icrc::Ok => self.icrc_ok += 1,
            Icrc::Bad => self.icrc_bad += 1,
            Icrc::Unchecked => self.icrc_unchecked += 1,
        }
        *self.by_opcode.entry(record.opcode.clone()).or_default() += 1;
        if let Some(reason) = &record.malformed {
            self.count_malformed(reason.clone());
        }
    }

    fn count_malformed(&mut self, reason: String) {
        self.malformed += 1;
        *self.malformed_reasons.entry(reason).or_default() += 1;
    }
}

impl Record {
    fn new(frame: &Frame, roce: &RoceFrame<'_>, first_ns: u64) -> Self {
        // A capture may also leave out no more than padding behind the packet.
        let cut = frame.is_cut() && !roce.lengths_agree();
        let flow = roce.flow();
        let bth = Bth::parse(roce.bth().as_bytes());
        let packet = roce.packet();
        let ext = packet.as_ref().map(Ext::of).unwrap_or_default();
        let malformed = match packet {
            // Of a cut frame nothing can be said that the capture is not to blame for.
            _ if cut => None,
            Err(error) => Some(error.to_string()),
            Ok(_) if !roce.lengths_agree() => Some("length fields exceed the frame".to_owned()),
            Ok(_) => None,
        };
        Self {
            frame: frame.number,
            time_s: (i128::from(frame.time_ns) - i128::from(first_ns)) as f64 / 1e9,
            src: flow.src,
            dst: flow.dst,
            src_port: flow.src_port,
            opcode: bth.opcode.to_string(),
            service: bth.opcode.service().map(|service| service.name()),
            dest_qpn: bth.dest_qpn.get(),
            psn: bth.psn.get(),
            pkey: bth.pkey,
            ack_req: bth.ack_req,
            solicited: bth.solicited,
            mig_req: bth.mig_req,
            fecn: bth.fecn,
            becn: bth.becn,
            tos: roce.tos(),
            ip_id: roce.ip_id(),
            ext,
            pad: bth.pad,
            payload_len: payload_len(roce, &bth),
            icrc: match roce.icrc_verdict() {
                _ if cut => Icrc::Unchecked,
                IcrcVerdict::Ok => Icrc::Ok,
                IcrcVerdict::Bad { .. } => Icrc::Bad,
            },
            malformed,
        }
    }
}

/// By the length field: a cut frame has fewer bytes than the packet had.
fn payload_len(roce: &RoceFrame<'_>, bth: &Bth) -> usize {
    let ext_len = bth.opcode.info().map_or(0, |info| info.ext_len);
    let overhead = UdpHeader::LEN + Bth::LEN + usize::from(ext_len) + usize::from(bth.pad) + 4;
    usize::from(roce.udp().datagram_len()).saturating_sub(overhead)
}

impl Ext {
    fn of(packet: &PacketView<'_>) -> Self {
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
        }
    }
}

// The wire crate knows nothing of serialisation. Numbers of 64 bits are written as strings,
// because many JSON readers hold numbers as doubles.

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
        ])
    });
    fields.serialize(serializer)
}

fn hex(value: u64) -> serde_json::Value {
    format!("{value:#x}").into()
}

/// An object with a fixed list of fields, in their order.
struct Fields<const N: usize>([(&'static str, serde_json::Value); N]);

impl<const N: usize> Serialize for Fields<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}
