//! Whole frames, as in a capture or at a switch.

mod headers;
mod link;
mod repr;

pub use headers::{DatagramHeaders, IP_UDP_MAX_LEN, emit_ip_udp_headers};
pub use link::LinkType;
pub use repr::{Frame, IpHeader, LinkHeader};

use core::fmt;
use core::net::IpAddr;

use crate::udp::IP_PROTOCOL_UDP;
use crate::{
    Bth, BthView, FlowKey, ICRC_LEN, Icrc, Ipv4Header, Ipv4View, Ipv6Header, Ipv6View, PacketView,
    ParseError, ROCE_UDP_PORT, UdpHeader, UdpView,
};

/// Longest IPv4 header, options included; an IPv6 header is shorter.
const IP_MAX_LEN: usize = 60;
const PACKET_MIN_LEN: usize = Bth::LEN + ICRC_LEN;

/// A captured frame with a datagram for the RoCEv2 port that is long enough for BTH and ICRC.
#[derive(Clone, Copy, Debug)]
pub struct RoceFrame<'a> {
    link: LinkType,
    link_header: &'a [u8],
    ip: IpView<'a>,
    ip_header: &'a [u8],
    udp: &'a [u8; UdpHeader::LEN],
    packet: &'a [u8],
    bth: &'a [u8; Bth::LEN],
    covered: &'a [u8],
    trailer: &'a [u8; ICRC_LEN],
    tail: &'a [u8],
    lengths_agree: bool,
}

#[derive(Clone, Copy, Debug)]
enum IpView<'a> {
    V4(Ipv4View<'a>),
    V6(Ipv6View<'a>),
}

/// Why a frame is not a [`RoceFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FrameError {
    /// Not a UDP datagram for the RoCEv2 port.
    NotRoce,
    /// A datagram for the RoCEv2 port that is too short for BTH and ICRC.
    TooShort {
        /// Bytes of UDP payload.
        have: usize,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotRoce => write!(f, "not a datagram for UDP port {ROCE_UDP_PORT}"),
            Self::TooShort { have } => {
                write!(f, "UDP payload of {have} bytes, {PACKET_MIN_LEN} are the least")
            }
        }
    }
}

impl core::error::Error for FrameError {}

/// Whether a packet's ICRC is correct for its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcrcVerdict {
    /// It is.
    Ok,
    /// It is not.
    Bad {
        /// The correct ICRC.
        computed: u32,
        /// The ICRC in the trailer.
        received: u32,
    },
}

impl IcrcVerdict {
    /// Whether the ICRC is correct.
    pub const fn is_ok(self) -> bool {
        matches!(self, Self::Ok)
    }
}

impl<'a> RoceFrame<'a> {
    /// Finds the packet in a frame.
    ///
    /// A frame whose length fields exceed its bytes can still be read: see
    /// [`RoceFrame::lengths_agree`].
    pub fn parse(link: LinkType, frame: &'a [u8]) -> Result<Self, FrameError> {
        let (link_header, datagram) = link.split(frame).ok_or(FrameError::NotRoce)?;
        let (ip, ip_header, ip_payload, ip_complete) =
            split_ip(datagram).ok_or(FrameError::NotRoce)?;
        let (udp, room) = ip_payload.split_first_chunk().ok_or(FrameError::NotRoce)?;
        let udp_view = UdpView::of(udp);
        if udp_view.dst_port() != ROCE_UDP_PORT {
            return Err(FrameError::NotRoce);
        }
        let claimed = usize::from(udp_view.datagram_len()).saturating_sub(UdpHeader::LEN);
        let (packet, udp_complete) = take_up_to(room, claimed);
        let too_short = FrameError::TooShort { have: packet.len() };
        let (covered, trailer) = packet.split_last_chunk().ok_or(too_short)?;
        let bth = covered.first_chunk().ok_or(too_short)?;
        let before_tail = link_header.len() + ip_header.len() + UdpHeader::LEN + packet.len();
        let tail = frame.get(before_tail..).unwrap_or_default();
        let lengths_agree = ip_complete && udp_complete;
        Ok(Self {
            link,
            link_header,
            ip,
            ip_header,
            udp,
            packet,
            bth,
            covered,
            trailer,
            tail,
            lengths_agree,
        })
    }

    /// The link layer the frame was captured on.
    pub fn link_type(&self) -> LinkType {
        self.link
    }

    /// Bytes of the link layer header, VLAN tags included.
    pub fn link_header(&self) -> &'a [u8] {
        self.link_header
    }

    /// Bytes of the IP header, options included.
    pub fn ip_header(&self) -> &'a [u8] {
        self.ip_header
    }

    /// The UDP header.
    pub fn udp(&self) -> UdpView<'a> {
        UdpView::of(self.udp)
    }

    /// The packet, BTH to ICRC: the UDP payload.
    pub fn packet_bytes(&self) -> &'a [u8] {
        self.packet
    }

    /// The base transport header, which every opcode has.
    pub fn bth(&self) -> BthView<'a> {
        BthView::of(self.bth)
    }

    /// The packet, decoded.
    pub fn packet(&self) -> Result<PacketView<'a>, ParseError> {
        PacketView::parse(self.packet)
    }

    /// What follows the UDP payload: the padding of a short Ethernet frame.
    pub fn tail(&self) -> &'a [u8] {
        self.tail
    }

    /// Whether there are as many bytes as the IP and UDP length fields say. If not, the frame was
    /// truncated, damaged or fragmented, and the packet is what remains of it.
    pub fn lengths_agree(&self) -> bool {
        self.lengths_agree
    }

    /// Addresses and ports.
    pub fn flow(&self) -> FlowKey {
        let (src, dst) = match self.ip {
            IpView::V4(v) => (IpAddr::V4(v.src()), IpAddr::V4(v.dst())),
            IpView::V6(v) => (IpAddr::V6(v.src()), IpAddr::V6(v.dst())),
        };
        let udp = self.udp();
        FlowKey { src, dst, src_port: udp.src_port(), dst_port: udp.dst_port() }
    }

    /// IPv4 identification.
    pub fn ip_id(&self) -> Option<u16> {
        match self.ip {
            IpView::V4(v) => Some(v.id()),
            IpView::V6(_) => None,
        }
    }

    /// IPv4 TOS or IPv6 traffic class.
    pub fn tos(&self) -> u8 {
        match self.ip {
            IpView::V4(v) => v.tos(),
            IpView::V6(v) => v.traffic_class(),
        }
    }

    /// Checks the trailer against the headers as they are in the frame.
    pub fn icrc_verdict(&self) -> IcrcVerdict {
        let received = u32::from_le_bytes(*self.trailer);
        let computed = self.icrc_of_headers().packet(self.covered).finish();
        if computed == received { IcrcVerdict::Ok } else { IcrcVerdict::Bad { computed, received } }
    }

    /// The ICRC register after the IP and UDP headers as they are in the frame.
    pub fn icrc_of_headers(&self) -> Icrc {
        let mut ip = [0; IP_MAX_LEN];
        ip.iter_mut().zip(self.ip_header).for_each(|(to, &from)| *to = from);
        mask_ip(&self.ip, &mut ip);
        let ip = ip.get(..self.ip_header.len()).unwrap_or(&ip);
        let [src_hi, src_lo, dst_hi, dst_lo, len_hi, len_lo, ..] = *self.udp;
        let udp = [src_hi, src_lo, dst_hi, dst_lo, len_hi, len_lo, 0xff, 0xff];
        Icrc::START.update(ip).update(&udp)
    }
}

/// Replaces the fields that routers change by ones.
fn mask_ip(view: &IpView<'_>, header: &mut [u8; IP_MAX_LEN]) {
    match view {
        IpView::V4(_) => {
            header[1] = 0xff;
            header[8] = 0xff;
            header[10..12].fill(0xff);
        }
        IpView::V6(_) => {
            header[0] |= 0x0f; // the version shares its byte with the traffic class
            header[1..4].fill(0xff);
            header[7] = 0xff;
        }
    }
}

type IpSplit<'a> = (IpView<'a>, &'a [u8], &'a [u8], bool);

/// The IP header, its UDP datagram, and whether that is complete.
fn split_ip(datagram: &[u8]) -> Option<IpSplit<'_>> {
    match datagram.first()? >> 4 {
        4 => split_ipv4(datagram),
        6 => split_ipv6(datagram),
        _ => None,
    }
}

fn split_ipv4(datagram: &[u8]) -> Option<IpSplit<'_>> {
    let view = Ipv4View::new(datagram).ok()?;
    let header_len = usize::from(view.ihl()) * 4;
    let (header, room) = datagram.split_at_checked(header_len)?;
    // A fragment other than the first has no UDP header.
    let has_udp = view.protocol() == IP_PROTOCOL_UDP && view.fragment_offset() == 0;
    if header_len < Ipv4Header::MIN_LEN || !has_udp {
        return None;
    }
    let claimed = usize::from(view.total_len()).checked_sub(header_len)?;
    let (payload, complete) = take_up_to(room, claimed);
    Some((IpView::V4(view), header, payload, complete))
}

fn split_ipv6(datagram: &[u8]) -> Option<IpSplit<'_>> {
    let (header, room) = datagram.split_first_chunk::<{ Ipv6Header::LEN }>()?;
    let view = Ipv6View::of(header);
    if view.next_header() != IP_PROTOCOL_UDP {
        return None;
    }
    let (payload, complete) = take_up_to(room, view.payload_len().into());
    Some((IpView::V6(view), header, payload, complete))
}

/// The first `len` bytes, or all there are, and whether there were enough.
fn take_up_to(bytes: &[u8], len: usize) -> (&[u8], bool) {
    match bytes.get(..len) {
        Some(taken) => (taken, true),
        None => (bytes, false),
    }
}
