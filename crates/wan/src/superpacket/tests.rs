//! Parts of superpackets, compared with segmenting them one by one.

use proptest::prelude::*;

use super::*;
use crate::vnet::NEEDS_CSUM;

/// A stream of bytes and the headers that carry it.
#[derive(Clone, Debug)]
struct Flow {
    is_v6: bool,
    is_tcp: bool,
    /// IPv4 options or TCP options, in words.
    ip_words: usize,
    tcp_words: usize,
    id: u16,
    sequence: u32,
    flags: u8,
    size: usize,
    payload: Vec<u8>,
}

impl Flow {
    fn l4(&self) -> usize {
        if self.is_v6 { 40 } else { 20 + 4 * self.ip_words }
    }

    fn transport_len(&self) -> usize {
        if self.is_tcp { 20 + 4 * self.tcp_words } else { 8 }
    }

    fn segments(&self) -> usize {
        self.payload.len().div_ceil(self.size).max(1)
    }

    fn packet(&self, id: u16, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = self.ip_header(id, self.transport_len() + payload.len());
        packet.extend([0x12, 0x34, 0x56, 0x78]);
        if self.is_tcp {
            packet.extend(sequence.to_be_bytes());
            packet.extend([0xaa; 4]);
            packet.extend([((5 + self.tcp_words) as u8) << 4, flags, 0x20, 0, 0, 0, 0, 0]);
            packet.extend((0..4 * self.tcp_words).map(|i| i as u8));
        } else {
            packet.extend(((8 + payload.len()) as u16).to_be_bytes());
            packet.extend([0, 0]);
        }
        packet.extend(payload);
        packet
    }

    fn ip_header(&self, id: u16, transport_len: usize) -> Vec<u8> {
        let protocol = if self.is_tcp { 6 } else { 17 };
        if self.is_v6 {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend((transport_len as u16).to_be_bytes());
            header.extend([protocol, 64]);
            header.extend(0..32);
            return header;
        }
        let mut header = vec![0x40 | (5 + self.ip_words) as u8, 0];
        header.extend(((self.l4() + transport_len) as u16).to_be_bytes());
        header.extend(id.to_be_bytes());
        header.extend([0x40, 0, 64, protocol, 0, 0, 10, 42, 0, 1, 10, 42, 0, 2]);
        header.extend(std::iter::repeat_n(1, 4 * self.ip_words));
        let sum = !ones_sum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn pseudo_header(&self, packet: &[u8]) -> Vec<u8> {
        let mut pseudo = packet[if self.is_v6 { 8..40 } else { 12..20 }].to_vec();
        pseudo.extend(((packet.len() - self.l4()) as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, if self.is_tcp { 6 } else { 17 }]);
        pseudo
    }

    fn checksum_at(&self) -> usize {
        self.l4() + if self.is_tcp { 16 } else { 6 }
    }

    /// As the kernel delivers it.
    fn whole(&self) -> (VnetHeader, Vec<u8>) {
        let mut packet = self.packet(self.id, self.sequence, self.flags, &self.payload);
        let sum = ones_sum(&self.pseudo_header(&packet));
        let at = self.checksum_at();
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let vnet = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: match (self.is_tcp, self.is_v6) {
                (true, false) => GSO_TCPV4,
                (true, true) => GSO_TCPV6,
                (false, _) => GSO_UDP_L4,
            },
            hdr_len: (self.l4() + self.transport_len()) as u16,
            gso_size: self.size as u16,
            csum_start: self.l4() as u16,
            csum_offset: (at - self.l4()) as u16,
        };
        (vnet, packet)
    }

    /// One packet as on the wire, built from the fields rather than from the whole.
    fn segment(&self, index: usize) -> Vec<u8> {
        let start = index * self.size;
        let payload = &self.payload[start..self.payload.len().min(start + self.size)];
        let mut flags = self.flags;
        if index + 1 < self.segments() {
            flags &= !(FIN | PSH);
        }
        if index > 0 {
            flags &= !CWR;
        }
        let id = self.id.wrapping_add(index as u16);
        let mut packet = self.packet(id, self.sequence.wrapping_add(start as u32), flags, payload);
        let mut summed = self.pseudo_header(&packet);
        summed.extend(&packet[self.l4()..]);
        let sum = match !ones_sum(&summed) {
            0 if !self.is_tcp => 0xffff,
            sum => sum,
        };
        let at = self.checksum_at();
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }
}

/// The sum of RFC 1071, a carry at a time.
fn ones_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u16;
    for word in bytes.chunks(2) {
        let word = u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]);
        let (added, carry) = sum.overflowing_add(word);
        sum = added + u16::from(carry);
    }
    sum
}

fn flows() -> impl Strategy<Value = Flow> {
    let headers = (any::<bool>(), any::<bool>(), 0..=10_usize, 0..=10_usize);
    let fields = (any::<u16>(), any::<u32>(), any::<u8>());
    (headers, fields, 1..1500_usize, prop::collection::vec(any::<u8>(), 1..6000)).prop_map(
        |((is_v6, is_tcp, ip_words, tcp_words), (id, sequence, flags), size, payload)| Flow {
            is_v6,
            is_tcp,
            ip_words,
            tcp_words,
            id,
            sequence,
            flags,
            size: size.max(payload.len() / 64 + 1),
            payload,
        },
    )
}

/// What the receiver of these bytes would see on the wire.
fn cut(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (vnet, packet) = bytes.split_first_chunk().expect("a header");
    let whole = Superpacket::parse(VnetHeader::parse(vnet), packet).expect("well-formed");
    (0..whole.segments())
        .map(|index| {
            let mut sealed = Vec::new();
            whole.sealed(packet, index, &mut sealed);
            sealed.split_off(VNET_BYTES)
        })
        .collect()
}

fn part(whole: &Superpacket, packet: &[u8], segments: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    whole.headers(packet, &segments, &mut bytes);
    bytes.extend_from_slice(&packet[whole.payload(&segments)]);
    bytes
}

proptest! {
    #[test]
    fn segments_are_what_a_wire_would_carry(flow in flows()) {
        let (vnet, packet) = flow.whole();
        let mut bytes = vnet.to_bytes().to_vec();
        bytes.extend(&packet);
        let segments = cut(&bytes);
        prop_assert_eq!(segments.len(), flow.segments());
        let whole = Superpacket::parse(vnet, &packet).expect("well-formed");
        for (index, segment) in segments.iter().enumerate() {
            prop_assert_eq!(segment, &flow.segment(index));
            prop_assert_eq!(segment.len(), whole.segment_len(index));
        }
    }

    /// Segmenting a part gives the same packets as segmenting the whole.
    #[test]
    fn a_part_is_the_same_packets(flow in flows(), from in any::<prop::sample::Index>(),
                                  to in any::<prop::sample::Index>()) {
        let (vnet, packet) = flow.whole();
        let whole = Superpacket::parse(vnet, &packet).expect("well-formed");
        let from = from.index(flow.segments());
        let to = from + 1 + to.index(flow.segments() - from);
        let part = part(&whole, &packet, from..to);
        let expected: Vec<Vec<u8>> = (from..to).map(|index| flow.segment(index)).collect();
        prop_assert_eq!(cut(&part), expected);
    }

    /// A part with all segments equals the whole, bit for bit, including the incomplete checksum.
    #[test]
    fn a_part_of_all_is_the_whole(flow in flows()) {
        let (vnet, packet) = flow.whole();
        let whole = Superpacket::parse(vnet, &packet).expect("well-formed");
        let part = part(&whole, &packet, 0..flow.segments());
        prop_assert_eq!(&part[VNET_BYTES..], &packet[..]);
    }

    #[test]
    fn nothing_that_a_device_could_give_panics(
        header in any::<[u8; VNET_BYTES]>(), packet in prop::collection::vec(any::<u8>(), 0..300),
        kind in prop::sample::select(vec![0, 1, 4, 5]), start in 0..80_u16, size in 0..100_u16,
    ) {
        let arbitrary = VnetHeader { gso_type: kind, ..VnetHeader::parse(&header) };
        let near = VnetHeader {
            flags: NEEDS_CSUM, gso_size: size, csum_start: start,
            csum_offset: if kind == 5 { 6 } else { 16 }, ..arbitrary
        };
        for vnet in [arbitrary, near] {
            let Ok(whole) = Superpacket::parse(vnet, &packet) else { continue };
            let mut total = 0;
            for index in 0..whole.segments() {
                let mut out = Vec::new();
                whole.sealed(&packet, index, &mut out);
                total += whole.payload(&(index..index + 1)).len();
            }
            prop_assert!(total <= packet.len());
        }
    }
}

#[test]
fn a_single_packet_is_taken_as_it_is() {
    let packet = [0x45; 60];
    let vnet =
        VnetHeader { flags: NEEDS_CSUM, csum_start: 20, csum_offset: 6, ..Default::default() };
    let single = Superpacket::parse(vnet, &packet).expect("nothing is claimed");
    assert_eq!((single.segments(), single.segment_len(0)), (1, 60));
    let whole = part(&single, &packet, 0..1);
    assert_eq!(whole, [&vnet.to_bytes()[..], &packet].concat());
}

#[test]
fn kinds_that_were_not_asked_for_are_refused() {
    let vnet = VnetHeader { gso_type: 3, gso_size: 100, ..Default::default() };
    assert_eq!(Superpacket::parse(vnet, &[0x45; 60]), Err(Malformed::Kind));
    let vnet = VnetHeader { gso_type: GSO_TCPV6, gso_size: 100, ..Default::default() };
    assert_eq!(Superpacket::parse(vnet, &[0x45; 60]), Err(Malformed::Version));
}
