//! The RoCEv2 wire format: headers, whole packets, captured frames and the invariant CRC.
//!
//! Every header comes in three forms, as in smoltcp:
//!
//! * a *representation* such as [`Bth`]: a plain struct whose `parse` and `emit` are inverses,
//!   reserved bits included;
//! * a *view* such as [`BthView`]: borrowed bytes whose length was checked once, with one accessor
//!   per field, for code that needs a few fields of a header;
//! * a *mutable view* such as [`BthMut`]: the same with setters, for code that rewrites a packet in
//!   place (see [`icrc_replace`] for the checksum that goes with it).
//!
//! [`PacketView`] is one packet from BTH to ICRC, which is what a UDP socket receives.
//! [`RoceFrame`] is one captured frame from the link layer down.
//!
//! Nothing in this crate allocates, performs IO or panics, whatever the bytes.
//!
//! ```
//! use bowline_wire::{Bth, ExtHeaders, FlowKey, Opcode, Packet, PacketView, Psn, Qpn, icrc_of};
//!
//! // A SEND of five bytes takes three of padding.
//! let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(7));
//! bth.pad = 3;
//! let ext = ExtHeaders::default();
//! let packet = Packet { bth, ext, payload: b"hello", pad_bytes: [0; 3], icrc: 0 };
//! let mut bytes = [0; 24];
//! packet.emit(&mut bytes)?;
//!
//! // The ICRC covers the headers below too, as the socket will send them.
//! let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
//! let flow = FlowKey { src, dst, src_port: 0xc000, dst_port: bowline_wire::ROCE_UDP_PORT };
//! let icrc = icrc_of(&flow, 0, &bytes[..20]);
//! bytes[20..].copy_from_slice(&icrc.to_le_bytes());
//!
//! let received = PacketView::parse(&bytes)?;
//! assert_eq!(received.payload(), b"hello");
//! assert_eq!(received.icrc(), icrc_of(&flow, 0, &bytes[..20]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "std")]
extern crate std;

#[macro_use]
mod view;

mod aeth;
mod atomic;
mod bth;
mod checksum;
mod datagram;
mod deth;
mod error;
mod ethernet;
mod grh;
mod icrc;
mod immediate;
mod ipv4;
mod ipv6;
mod opcode;
mod packet;
mod psn;
mod qpn;
mod rdeth;
mod repair;
mod reth;
mod sealed;
mod udp;
mod xp;

pub use aeth::{Aeth, AethMut, AethView, NakCode, Syndrome};
pub use atomic::{
    AtomicAckEth, AtomicAckEthMut, AtomicAckEthView, AtomicEth, AtomicEthMut, AtomicEthView,
};
pub use bth::{Bth, BthMut, BthView};
pub use datagram::{
    DatagramHeaders, Frame, FrameError, IP_UDP_MAX_LEN, IcrcVerdict, IpHeader, LinkHeader,
    LinkType, RoceFrame, emit_ip_udp_headers,
};
pub use deth::{Deth, DethMut, DethView};
pub use error::{EmitError, ParseError};
pub use ethernet::{EthernetHeader, VlanTag, VlanTags};
pub use grh::{Grh, ud_grh, ud_source};
pub use icrc::{
    FlowKey, HeaderDeltas, Icrc, LiveBytes, icrc_of, icrc_replace, solve_ip_id, write_icrc,
};
pub use immediate::{Ieth, IethMut, IethView, ImmDt, ImmDtMut, ImmDtView};
pub use ipv4::{Ipv4Header, Ipv4Mut, Ipv4Options, Ipv4View};
pub use ipv6::{Ipv6Header, Ipv6Mut, Ipv6View};
pub use opcode::{ExtLayout, OpKind, Opcode, OpcodeInfo, OpcodeSet, Position, Service};
pub use packet::{ExtHeaders, Packet, PacketView};
pub use psn::Psn;
pub use qpn::Qpn;
pub use rdeth::{Rdeth, RdethMut, RdethView, XrcEth, XrcEthMut, XrcEthView};
pub use repair::{
    AnnounceHeader, Hello, REPAIR_EXT_LEN, RepairHeader, ReportHeader, STALE_BY, ShimPacket,
    stale_psn,
};
pub use reth::{Reth, RethMut, RethView};
pub use sealed::{SEALED_TAG_LEN, SealedCounter, SealedHeader};
pub use udp::{UdpHeader, UdpMut, UdpView};
pub use xp::{XpCc, XpCcMut, XpCcView, XpEth, XpEthMut, XpEthView, XpTimeLeft};

/// UDP destination port of every RoCEv2 packet (IANA: roce).
pub const ROCE_UDP_PORT: u16 = 4791;

/// Bytes of the invariant CRC behind the padded payload.
pub const ICRC_LEN: usize = 4;

/// Reserved bytes behind the BTH of a congestion notification packet; they come as its payload.
pub const CNP_RESERVED_LEN: usize = 16;
