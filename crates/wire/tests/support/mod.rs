//! Shared by the tests: the captures, and a checksum that is independent of the crate's.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::File;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;

/// Frames of one capture under `tests/captures`.
pub(crate) fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

/// Names of all captures.
pub(crate) fn names() -> Vec<String> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pcap"))
        .collect();
    names.sort();
    names
}

/// CRC-32 as in the standard: bit by bit, without a table.
pub(crate) fn crc32_bitwise(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let mut reg = !0u32;
    for byte in bytes {
        reg ^= u32::from(byte);
        for _ in 0..8 {
            reg = if reg & 1 == 1 { (reg >> 1) ^ 0xedb8_8320 } else { reg >> 1 };
        }
    }
    !reg
}

/// The ICRC of an IP datagram (from the IP header to the trailer) straight from its definition.
pub(crate) fn icrc_by_definition(datagram: &[u8]) -> u32 {
    let mut covered = datagram[..datagram.len() - 4].to_vec();
    let udp = if covered[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            covered[at] = 0xff;
        }
        usize::from(covered[0] & 0xf) * 4
    } else {
        covered[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            covered[at] = 0xff;
        }
        40
    };
    for at in [udp + 6, udp + 7, udp + 8 + 4] {
        covered[at] = 0xff;
    }
    crc32_bitwise([0xff; 8].into_iter().chain(covered))
}
