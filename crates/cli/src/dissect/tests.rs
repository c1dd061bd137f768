use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_wire::{
    Bth, DatagramHeaders, ExtHeaders, FlowKey, IP_UDP_MAX_LEN, ImmDt, Opcode, Packet, Psn, Qpn,
    RepairHeader, Reth, XpEth, emit_ip_udp_headers,
};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::SectionHeaderBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use serde_json::Value;

use super::capture::Capture;

/// 21 packets, three of them with a wrong ICRC.
const SAMPLE: &str = "icrc_probe_matrix.pcap";

#[test]
fn counts_a_capture_of_a_real_peer() {
    let json = dissect(&sample_path());
    assert_eq!(json["totals"]["packets"], 21);
    assert_eq!(json["totals"]["icrc_ok"], 18);
    assert_eq!(json["totals"]["icrc_bad"], 3);
    assert_eq!(json["totals"]["by_opcode"]["RC_WRITE_ONLY"], 12);
    assert_eq!(json["totals"]["by_opcode"]["RC_ACK"], 9);
    assert_eq!(json["totals"]["other"], 0);
    assert_eq!(json["totals"]["malformed"], 0);
    let packets = json["packets"].as_array().unwrap();
    assert_eq!(packets.len(), 21);
    assert_eq!(packets[1]["time_s"], 0.000_823);
    assert_eq!(packets[2]["icrc"], "bad");
    assert_eq!(packets[0]["reth"]["va"], "0x7f36040a7c40");
    assert_eq!(packets[1]["aeth"]["meaning"], "ACK");
}

#[test]
fn every_pcap_dialect_reads_the_same() {
    let expected = dissect(&sample_path());
    for endianness in [Endianness::Big, Endianness::Little] {
        for ts_resolution in [TsResolution::MicroSecond, TsResolution::NanoSecond] {
            let header = PcapHeader { endianness, ts_resolution, ..header(DataLink::ETHERNET) };
            let file = Scratch::pcap(header, &sample());
            assert_same(&dissect(&file.0), &expected);
        }
    }
}

#[test]
fn pcapng_reads_the_same_at_any_resolution() {
    let expected = dissect(&sample_path());
    for endianness in [Endianness::Big, Endianness::Little] {
        for resolution in [None, Some(6), Some(9), Some(0x80 | 30)] {
            let file = Scratch::pcapng(endianness, resolution, &sample());
            assert_same(&dissect(&file.0), &expected);
        }
    }
}

#[test]
fn vlan_and_raw_ip_read_the_same() {
    let expected = dissect(&sample_path());
    let mut tagged = sample();
    tagged.iter_mut().for_each(|(_, frame)| drop(frame.splice(12..12, [0x81, 0, 0, 5])));
    let file = Scratch::pcap(header(DataLink::ETHERNET), &tagged);
    assert_same(&dissect(&file.0), &expected);

    let mut raw = sample();
    raw.iter_mut().for_each(|(_, frame)| drop(frame.drain(..14)));
    let file = Scratch::pcap(header(DataLink::RAW), &raw);
    assert_same(&dissect(&file.0), &expected);
}

#[test]
fn other_and_malformed_frames_are_counted_apart() {
    let mut frames = sample();
    frames[0].1[12] = 0x08; // ARP
    frames[0].1[13] = 0x06;
    frames[1].1[42] = 0x5c; // no opcode at all
    frames[2].1.truncate(14 + 20 + 8 + 15); // no room for an ICRC
    frames[3].1[43] |= 0x0f; // transport version 15
    let totals = dissect(&Scratch::pcap(header(DataLink::ETHERNET), &frames).0)["totals"].clone();
    assert_eq!(totals["packets"], 19);
    assert_eq!(totals["other"], 1);
    assert_eq!(totals["malformed"], 3);
    assert_eq!(totals["by_opcode"]["0x5c"], 1);
    let reasons = totals["malformed_reasons"].as_object().unwrap();
    assert!(reasons.contains_key("unknown opcode 0x5c"), "{reasons:?}");
    assert_eq!(reasons.len(), 3);
}

#[test]
fn a_short_snapshot_length_is_not_the_sender_s_fault() {
    let frames = sample();
    let file = Scratch::new();
    let mut writer =
        PcapWriter::with_header(File::create(&file.0).unwrap(), header(DataLink::ETHERNET))
            .unwrap();
    for (time, frame) in &frames {
        let packet = PcapPacket::new(*time, frame.len() as u32, &frame[..frame.len() - 4]);
        writer.write_packet(&packet).unwrap();
    }
    let json = dissect(&file.0);
    assert_eq!(json["totals"]["packets"], 21);
    assert_eq!(json["totals"]["icrc_unchecked"], 21);
    assert_eq!(json["totals"]["malformed"], 0);
    assert_eq!(json["packets"][0]["payload_len"], 8);
}

#[test]
fn a_capture_that_breaks_off_is_printed_and_reported() {
    let mut bytes = fs::read(sample_path()).unwrap();
    bytes.truncate(bytes.len() - 5);
    let file = Scratch::with(&bytes);
    let mut capture = Capture::open(&file.0).unwrap();
    let mut out = Vec::new();
    super::write_json(&mut capture, "x", &mut out).unwrap();
    let json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["totals"]["packets"], 20);
    let error = capture.into_error().unwrap().to_string();
    assert!(error.contains("after 20 whole ones"), "{error}");
}

#[test]
fn errors_say_what_to_do() {
    let error = |path: &Path| Capture::open(path).err().unwrap().to_string();
    let missing = error(Path::new("/nonexistent.pcap"));
    assert!(missing.contains("give the path of a pcap"), "{missing}");
    for bytes in [&b""[..], b"ab", b"This is not a capture, it is a sentence."] {
        let not_a_capture = error(&Scratch::with(bytes).0);
        assert!(not_a_capture.contains("record one with: tcpdump"), "{not_a_capture}");
    }
    let compressed = error(&Scratch::with(&[0x1f, 0x8b, 8, 0, 0]).0);
    assert!(compressed.contains("gunzip"), "{compressed}");
    let wifi = error(&Scratch::pcap(header(DataLink::IEEE802_11), &[]).0);
    assert!(wifi.contains("link type 105"), "{wifi}");
    assert!(error(Path::new("/")).contains("cannot read /"));
}

#[test]
fn text_has_a_line_a_packet_and_the_totals() {
    let mut capture = Capture::open(&sample_path()).unwrap();
    let mut out = Vec::new();
    super::write_text(&mut capture, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(" > ")).count(), 21);
    assert_eq!(text.lines().filter(|line| line.ends_with("icrc=BAD")).count(), 3);
    assert!(text.contains("21 packets: ICRC ok 18, BAD 3"));
}

/// A capture with one packet.
fn capture_one(bth: Bth, ext: ExtHeaders, payload: &[u8]) -> Scratch {
    let packet = Packet { bth, ext, payload, pad_bytes: [0; 3], icrc: 0 };
    let mut bytes = vec![0; packet.wire_len().unwrap()];
    packet.emit(&mut bytes).unwrap();
    let flow = FlowKey {
        src: "10.0.0.1".parse().unwrap(),
        dst: "10.0.0.2".parse().unwrap(),
        src_port: 4791,
        dst_port: 4791,
    };
    let headers = DatagramHeaders { flow, tos: 0, ttl: 64, ip_id: 0 };
    let mut out = [0; IP_UDP_MAX_LEN];
    let frame = [emit_ip_udp_headers(&headers, &bytes, &mut out).unwrap(), &bytes].concat();
    Scratch::pcap(header(DataLink::RAW), &[(Duration::ZERO, frame)])
}

#[test]
fn repairs_say_what_they_repair() {
    let repair = RepairHeader {
        has_last: true,
        r: 8,
        c: 2,
        isn: 1,
        base: Psn::new(0xabcdef),
        count: 5,
        last_len: 3616,
        ..RepairHeader::default()
    };
    let mut payload = [0; RepairHeader::LEN];
    repair.emit(&mut payload);
    let bth = Bth::new(Opcode::RC_REPAIR, Qpn::new(0x11), Psn::new(2));
    let json = dissect(&capture_one(bth, ExtHeaders::default(), &payload).0);
    let fec = &json["packets"][0]["fec"];
    assert_eq!(fec["type"], "repair");
    assert_eq!(fec["base_psn"], 0xab_cdef);
    assert_eq!((fec["isn"].as_u64(), fec["count"].as_u64()), (Some(1), Some(5)));
    assert_eq!((fec["has_first"].as_bool(), fec["has_last"].as_bool()), (Some(false), Some(true)));
    // Bytes that are invalid in every version.
    let json = dissect(&capture_one(bth, ExtHeaders::default(), &[0xff; 20]).0);
    assert!(json["packets"][0].get("fec").is_none());
}

#[test]
fn xp_packets_say_where_they_belong() {
    let ext = ExtHeaders {
        xpeth: Some(XpEth {
            wqe_seq: 0xffff_fffe,
            recv_seq: 7,
            len: 10_000,
            stride_log2: 2,
            token: Psn::new(0xabcdef),
        }),
        reth: Some(Reth { va: 0x1000, rkey: 0x55, len: 10_000 }),
        imm: Some(ImmDt(9)),
        ..ExtHeaders::default()
    };
    let bth = Bth::new(Opcode::XP_WRITE_LAST_IMM, Qpn::new(0x11), Psn::new(2));
    let file = capture_one(bth, ext, &[5; 1808]);
    let json = dissect(&file.0);
    let packet = &json["packets"][0];
    assert_eq!(packet["service"], "XP");
    assert_eq!(packet["opcode"], "XP_WRITE_LAST_IMM");
    assert_eq!(packet["psn"], 2);
    assert_eq!(packet["xpeth"]["wqe_seq"], 0xffff_fffe_u32);
    assert_eq!(packet["xpeth"]["token"], 0xabcdef);
    assert_eq!(packet["reth"]["va"], "0x1000");
    assert_eq!(packet["imm"], 9);
    assert_eq!(packet["payload_len"], 1808);
    let mut text = Vec::new();
    super::write_text(&mut Capture::open(&file.0).unwrap(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let expected = "seq=0xfffffffe recv=0x7 message=10000 token=0xabcdef stride=4";
    assert!(text.contains(expected), "{text}");
}

fn sample_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures").join(SAMPLE)
}

type TimedFrame = (Duration, Vec<u8>);

fn sample() -> Vec<TimedFrame> {
    let mut reader = PcapReader::new(File::open(sample_path()).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        frames.push((packet.timestamp, packet.data.into_owned()));
    }
    frames
}

fn dissect(path: &Path) -> Value {
    let mut capture = Capture::open(path).unwrap();
    let mut out = Vec::new();
    super::write_json(&mut capture, "x", &mut out).unwrap();
    assert!(capture.into_error().is_none());
    serde_json::from_slice(&out).unwrap()
}

/// Compares values. Times may differ by the rounding of a binary clock.
fn assert_same(left: &Value, right: &Value) {
    assert_eq!(left["totals"], right["totals"]);
    let packets = |json: &Value| json["packets"].as_array().unwrap().clone();
    for (mut left, mut right) in packets(left).into_iter().zip(packets(right)) {
        let time = |json: &mut Value| json["time_s"].take().as_f64().unwrap();
        let (left_s, right_s) = (time(&mut left), time(&mut right));
        assert!((left_s - right_s).abs() < 5e-9, "{left_s} {right_s}");
        assert_eq!(left, right);
    }
}

fn header(datalink: DataLink) -> PcapHeader {
    PcapHeader { datalink, ..PcapHeader::default() }
}

/// A separate file for each test. It is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bowline-dissect-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn with(bytes: &[u8]) -> Self {
        let file = Self::new();
        fs::write(&file.0, bytes).unwrap();
        file
    }

    fn pcap(header: PcapHeader, frames: &[TimedFrame]) -> Self {
        let file = Self::new();
        let mut writer = PcapWriter::with_header(File::create(&file.0).unwrap(), header).unwrap();
        for (time, frame) in frames {
            writer.write_packet(&PcapPacket::new(*time, frame.len() as u32, frame)).unwrap();
        }
        file
    }

    fn pcapng(endianness: Endianness, resolution: Option<u8>, frames: &[TimedFrame]) -> Self {
        let file = Self::new();
        let section = SectionHeaderBlock { endianness, ..SectionHeaderBlock::default() };
        let out = File::create(&file.0).unwrap();
        let mut writer = PcapNgWriter::with_section_header(out, section).unwrap();
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options.extend(resolution.map(InterfaceDescriptionOption::IfTsResol));
        writer.write_block(&interface.into_block()).unwrap();
        for (time, frame) in frames {
            let packet = EnhancedPacketBlock {
                interface_id: 0,
                // The writer stores nanoseconds as ticks, whatever the interface says.
                timestamp: Duration::from_nanos(ticks(*time, resolution.unwrap_or(6))),
                original_len: frame.len() as u32,
                data: frame.into(),
                options: vec![],
            };
            writer.write_block(&packet.into_block()).unwrap();
        }
        file
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn ticks(time: Duration, resolution: u8) -> u64 {
    let per_sec = match resolution {
        6 => 1_000_000,
        9 => 1_000_000_000,
        _ => 1 << (resolution & 0x7f),
    };
    (time.as_nanos() * per_sec / 1_000_000_000) as u64
}
