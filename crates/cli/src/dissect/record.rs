//! The description of one packet, and the totals over all packets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bowline_wire::{Bth, FrameError, IcrcVerdict, Opcode, RoceFrame, UdpHeader};
use serde::Serialize;

use super::capture::Frame;
use super::ext::Ext;

/// One packet.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// Position of the frame in the file, from 1.
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

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Icrc {
    Ok,
    Bad,
    /// The capture does not hold the whole packet.
    Unchecked,
}

/// Counts over a capture.
#[derive(Debug, Default, Serialize)]
pub(super) struct Totals {
    /// Datagrams for the RoCEv2 port that are long enough for a BTH and an ICRC.
    pub(super) packets: u64,
    pub(super) icrc_ok: u64,
    pub(super) icrc_bad: u64,
    /// Packets of which the capture holds only the beginning.
    pub(super) icrc_unchecked: u64,
    pub(super) by_opcode: BTreeMap<String, u64>,
    /// Frames that are not for the RoCEv2 port.
    pub(super) other: u64,
    /// Frames for the RoCEv2 port that do not decode. If long enough for a BTH and an ICRC, they
    /// also count as packets.
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
        // If only padding after the packet is missing from the capture, the packet itself is whole.
        let cut = frame.is_cut() && !roce.lengths_agree();
        let flow = roce.flow();
        let bth = Bth::parse(roce.bth().as_bytes());
        let packet = roce.packet();
        let ext = packet.as_ref().map(Ext::of).unwrap_or_default();
        let malformed = match packet {
            // In a truncated frame, any apparent error may be due to the capture.
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
                // A sealed packet has a tag in place of the ICRC.
                _ if cut || bth.opcode == Opcode::SEALED => Icrc::Unchecked,
                IcrcVerdict::Ok => Icrc::Ok,
                IcrcVerdict::Bad { .. } => Icrc::Bad,
            },
            malformed,
        }
    }
}

/// Uses the length field, because a truncated frame has fewer bytes than the packet had.
fn payload_len(roce: &RoceFrame<'_>, bth: &Bth) -> usize {
    let ext_len = bth.opcode.info().map_or(0, |info| info.ext_len);
    let overhead = UdpHeader::LEN + Bth::LEN + usize::from(ext_len) + usize::from(bth.pad) + 4;
    usize::from(roce.udp().datagram_len()).saturating_sub(overhead)
}
