//! The ring returns what was written, and rejects what cannot be right.

use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;

use super::ring::{Piece, RECORD_HEADER, Record, RingReader, RingWriter};

const CAPACITY: usize = 64 << 10;

fn pair() -> (RingWriter, RingReader) {
    let writer = RingWriter::create(CAPACITY).unwrap();
    let reader = RingReader::open(writer.file().try_clone_to_owned().unwrap(), CAPACITY).unwrap();
    (writer, reader)
}

fn record(bytes: usize, segment_len: usize) -> Record {
    Record {
        bytes: bytes as u32,
        segment_len: segment_len as u32,
        tos: 2,
        summed: bytes.is_multiple_of(2),
    }
}

/// Reads a whole burst, about `most` bytes at a time.
fn take(reader: &mut RingReader, most: usize) -> Option<(Record, Vec<u8>)> {
    let (mut all, mut out) = (Vec::new(), Vec::new());
    loop {
        let Piece { record, first } = reader.read(most, &mut out).unwrap()?;
        assert_eq!(first * record.segment_len as usize, all.len());
        all.extend_from_slice(&out);
        if all.len() == record.bytes as usize {
            return Some((record, all));
        }
        assert!(out.len().is_multiple_of(record.segment_len as usize), "packets are whole");
    }
}

proptest! {
    #[test]
    fn bursts_come_out_as_they_went_in(
        bursts in prop::collection::vec((1usize..20_000, 1usize..5000, any::<u8>()), 1..40),
        most in 1usize..40_000,
        lag in 0usize..4,
    ) {
        let (mut writer, mut reader) = pair();
        let mut waiting = std::collections::VecDeque::new();
        for (len, segment_len, fill) in bursts {
            let record = record(len, segment_len.min(len));
            let bytes: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
            while !writer.write(&record, &bytes).unwrap() {
                // Anything that fits an empty ring is eventually written.
                prop_assert_eq!(take(&mut reader, most), waiting.pop_front());
            }
            waiting.push_back((record, bytes));
            while waiting.len() > lag {
                prop_assert_eq!(take(&mut reader, most), waiting.pop_front());
            }
        }
        while let Some(burst) = waiting.pop_front() {
            prop_assert_eq!(take(&mut reader, most), Some(burst));
        }
        prop_assert!(reader.is_empty());
        prop_assert_eq!(take(&mut reader, most), None);
    }
}

#[test]
fn a_full_ring_takes_no_more_until_it_is_read() {
    let (mut writer, mut reader) = pair();
    let bytes = vec![1; CAPACITY / 2 - RECORD_HEADER];
    let burst = record(bytes.len(), 4096);
    assert!(writer.write(&burst, &bytes).unwrap());
    assert!(writer.write(&burst, &bytes).unwrap(), "two halves fill it");
    assert!(!writer.write(&record(1, 1), &[7]).unwrap());
    assert_eq!(take(&mut reader, CAPACITY), Some((burst, bytes)));
    assert!(writer.write(&record(1, 1), &[7]).unwrap());
}

#[test]
fn a_reader_that_claims_what_was_not_written_is_found_out() {
    for lie in [1_u64, 17, CAPACITY as u64 * 2, u64::MAX] {
        let (mut writer, reader) = pair();
        let bytes = vec![1; CAPACITY / 2];
        reader.scribble(128, &lie.to_le_bytes());
        let burst = record(bytes.len(), 4096);
        // The reader's position is read only when space is needed.
        let outcome = (0..3).map(|_| writer.write(&burst, &bytes)).find(Result::is_err);
        let wrote = CAPACITY / 2 + RECORD_HEADER;
        assert_eq!(outcome.is_some(), lie > wrote as u64, "{lie}");
    }
}

#[test]
fn positions_move_forward_only() {
    let (mut writer, mut reader) = pair();
    let mut out = Vec::new();
    assert!(writer.write(&record(64, 64), &[3; 64]).unwrap());
    assert!(reader.read(64, &mut out).unwrap().is_some());
    reader.scribble(0, &8_u64.to_le_bytes());
    assert!(reader.read(64, &mut out).is_err(), "the writer has gone back");
}

#[test]
fn a_sleeper_is_woken_once() {
    let (mut writer, mut reader) = pair();
    assert!(writer.write(&record(4, 4), &[0; 4]).unwrap());
    assert!(!writer.rings(), "nobody sleeps");
    assert!(take(&mut reader, 64).is_some());
    reader.lie_down();
    assert!(reader.is_empty());
    assert!(writer.write(&record(4, 4), &[0; 4]).unwrap());
    assert!(writer.rings());
    assert!(!writer.rings());
    reader.lie_down();
    assert!(!reader.is_empty(), "it must not sleep now");
    reader.get_up();
    assert!(!writer.rings());
}

fn refuses(file: OwnedFd, capacity: usize) -> bool {
    RingReader::open(file, capacity).is_err()
}

#[test]
fn only_sealed_memory_of_the_right_length_is_mapped() {
    let (writer, _reader) = pair();
    let own = || writer.file().try_clone_to_owned().unwrap();
    assert!(!refuses(own(), CAPACITY));
    assert!(refuses(own(), CAPACITY * 2), "it is shorter");
    assert!(refuses(own(), CAPACITY / 2), "it is longer, or too small for a ring");
    assert!(refuses(own(), CAPACITY - 1), "no capacity");
    let path = std::env::temp_dir().join(format!("bowline-ring-{}", std::process::id()));
    let plain = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    plain.set_len(4096 + CAPACITY as u64).unwrap();
    let plain = plain.as_fd().try_clone_to_owned().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(refuses(plain, CAPACITY), "a file can be cut while it is mapped");
    let (pipe, _other) = std::io::pipe().unwrap();
    assert!(refuses(pipe.into(), CAPACITY));
}
