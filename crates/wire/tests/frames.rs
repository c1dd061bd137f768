//! Frames of every link layer, and how they are classified.

mod support;

use bowline_wire::{
    EthernetHeader, Frame, FrameError, Grh, IpHeader, LinkHeader, LinkType, RoceFrame, VlanTag,
    VlanTags, ud_grh,
};
use support::frames;

/// One IP datagram with a valid packet in it.
fn datagram() -> Vec<u8> {
    frames("rc_write_64.pcap").swap_remove(0)[14..].to_vec()
}

fn check_reads_and_writes(link: LinkType, bytes: &[u8]) {
    let frame = RoceFrame::parse(link, bytes).unwrap();
    assert!(frame.icrc_verdict().is_ok() && frame.lengths_agree());
    let mut out = vec![0; bytes.len()];
    assert_eq!(Frame::try_from(frame).unwrap().emit(&mut out), Ok(bytes.len()));
    assert_eq!(out, bytes);
}

#[test]
fn raw_ip() {
    check_reads_and_writes(LinkType::RawIp, &datagram());
    for number in [101, 12, 14, 228, 229] {
        assert_eq!(LinkType::from_pcap(number), Some(LinkType::RawIp));
    }
}

#[test]
fn linux_cooked_and_loopback() {
    let sll = [&[0; 14][..], &[0x08, 0x00], &datagram()].concat();
    check_reads_and_writes(LinkType::LinuxSll, &sll);
    let sll2 = [&[0x08, 0x00][..], &[0; 18], &datagram()].concat();
    check_reads_and_writes(LinkType::LinuxSll2, &sll2);
    check_reads_and_writes(LinkType::Loopback, &[&[2, 0, 0, 0][..], &datagram()].concat());
}

#[test]
fn ethernet_with_tags_and_padding() {
    let customer = [0x81, 0x00, 0x60, 0x64];
    let service = [0x88, 0xa8, 0x00, 0x0a];
    for tags in [&[][..], &customer, &[service, customer].concat()] {
        let bytes = [&[2; 12][..], tags, &[0x08, 0x00], &datagram(), &[0; 6]].concat();
        check_reads_and_writes(LinkType::Ethernet, &bytes);
        let frame = RoceFrame::parse(LinkType::Ethernet, &bytes).unwrap();
        assert_eq!(frame.tail(), [0; 6]);
        let LinkHeader::Ethernet(header) = Frame::try_from(frame).unwrap().link else {
            panic!("not Ethernet");
        };
        assert_eq!(header.tags.as_slice().len(), tags.len() / 4);
    }
}

#[test]
fn a_third_tag_is_payload() {
    let tag = VlanTag { tpid: 0x8100, tci: 1 };
    assert_eq!(VlanTags::new(&[tag; 3]), None);
    let bytes = [&[2; 12][..], &[0x81, 0x00, 0, 1].repeat(3), &[0x08, 0x00]].concat();
    let header = EthernetHeader::parse(&bytes).unwrap();
    assert_eq!((header.tags, header.ethertype), (VlanTags::new(&[tag; 2]).unwrap(), 0x8100));
}

#[test]
fn options_are_covered_by_the_icrc() {
    let mut bytes = datagram();
    bytes.splice(20..20, [1, 1, 1, 0]);
    bytes[0] = 0x46;
    bytes[3] += 4;
    let end = bytes.len() - 4;
    let icrc = support::icrc_by_definition(&bytes);
    bytes[end..].copy_from_slice(&icrc.to_le_bytes());
    check_reads_and_writes(LinkType::RawIp, &bytes);
}

#[test]
fn other_traffic_is_not_roce() {
    let is_roce = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = datagram();
        edit(&mut bytes);
        RoceFrame::parse(LinkType::RawIp, &bytes).err()
    };
    assert_eq!(is_roce(|_| {}), None);
    assert_eq!(is_roce(|b| b[9] = 6), Some(FrameError::NotRoce), "TCP");
    assert_eq!(is_roce(|b| b[23] ^= 1), Some(FrameError::NotRoce), "another port");
    assert_eq!(is_roce(|b| b[7] = 1), Some(FrameError::NotRoce), "a later fragment");
    assert_eq!(is_roce(|b| b[0] = 0x44), Some(FrameError::NotRoce), "impossible header length");
    assert_eq!(is_roce(|b| b[0] = 0x55), Some(FrameError::NotRoce), "IP version 5");
    assert_eq!(is_roce(|b| b.truncate(27)), Some(FrameError::NotRoce), "no UDP header");
    assert_eq!(is_roce(|b| b.truncate(28 + 15)), Some(FrameError::TooShort { have: 15 }));
    assert_eq!(is_roce(|b| b[24..26].fill(0)), Some(FrameError::TooShort { have: 0 }));
}

#[test]
fn a_cut_frame_is_read_as_far_as_it_goes() {
    let mut bytes = datagram();
    bytes.truncate(60);
    let frame = RoceFrame::parse(LinkType::RawIp, &bytes).unwrap();
    assert!(!frame.lengths_agree() && !frame.icrc_verdict().is_ok());
    assert_eq!(frame.packet_bytes().len(), 32);
}

#[test]
fn the_route_header_of_a_datagram_is_its_ip_header() {
    let v4 = ud_grh([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0x68, 63, 100);
    assert_eq!(v4[..20], [0; 20]);
    let IpHeader::V4(header) = IpHeader::parse(&v4[20..]).unwrap() else { panic!("not IPv4") };
    assert_eq!((header.tos, header.ttl, header.total_len), (0x68, 63, 120));
    assert_eq!(header, header.with_checksum());

    let (src, dst) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let header = Grh::parse(&ud_grh(src, dst, 0x68, 63, 100)).unwrap();
    assert_eq!((header.src, header.dst), ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap()));
    assert_eq!((header.traffic_class, header.hop_limit, header.payload_len), (0x68, 63, 100));
}
