//! Every packet of every capture: decoded, its ICRC checked, and re-encoded byte for byte.

mod support;

use std::collections::BTreeMap;

use bowline_wire::{Frame, IcrcVerdict, LinkType, PacketView, RoceFrame, icrc_of, solve_ip_id};
use support::{frames, icrc_by_definition, names};

type Expected = (&'static str, usize, usize, &'static [(&'static str, usize)]);

/// File, packets, packets with a wrong ICRC, packets by opcode: as counted by a program in another
/// language that shares no code with this crate.
#[rustfmt::skip]
const EXPECTED: &[Expected] = &[
    ("guest2host_rc_atomics", 4, 0, &[("RC_ATOMIC_ACK", 2), ("RC_CMP_SWAP", 1), ("RC_FETCH_ADD", 1)]),
    ("guest2host_rc_nak_gobackn", 9, 0, &[("RC_ACK", 2), ("RC_WRITE_FIRST", 1), ("RC_WRITE_LAST", 2), ("RC_WRITE_MIDDLE", 4)]),
    ("guest2host_rc_read_4096", 5, 0, &[("RC_READ_REQ", 1), ("RC_READ_RESP_FIRST", 1), ("RC_READ_RESP_LAST", 1), ("RC_READ_RESP_MID", 2)]),
    ("guest2host_rc_retransmit_timeout", 3, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY", 2)]),
    ("guest2host_rc_rnr", 4, 0, &[("RC_ACK", 2), ("RC_SEND_ONLY", 2)]),
    ("guest2host_rc_send_13B", 2, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY", 1)]),
    ("guest2host_rc_send_4096", 5, 0, &[("RC_ACK", 1), ("RC_SEND_FIRST", 1), ("RC_SEND_LAST", 1), ("RC_SEND_MIDDLE", 2)]),
    ("guest2host_rc_sendimm_13B", 2, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY_IMM", 1)]),
    ("guest2host_rc_tclass_hop", 2, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY", 1)]),
    ("guest2host_rc_write_4096", 5, 0, &[("RC_ACK", 1), ("RC_WRITE_FIRST", 1), ("RC_WRITE_LAST", 1), ("RC_WRITE_MIDDLE", 2)]),
    ("guest2host_uc_write_send", 5, 0, &[("UC_SEND_ONLY", 1), ("UC_WRITE_FIRST", 1), ("UC_WRITE_LAST", 1), ("UC_WRITE_MIDDLE", 2)]),
    ("guest2host_ud_send", 1, 0, &[("UD_SEND_ONLY", 1)]),
    ("host2guest_rc_atomics", 4, 0, &[("RC_ATOMIC_ACK", 2), ("RC_CMP_SWAP", 1), ("RC_FETCH_ADD", 1)]),
    ("host2guest_rc_badrkey_nak", 2, 0, &[("RC_ACK", 1), ("RC_WRITE_ONLY", 1)]),
    ("host2guest_rc_read_4096", 5, 0, &[("RC_READ_REQ", 1), ("RC_READ_RESP_FIRST", 1), ("RC_READ_RESP_LAST", 1), ("RC_READ_RESP_MID", 2)]),
    ("host2guest_rc_send_13B", 2, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY", 1)]),
    ("host2guest_rc_send_imm", 2, 0, &[("RC_ACK", 1), ("RC_SEND_ONLY_IMM", 1)]),
    ("host2guest_rc_write_4096", 5, 0, &[("RC_ACK", 1), ("RC_WRITE_FIRST", 1), ("RC_WRITE_LAST", 1), ("RC_WRITE_MIDDLE", 2)]),
    ("host2guest_rc_write_imm", 2, 0, &[("RC_ACK", 1), ("RC_WRITE_ONLY_IMM", 1)]),
    ("host2guest_uc_write_4096", 4, 0, &[("UC_WRITE_FIRST", 1), ("UC_WRITE_LAST", 1), ("UC_WRITE_MIDDLE", 2)]),
    ("host2guest_ud_send", 2, 0, &[("UD_SEND_ONLY", 2)]),
    ("host_udp_gso8_write", 9, 0, &[("RC_ACK", 1), ("RC_WRITE_ONLY", 8)]),
    ("icrc_probe_matrix", 21, 3, &[("RC_ACK", 9), ("RC_WRITE_ONLY", 12)]),
    ("ipv6ll_host_guest_rc", 5, 0, &[("RC_ACK", 2), ("RC_SEND_FIRST", 1), ("RC_SEND_LAST", 1), ("RC_SEND_ONLY", 1)]),
    ("netem_rc_write_corrupt10_rxside", 56, 2, &[("RC_ACK", 12), ("RC_WRITE_FIRST", 10), ("RC_WRITE_LAST", 11), ("RC_WRITE_MIDDLE", 23)]),
    ("netem_rc_write_dup20_rxside", 62, 0, &[("RC_ACK", 16), ("RC_WRITE_FIRST", 10), ("RC_WRITE_LAST", 12), ("RC_WRITE_MIDDLE", 24)]),
    ("netem_rc_write_loss10_rxside", 220, 0, &[("RC_ACK", 31), ("RC_WRITE_FIRST", 43), ("RC_WRITE_LAST", 53), ("RC_WRITE_MIDDLE", 93)]),
    ("rc_atomic_faa", 10, 0, &[("RC_ATOMIC_ACK", 5), ("RC_FETCH_ADD", 5)]),
    ("rc_pingpong", 40, 0, &[("RC_ACK", 8), ("RC_SEND_FIRST", 8), ("RC_SEND_LAST", 8), ("RC_SEND_MIDDLE", 16)]),
    ("rc_read_4096", 25, 0, &[("RC_READ_REQ", 5), ("RC_READ_RESP_FIRST", 5), ("RC_READ_RESP_LAST", 5), ("RC_READ_RESP_MID", 10)]),
    ("rc_read_64", 10, 0, &[("RC_READ_REQ", 5), ("RC_READ_RESP_ONLY", 5)]),
    ("rc_send_4096", 25, 0, &[("RC_ACK", 5), ("RC_SEND_FIRST", 5), ("RC_SEND_LAST", 5), ("RC_SEND_MIDDLE", 10)]),
    ("rc_send_64", 10, 0, &[("RC_ACK", 5), ("RC_SEND_ONLY", 5)]),
    ("rc_send_ipv6ll", 25, 0, &[("RC_ACK", 5), ("RC_SEND_FIRST", 5), ("RC_SEND_LAST", 5), ("RC_SEND_MIDDLE", 10)]),
    ("rc_write_4096", 25, 0, &[("RC_ACK", 5), ("RC_WRITE_FIRST", 5), ("RC_WRITE_LAST", 5), ("RC_WRITE_MIDDLE", 10)]),
    ("rc_write_64", 10, 0, &[("RC_ACK", 5), ("RC_WRITE_ONLY", 5)]),
    ("uc_send_4096", 20, 0, &[("UC_SEND_FIRST", 5), ("UC_SEND_LAST", 5), ("UC_SEND_MIDDLE", 10)]),
    ("uc_write_4096", 20, 0, &[("UC_WRITE_FIRST", 5), ("UC_WRITE_LAST", 5), ("UC_WRITE_MIDDLE", 10)]),
    ("ud_send_64", 5, 0, &[("UD_SEND_ONLY", 5)]),
];

#[test]
fn every_capture_is_expected() {
    let expected: Vec<String> = EXPECTED.iter().map(|row| format!("{}.pcap", row.0)).collect();
    assert_eq!(names(), expected);
}

#[test]
fn counts_and_verdicts_are_as_expected() {
    for &(name, packets, bad, opcodes) in EXPECTED {
        let frames = frames(&format!("{name}.pcap"));
        let frames: Vec<_> = frames.iter().map(|f| parse(f)).collect();
        assert_eq!(frames.len(), packets, "{name}");
        assert_eq!(frames.iter().filter(|f| !f.icrc_verdict().is_ok()).count(), bad, "{name}");

        let mut by_opcode = BTreeMap::new();
        for frame in &frames {
            *by_opcode.entry(packet(frame).info().name).or_insert(0) += 1;
        }
        assert_eq!(by_opcode.into_iter().collect::<Vec<_>>(), opcodes, "{name}");
    }
}

#[test]
fn verdicts_agree_with_the_definition_of_the_icrc() {
    for_each_frame(|name, bytes, frame| {
        assert!(frame.lengths_agree(), "{name}");
        let by_definition = icrc_by_definition(&bytes[frame.link_header().len()..]);
        let received = packet(frame).icrc();
        let expected = if by_definition == received {
            IcrcVerdict::Ok
        } else {
            IcrcVerdict::Bad { computed: by_definition, received }
        };
        assert_eq!(frame.icrc_verdict(), expected, "{name}");
    });
}

#[test]
fn a_socket_computes_what_the_frame_says() {
    for_each_frame(|name, _, frame| {
        let packet = packet(frame).as_bytes();
        let covered = &packet[..packet.len() - 4];
        let by_socket = icrc_of(&frame.flow(), frame.ip_id().unwrap_or(0), covered);
        let by_frame = frame.icrc_of_headers().packet(covered).finish();
        assert_eq!(by_socket, by_frame, "{name}");
    });
}

#[test]
fn a_socket_finds_the_identification_it_was_not_shown() {
    for_each_frame(|name, _, frame| {
        let Some(id) = frame.ip_id() else { return };
        let packet = packet(frame);
        let bytes = packet.as_bytes();
        let computed = icrc_of(&frame.flow(), 0, &bytes[..bytes.len() - 4]);
        let solved = solve_ip_id(computed, packet.icrc(), 0, bytes.len());
        if frame.icrc_verdict().is_ok() {
            assert_eq!(solved, Some(id), "{name}");
        } else {
            // One of the probes is correct except for its identification, which is found.
            assert_ne!(solved, Some(id), "{name}");
        }
    });
}

#[test]
fn every_frame_is_written_again_byte_for_byte() {
    for_each_frame(|name, bytes, frame| {
        let repr = Frame::try_from(*frame).unwrap();
        let mut out = vec![0xa5; bytes.len()];
        assert_eq!(repr.emit(&mut out), Ok(bytes.len()), "{name}");
        assert_eq!(out, bytes, "{name}");
    });
}

fn for_each_frame(mut check: impl FnMut(&str, &[u8], &RoceFrame<'_>)) {
    for name in names() {
        for (at, bytes) in frames(&name).iter().enumerate() {
            check(&format!("{name} frame {at}"), bytes, &parse(bytes));
        }
    }
}

fn parse(bytes: &[u8]) -> RoceFrame<'_> {
    RoceFrame::parse(LinkType::Ethernet, bytes).unwrap()
}

fn packet<'a>(frame: &RoceFrame<'a>) -> PacketView<'a> {
    frame.packet().unwrap()
}
