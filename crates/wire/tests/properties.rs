//! Properties that hold for all values and all bytes.

mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;
use support::icrc_by_definition;

/// Parsing what was emitted returns the value, and emitting what was parsed returns the bytes.
macro_rules! round_trips {
    ($($test:ident: $header:ident;)*) => {
        proptest! {
            $(#[test]
            fn $test(bytes in any::<[u8; $header::LEN]>()) {
                let value = $header::parse(&bytes);
                let mut out = [0xa5; $header::LEN];
                value.emit(&mut out);
                prop_assert_eq!(out, bytes);
                prop_assert_eq!($header::parse(&out), value);
            })*
        }
    };
}

round_trips! {
    bth_round_trips: Bth;
    reth_round_trips: Reth;
    aeth_round_trips: Aeth;
    atomic_eth_round_trips: AtomicEth;
    atomic_ack_round_trips: AtomicAckEth;
    deth_round_trips: Deth;
    imm_dt_round_trips: ImmDt;
    ieth_round_trips: Ieth;
    rdeth_round_trips: Rdeth;
    xrc_eth_round_trips: XrcEth;
    xp_eth_round_trips: XpEth;
    xp_time_left_round_trips: XpTimeLeft;
    xp_cc_round_trips: XpCc;
    udp_round_trips: UdpHeader;
}

proptest! {
    #[test]
    fn ipv6_round_trips(tail: [u8; 32], mut head: [u8; 8]) {
        head[0] = 0x60 | (head[0] & 0xf);
        let bytes: [u8; 40] = [&head[..], &tail].concat().try_into().unwrap();
        let mut out = [0xa5; 40];
        Ipv6Header::parse(&bytes).unwrap().emit(&mut out);
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn ipv4_round_trips(mut bytes: [u8; 20], options in vec(any::<[u8; 4]>(), 0..=10)) {
        bytes[0] = 0x45 + options.len() as u8;
        let bytes = [&bytes, options.as_flattened()].concat();
        let mut out = vec![0xa5; bytes.len()];
        Ipv4Header::parse(&bytes).unwrap().emit(&mut out).unwrap();
        prop_assert_eq!(out, bytes);
    }

    #[test]
    fn a_mutable_view_changes_its_field_and_no_other(bytes: [u8; 12], other: [u8; 12]) {
        let (mut out, other) = (bytes, Bth::parse(&other));
        let mut view = BthMut::of(&mut out);
        view.set_dest_qpn(other.dest_qpn);
        view.set_psn(other.psn);
        view.set_fecn(other.fecn);
        view.set_becn(other.becn);
        let expected = Bth {
            dest_qpn: other.dest_qpn,
            psn: other.psn,
            fecn: other.fecn,
            becn: other.becn,
            ..Bth::parse(&bytes)
        };
        prop_assert_eq!(Bth::parse(&out), expected);
    }

    #[test]
    fn a_packet_of_any_bytes_is_refused_or_whole(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(view) = PacketView::parse(&bytes) {
            let headers = 12 + usize::from(view.info().ext_len);
            let parts = headers + view.payload().len() + view.pad().len() + 4;
            prop_assert_eq!(parts, bytes.len());
            let mut out = vec![0; bytes.len()];
            prop_assert_eq!(Packet::from(view).emit(&mut out), Ok(bytes.len()));
            prop_assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_packet_of_any_opcode_and_length_is_refused_or_whole(
        opcode: u8, pad in 0..4_u8, rest in vec(any::<u8>(), 0..80),
    ) {
        let bytes = [&[opcode, pad << 4][..], &rest].concat();
        match (PacketView::parse(&bytes), Opcode(opcode).info()) {
            (Ok(view), Some(info)) => {
                let mut out = vec![0; bytes.len()];
                prop_assert_eq!(Packet::from(view).emit(&mut out), Ok(bytes.len()));
                prop_assert_eq!(&out, &bytes);
                prop_assert_eq!(view.imm().is_some(), info.has_imm);
                prop_assert_eq!(view.ieth().is_some(), info.has_invalidate);
            }
            (Err(ParseError::UnknownOpcode(_)), None) => {}
            (Err(ParseError::Truncated { need, have }), _) => {
                prop_assert!(have < need);
                prop_assert_eq!(have, bytes.len());
            }
            (result, info) => prop_assert!(false, "{result:?} {info:?}"),
        }
    }

    #[test]
    fn a_frame_of_any_bytes_does_not_panic(link in link_type(), bytes in vec(any::<u8>(), 0..200)) {
        look_at_everything(link, &bytes);
    }

    #[test]
    fn a_damaged_frame_does_not_panic(
        v6: bool,
        payload in vec(any::<u8>(), 0..100),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = ethernet_frame(&flow(v6), 7, &packet(&payload));
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        look_at_everything(LinkType::Ethernet, &bytes);
        look_at_everything(LinkType::Ethernet, &bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn the_sum_over_a_packet_is_that_of_the_definition(
        flow in any_flow(), ip_id: u16, payload in vec(any::<u8>(), 0..600),
    ) {
        let packet = packet(&payload);
        let ip_id = if flow.src.is_ipv4() { ip_id } else { 0 };
        let icrc = icrc_of(&flow, ip_id, &packet[..packet.len() - 4]);
        prop_assert_eq!(icrc, icrc_by_definition(&datagram(&flow, ip_id, &packet)));
    }

    #[test]
    fn synthesised_headers_carry_right_checksums(
        flow in any_flow(), ip_id: u16, payload in vec(any::<u8>(), 0..100),
    ) {
        let datagram = datagram(&flow, ip_id, &payload);
        let pseudo = match IpHeader::parse(&datagram).unwrap() {
            IpHeader::V4(header) => {
                prop_assert_eq!(header, header.with_checksum());
                prop_assert_eq!(ones_complement_sum(&datagram[..20]), 0xffff);
                [&datagram[12..20], &[0, 17], &datagram[24..26], &datagram[20..]].concat()
            }
            IpHeader::V6(_) => {
                [&datagram[8..40], &[0, 17], &datagram[44..46], &datagram[40..]].concat()
            }
        };
        prop_assert_eq!(ones_complement_sum(&pseudo), 0xffff);
    }

    #[test]
    fn an_identification_changes_the_register_by_its_difference_alone(
        src: u32, dst: u32, ports: (u16, u16), len in 16..9000_usize, ids: (u16, u16),
    ) {
        let flow = FlowKey {
            src: Ipv4Addr::from_bits(src).into(),
            dst: Ipv4Addr::from_bits(dst).into(),
            src_port: ports.0,
            dst_port: ports.1,
        };
        let edited = Icrc::of_headers(&flow, len, ids.0).with_ip_id_delta(ids.0 ^ ids.1);
        prop_assert_eq!(edited, Icrc::of_headers(&flow, len, ids.1));
    }

    #[test]
    fn an_edit_in_place_gives_the_recomputed_sum(
        bytes in vec(any::<u8>(), 1..3000),
        new in vec(any::<u8>(), 1..40),
        at in any::<prop::sample::Index>(),
    ) {
        let at = at.index(bytes.len());
        let len = new.len().min(bytes.len() - at);
        let mut edited = bytes.clone();
        edited[at..at + len].copy_from_slice(&new[..len]);
        let after = bytes.len() - at - len;
        let icrc = Icrc::START.update(&bytes).finish();
        prop_assert_eq!(
            icrc_replace(icrc, &bytes[at..at + len], &new[..len], after),
            Icrc::START.update(&edited).finish()
        );
    }

    #[test]
    fn a_switch_rewrites_address_queue_pair_and_psn(
        payload in vec(any::<u8>(), 0..300), dst: [u8; 4], qpn: [u8; 3], psn: [u8; 3],
    ) {
        let packet = sealed_packet(&flow(false), 3, &payload);
        let mut frame = datagram(&flow(false), 3, &packet);
        let covered_end = frame.len() - 4;
        let mut icrc = u32::from_le_bytes(*frame.last_chunk().unwrap());
        let bth = 28;
        for (at, new) in [(16, &dst[..]), (bth + 5, &qpn), (bth + 9, &psn)] {
            let end = at + new.len();
            icrc = icrc_replace(icrc, &frame[at..end], new, covered_end - end);
            frame[at..end].copy_from_slice(new);
        }
        frame[covered_end..].copy_from_slice(&icrc.to_le_bytes());
        let frame = RoceFrame::parse(LinkType::RawIp, &frame).unwrap();
        prop_assert_eq!(frame.icrc_verdict(), IcrcVerdict::Ok);
    }

    #[test]
    fn the_identification_is_found(
        payload in vec(any::<u8>(), 0..2000), used: u16, assumed: u16,
    ) {
        let packet = packet(&payload);
        let covered = &packet[..packet.len() - 4];
        let received = icrc_of(&flow(false), used, covered);
        let computed = icrc_of(&flow(false), assumed, covered);
        prop_assert_eq!(solve_ip_id(computed, received, assumed, packet.len()), Some(used));
    }

    #[test]
    fn psn_arithmetic_goes_round(start: u32, n in 0..1_u32 << 23) {
        let psn = Psn::new(start);
        prop_assert_eq!(psn.add(n).sub(n), psn);
        prop_assert_eq!(psn.add(n).diff(psn), n as i32);
        prop_assert_eq!(psn.diff(psn.add(n)), -(n as i32));
        prop_assert_eq!(psn.before(psn.add(n)), n > 0);
        prop_assert_eq!(psn.add(n).after(psn), n > 0);
        prop_assert_eq!(psn.add(n).next(), psn.add(n + 1));
    }
}

#[test]
fn psn_at_the_seam() {
    let (last, zero) = (Psn::new(0xff_ffff), Psn::new(0));
    assert_eq!(last.next(), zero);
    assert_eq!(zero.sub(1), last);
    assert_eq!(zero.diff(last), 1);
    assert!(last.before(zero) && zero.after(last));
    assert_eq!(Psn::new(0x100_0005), Psn::new(5));
    // Half of the sequence space away counts as before, from either side.
    let half = zero.add(1 << 23);
    assert_eq!(half.diff(zero), -(1 << 23));
    assert_eq!(zero.diff(half), -(1 << 23));
}

/// Flips each bit of a packet with 4 KiB of payload: none of them is mistaken for another
/// identification.
#[test]
fn one_flipped_bit_is_never_taken_for_an_identification() {
    let packet = sealed_packet(&flow(false), 77, &[0x5a; 4096]);
    let (covered, trailer) = packet.split_last_chunk().unwrap();
    let received = u32::from_le_bytes(*trailer);
    let computed = icrc_of(&flow(false), 0, covered);
    assert_eq!(solve_ip_id(computed, received, 0, packet.len()), Some(77));
    for bit in 0..32 {
        assert_eq!(solve_ip_id(computed, received ^ (1 << bit), 0, packet.len()), None);
    }
    for at in (0..covered.len()).filter(|&at| at != 4) {
        for bit in 0..8 {
            let flipped = icrc_replace(computed, &[0], &[1 << bit], covered.len() - at - 1);
            assert_eq!(
                solve_ip_id(flipped, received, 0, packet.len()),
                None,
                "byte {at} bit {bit}"
            );
        }
    }
}

fn look_at_everything(link: LinkType, bytes: &[u8]) {
    let Ok(frame) = RoceFrame::parse(link, bytes) else {
        return;
    };
    frame.icrc_verdict();
    frame.flow();
    frame.bth();
    if let Ok(repr) = Frame::try_from(frame) {
        let mut out = vec![0; bytes.len()];
        assert_eq!(repr.emit(&mut out), Ok(bytes.len()));
        assert_eq!(out, bytes);
    }
}

fn link_type() -> impl Strategy<Value = LinkType> {
    prop_oneof![
        Just(LinkType::Ethernet),
        Just(LinkType::RawIp),
        Just(LinkType::LinuxSll),
        Just(LinkType::LinuxSll2),
        Just(LinkType::Loopback),
    ]
}

fn any_flow() -> impl Strategy<Value = FlowKey> {
    let v4 = any::<(u32, u32)>().prop_map(|(src, dst)| {
        (IpAddr::from(Ipv4Addr::from_bits(src)), IpAddr::from(Ipv4Addr::from_bits(dst)))
    });
    let v6 = any::<(u128, u128)>().prop_map(|(src, dst)| {
        (IpAddr::from(Ipv6Addr::from_bits(src)), IpAddr::from(Ipv6Addr::from_bits(dst)))
    });
    (prop_oneof![v4, v6], any::<u16>(), any::<u16>())
        .prop_map(|((src, dst), src_port, dst_port)| FlowKey { src, dst, src_port, dst_port })
}

fn flow(v6: bool) -> FlowKey {
    let (src, dst) = if v6 { ("fe80::1", "fe80::2") } else { ("10.9.0.1", "10.9.0.2") };
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    FlowKey { src, dst, src_port: 0xc123, dst_port: ROCE_UDP_PORT }
}

/// A SEND with `payload`, padded, and a trailer of zeros.
fn packet(payload: &[u8]) -> Vec<u8> {
    let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), Psn::new(0xff_ffff));
    bth.pad = (payload.len().wrapping_neg() % 4) as u8;
    let packet = Packet { bth, ext: ExtHeaders::default(), payload, pad_bytes: [0; 3], icrc: 0 };
    let mut out = vec![0; packet.wire_len().unwrap()];
    packet.emit(&mut out).unwrap();
    out
}

/// The same with the correct trailer.
fn sealed_packet(flow: &FlowKey, ip_id: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = packet(payload);
    let end = packet.len() - 4;
    let icrc = icrc_of(flow, ip_id, &packet[..end]);
    packet[end..].copy_from_slice(&icrc.to_le_bytes());
    packet
}

/// An IP datagram.
fn datagram(flow: &FlowKey, ip_id: u16, udp_payload: &[u8]) -> Vec<u8> {
    let headers = DatagramHeaders { flow: *flow, tos: 0x68, ttl: 64, ip_id };
    let mut out = [0; IP_UDP_MAX_LEN];
    [emit_ip_udp_headers(&headers, udp_payload, &mut out).unwrap(), udp_payload].concat()
}

fn ethernet_frame(flow: &FlowKey, ip_id: u16, udp_payload: &[u8]) -> Vec<u8> {
    let ethertype = if flow.src.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] };
    [&[2; 12][..], &ethertype, &datagram(flow, ip_id, udp_payload)].concat()
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
