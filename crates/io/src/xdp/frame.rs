//! Ethernet frames around packets: written for sending, parsed on receipt.

use std::net::IpAddr;

use bowline_nic::{FrameMeta, IpId};
use bowline_wire::{EthernetHeader, Ipv4Header, Ipv4Options, Ipv6Header, UdpHeader, VlanTags};

const TTL: u8 = 64;
/// Why `emit` cannot fail: all buffers here are sized for their contents.
const ROOM: &str = "the frame has room for its headers";

/// Bytes before a packet: Ethernet, IP and UDP headers.
pub(super) const fn headers_len(addr: IpAddr) -> usize {
    let ip = match addr {
        IpAddr::V4(_) => Ipv4Header::MIN_LEN,
        IpAddr::V6(_) => Ipv6Header::LEN,
    };
    EthernetHeader::MIN_LEN + ip + UdpHeader::LEN
}

/// Sender and receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_mac: [u8; 6],
    pub(super) dst_mac: [u8; 6],
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
}

/// Fills `frame` with headers and `packet`. Its length must be that of both together.
///
/// The UDP checksum is omitted, as RoCEv2 NICs do: the ICRC covers more, and a checksum would be
/// another pass over the payload.
pub(super) fn write(frame: &mut [u8], ends: &Ends, tos: u8, ip_id: u16, packet: &[u8]) {
    let (headers, payload) = frame.split_at_mut(headers_len(ends.dst));
    payload.copy_from_slice(packet);
    let ethertype = if ends.dst.is_ipv4() { libc::ETH_P_IP } else { libc::ETH_P_IPV6 } as u16;
    let ethernet =
        EthernetHeader { dst: ends.dst_mac, src: ends.src_mac, tags: VlanTags::EMPTY, ethertype };
    let (link, rest) = headers.split_at_mut(EthernetHeader::MIN_LEN);
    ethernet.emit(link).expect(ROOM);
    let udp_len = (UdpHeader::LEN + packet.len()) as u16;
    let (ip, udp) = rest.split_last_chunk_mut().expect(ROOM);
    let (src_port, dst_port) = (ends.src_port, ends.dst_port);
    UdpHeader { src_port, dst_port, len: udp_len, checksum: 0 }.emit(udp);
    let protocol = libc::IPPROTO_UDP as u8;
    match (ends.src, ends.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4Header {
                tos,
                total_len: udp_len + Ipv4Header::MIN_LEN as u16,
                id: ip_id,
                reserved_flag: false,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: TTL,
                protocol,
                checksum: 0,
                src,
                dst,
                options: Ipv4Options::EMPTY,
            };
            header.with_checksum().emit(ip).expect(ROOM);
        }
        (src, dst) => {
            let header = Ipv6Header {
                traffic_class: tos,
                flow_label: 0,
                payload_len: udp_len,
                next_header: protocol,
                hop_limit: TTL,
                src: as_v6(src),
                dst: as_v6(dst),
            };
            header.emit(ip.first_chunk_mut().expect(ROOM));
        }
    }
}

fn as_v6(addr: IpAddr) -> std::net::Ipv6Addr {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Why a frame is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is for another host, or not RoCEv2.
    Foreign,
    /// It is truncated, a fragment, or its headers are wrong.
    Malformed,
}

/// Our addresses: what a frame must be addressed to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) addr: IpAddr,
    pub(super) mac: [u8; 6],
    pub(super) udp_port: u16,
}

/// Parses a received frame into its envelope and its packet.
///
/// The UDP checksum is not checked. Frames from another interface of this host carry an unfinished
/// checksum, and the ICRC protects the packet in any case.
pub(super) fn parse<'a>(frame: &'a [u8], own: &Own) -> Result<(FrameMeta, &'a [u8]), Refusal> {
    let ethernet = EthernetHeader::parse(frame).map_err(|_| Refusal::Malformed)?;
    let tagged = !ethernet.tags.as_slice().is_empty();
    if tagged || ethernet.dst != own.mac {
        return Err(Refusal::Foreign);
    }
    let datagram = &frame[ethernet.header_len()..];
    let (meta, payload) = match (own.addr, i32::from(ethernet.ethertype)) {
        (IpAddr::V4(_), libc::ETH_P_IP) => parse_ipv4(datagram)?,
        (IpAddr::V6(_), libc::ETH_P_IPV6) => parse_ipv6(datagram)?,
        _ => return Err(Refusal::Foreign),
    };
    let (udp, room) = payload.split_first_chunk().ok_or(Refusal::Malformed)?;
    let udp = UdpHeader::parse(udp);
    if meta.dst != own.addr || udp.dst_port != own.udp_port {
        return Err(Refusal::Foreign);
    }
    let len = usize::from(udp.len).checked_sub(UdpHeader::LEN).ok_or(Refusal::Malformed)?;
    // UDP and IP must agree: the ICRC covers both lengths, but knows only one.
    let packet = room.get(..len).filter(|_| len == room.len()).ok_or(Refusal::Malformed)?;
    Ok((FrameMeta { src_port: udp.src_port, ..meta }, packet))
}

/// The envelope's fields from the IPv4 header, and its payload.
fn parse_ipv4(datagram: &[u8]) -> Result<(FrameMeta, &[u8]), Refusal> {
    let header = Ipv4Header::parse(datagram).map_err(|_| Refusal::Malformed)?;
    if i32::from(header.protocol) != libc::IPPROTO_UDP {
        return Err(Refusal::Foreign);
    }
    let has_options = header.header_len() != Ipv4Header::MIN_LEN;
    let fragment = header.more_fragments || header.fragment_offset != 0;
    if has_options || fragment || header.with_checksum() != header {
        return Err(Refusal::Malformed);
    }
    let payload = datagram.get(Ipv4Header::MIN_LEN..usize::from(header.total_len));
    let meta = FrameMeta {
        src: header.src.into(),
        dst: header.dst.into(),
        src_port: 0,
        tos: header.tos,
        ttl: header.ttl,
        ip_id: IpId::Known(header.id),
    };
    Ok((meta, payload.ok_or(Refusal::Malformed)?))
}

/// The envelope's fields from the IPv6 header, and its payload.
fn parse_ipv6(datagram: &[u8]) -> Result<(FrameMeta, &[u8]), Refusal> {
    let (header, room) = datagram.split_first_chunk().ok_or(Refusal::Malformed)?;
    let header = Ipv6Header::parse(header).map_err(|_| Refusal::Malformed)?;
    if i32::from(header.next_header) != libc::IPPROTO_UDP {
        return Err(Refusal::Foreign);
    }
    let meta = FrameMeta {
        src: header.src.into(),
        dst: header.dst.into(),
        src_port: 0,
        tos: header.traffic_class,
        ttl: header.hop_limit,
        ip_id: IpId::Known(0),
    };
    let payload = room.get(..usize::from(header.payload_len));
    Ok((meta, payload.ok_or(Refusal::Malformed)?))
}

#[cfg(test)]
pub(super) mod tests {
    use bowline_wire::{FlowKey, LinkType, RoceFrame, icrc_of};
    use proptest::prelude::*;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// A frame with a sealed packet of `len` bytes.
    pub(crate) fn frame_between(src: IpAddr, dst: IpAddr, dst_port: u16, len: usize) -> Vec<u8> {
        let flow = FlowKey { src, dst, src_port: 4791, dst_port };
        let mut packet: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let icrc = icrc_of(&flow, 7, &packet[..len - 4]);
        packet[len - 4..].copy_from_slice(&icrc.to_le_bytes());
        let (src_mac, dst_mac) = ([2, 0, 0, 0, 0, 2], MAC);
        let ends = Ends { src, dst, src_mac, dst_mac, src_port: 4791, dst_port };
        let mut frame = vec![0; headers_len(dst) + len];
        write(&mut frame, &ends, 0x6a, 7, &packet);
        frame
    }

    fn both() -> [(Own, IpAddr); 2] {
        [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")].map(|(ours, peer)| {
            let own = Own { addr: ours.parse().unwrap(), mac: MAC, udp_port: 4791 };
            (own, peer.parse().unwrap())
        })
    }

    #[test]
    fn what_is_written_is_read_and_sealed_right() {
        for (own, peer) in both() {
            let frame = frame_between(peer, own.addr, 4791, 100);
            let (meta, packet) = parse(&frame, &own).unwrap();
            assert_eq!((meta.src, meta.dst, meta.src_port), (peer, own.addr, 4791));
            assert_eq!((meta.tos, meta.ttl), (0x6a, 64));
            assert_eq!(meta.ip_id, IpId::Known(if peer.is_ipv4() { 7 } else { 0 }));
            assert_eq!(packet.len(), 100);
            // Cross-check with the dissector.
            let seen = RoceFrame::parse(LinkType::Ethernet, &frame).unwrap();
            assert!(seen.lengths_agree() && seen.icrc_verdict().is_ok());
            assert_eq!(seen.tos(), 0x6a);
        }
    }

    #[test]
    fn the_padding_of_a_short_frame_is_no_payload() {
        for (own, peer) in both() {
            let mut frame = frame_between(peer, own.addr, 4791, 16);
            frame.extend_from_slice(&[0; 30]);
            assert_eq!(parse(&frame, &own).unwrap().1.len(), 16);
        }
    }

    #[test]
    fn what_is_not_ours_or_not_whole_is_refused_by_cause() {
        for (own, peer) in both() {
            let good = frame_between(peer, own.addr, 4791, 64);
            let refusal = |frame: &[u8]| parse(frame, &own).unwrap_err();
            for len in 0..good.len() {
                assert!(parse(&good[..len], &own).is_err(), "cut at {len}");
            }
            assert_eq!(refusal(&frame_between(own.addr, peer, 4791, 64)), Refusal::Foreign);
            assert_eq!(refusal(&frame_between(peer, own.addr, 4790, 64)), Refusal::Foreign);
            let with = |at: usize, value: u8| {
                let mut frame = good.clone();
                frame[at] = value;
                refusal(&frame)
            };
            assert_eq!(with(5, 9), Refusal::Foreign, "another's Ethernet address");
            let tagged = [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat();
            assert_eq!(refusal(&tagged), Refusal::Foreign);
            if own.addr.is_ipv4() {
                assert_eq!(with(14, 0x46), Refusal::Malformed, "options");
                assert_eq!(with(20, 0x20), Refusal::Malformed, "more fragments");
                assert_eq!(with(21, 1), Refusal::Malformed, "not the first fragment");
                assert_eq!(with(24, 0), Refusal::Malformed, "checksum");
                assert_eq!(with(22, 63), Refusal::Malformed, "a TTL that was not summed up");
            }
            assert_eq!(with(headers_len(peer) - 3, 8), Refusal::Malformed, "UDP length");
        }
    }

    proptest! {
        /// From noise to valid frames with a few bytes and the length changed.
        #[test]
        fn no_bytes_make_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            noise in prop::collection::vec(any::<u8>(), 0..200),
            cut in any::<prop::sample::Index>(),
        ) {
            for (own, peer) in both() {
                let mut frame = frame_between(peer, own.addr, 4791, 32);
                for (at, value) in &changes {
                    let at = at.index(frame.len());
                    frame[at] = *value;
                }
                for frame in [&frame[..], &frame[..cut.index(frame.len())], &noise] {
                    if let Ok((meta, packet)) = parse(frame, &own) {
                        prop_assert_eq!(meta.dst, own.addr);
                        prop_assert!(packet.len() + headers_len(peer) <= frame.len());
                    }
                }
            }
        }
    }
}
