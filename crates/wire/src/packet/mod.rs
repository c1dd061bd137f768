//! One packet, from BTH to ICRC: what a UDP socket on port 4791 receives.

mod repr;

pub use repr::{ExtHeaders, Packet};

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BthView, Deth, ICRC_LEN, Ieth, ImmDt, Opcode, OpcodeInfo,
    ParseError, Psn, Qpn, Rdeth, Reth, SealedCounter, XpCc, XpEth, XpTimeLeft, XrcEth,
};

/// A packet with checked lengths, opcode and version. The ICRC is not checked: it covers headers
/// outside of the packet (see [`Icrc`](crate::Icrc)).
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    bytes: &'a [u8],
    bth: &'a [u8; Bth::LEN],
    ext: &'a [u8],
    payload: &'a [u8],
    trailer: &'a [u8; ICRC_LEN],
    info: &'static OpcodeInfo,
}

impl<'a> PacketView<'a> {
    /// Checks a UDP payload once; the accessors check nothing again.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Self, ParseError> {
        let have = udp_payload.len();
        let truncated = |need| ParseError::Truncated { need, have };

        let (bth, rest) = udp_payload
            .split_first_chunk::<{ Bth::LEN }>()
            .ok_or(truncated(Bth::LEN + ICRC_LEN))?;
        let (rest, trailer) =
            rest.split_last_chunk::<ICRC_LEN>().ok_or(truncated(Bth::LEN + ICRC_LEN))?;

        let view = BthView::of(bth);
        if view.version() != 0 {
            return Err(ParseError::BadVersion(view.version()));
        }
        let info = view.opcode().info().ok_or(ParseError::UnknownOpcode(view.opcode()))?;

        let pad = usize::from(view.pad());
        let need = Bth::LEN + usize::from(info.ext_len) + pad + ICRC_LEN;
        let (ext, padded) =
            rest.split_at_checked(usize::from(info.ext_len)).ok_or(truncated(need))?;
        let payload_len = padded.len().checked_sub(pad).ok_or(truncated(need))?;
        let payload = padded.get(..payload_len).unwrap_or(padded);

        Ok(Self { bytes: udp_payload, bth, ext, payload, trailer, info })
    }

    /// The packet's opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.bth_view().opcode()
    }

    /// The properties of its opcode.
    #[inline]
    pub fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        Bth::parse(self.bth)
    }

    /// The base transport header, field by field.
    #[inline]
    pub fn bth_view(&self) -> BthView<'a> {
        BthView::of(self.bth)
    }

    /// Destination queue pair.
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        self.bth_view().dest_qpn()
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        self.bth_view().psn()
    }

    /// The responder is asked for an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.bth_view().ack_req()
    }

    /// Solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.bth_view().solicited()
    }

    /// Partition key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        self.bth_view().pkey()
    }

    /// Forward congestion notification.
    #[inline]
    pub fn fecn(&self) -> bool {
        self.bth_view().fecn()
    }

    /// Backward congestion notification.
    #[inline]
    pub fn becn(&self) -> bool {
        self.bth_view().becn()
    }

    /// RDMA extended transport header.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        self.ext_at(self.info.ext.reth).map(Reth::parse)
    }

    /// Acknowledge extended transport header.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.ext_at(self.info.ext.aeth).map(Aeth::parse)
    }

    /// Atomic extended transport header.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.ext_at(self.info.ext.atomic).map(AtomicEth::parse)
    }

    /// Atomic acknowledge extended transport header.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.ext_at(self.info.ext.atomic_ack).map(AtomicAckEth::parse)
    }

    /// Datagram extended transport header.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.ext_at(self.info.ext.deth).map(Deth::parse)
    }

    /// Immediate data, in host order.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.ext_at(self.info.ext.imm).map(|bytes| ImmDt::parse(bytes).0)
    }

    /// Invalidate extended transport header.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        self.ext_at(self.info.ext.ieth).map(Ieth::parse)
    }

    /// Reliable datagram extended transport header.
    #[inline]
    pub fn rdeth(&self) -> Option<Rdeth> {
        self.ext_at(self.info.ext.rdeth).map(Rdeth::parse)
    }

    /// Extended reliable connected extended transport header.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.ext_at(self.info.ext.xrceth).map(XrcEth::parse)
    }

    /// XP extended transport header.
    #[inline]
    pub fn xpeth(&self) -> Option<XpEth> {
        self.ext_at(self.info.ext.xpeth).map(XpEth::parse)
    }

    /// Remaining time of an XP READ.
    #[inline]
    pub fn xp_time_left(&self) -> Option<XpTimeLeft> {
        self.ext_at(self.info.ext.xp_time_left).map(XpTimeLeft::parse)
    }

    /// XP congestion control header.
    #[inline]
    pub fn xpcc(&self) -> Option<XpCc> {
        self.ext_at(self.info.ext.xpcc).map(XpCc::parse)
    }

    /// Low bits of a sealed packet's counter.
    #[inline]
    pub fn sealed_counter(&self) -> Option<SealedCounter> {
        self.ext_at(self.info.ext.sealed).map(SealedCounter::parse)
    }

    /// The payload, without pad and ICRC.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The pad bytes, 0 to 3.
    #[inline]
    pub fn pad(&self) -> &'a [u8] {
        let start = Bth::LEN + self.ext.len() + self.payload.len();
        let end = self.bytes.len() - ICRC_LEN;
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// The trailer: the ICRC that the sender computed.
    #[inline]
    pub fn icrc(&self) -> u32 {
        u32::from_le_bytes(*self.trailer)
    }

    /// The whole packet, BTH to ICRC.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn ext_at<const N: usize>(&self, at: Option<u8>) -> Option<&'a [u8; N]> {
        self.ext.get(usize::from(at?)..)?.first_chunk()
    }
}
