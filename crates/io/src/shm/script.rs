//! A hostile writer, driven by bytes: for fuzzers and property tests of the reader.

use super::ring::{Breach, RingReader, RingWriter};

const CAPACITY: usize = 64 << 10;
/// Most bytes that a reader takes at a time in these scripts.
const MOST: usize = 16 << 10;
/// Longest segment, whatever a record says.
const MAX_PIECE: usize = 1 << 16;

/// Plays `input` as a writer that may write anything anywhere in the ring at any time, and reads
/// meanwhile. Each step is an operation, an offset and a value.
///
/// # Panics
/// If the reader returns more than it may, or continues after it has detected a violation.
pub fn play_hostile_ring(input: &[u8]) {
    let writer = RingWriter::create(CAPACITY).expect("memory for a ring");
    let file = writer.file().try_clone_to_owned().expect("a descriptor");
    let mut reader = RingReader::open(file, CAPACITY).expect("the ring is as it should be");
    let mut out = Vec::new();
    for step in input.as_chunks::<8>().0 {
        let [op, a, b, value @ ..] = *step;
        let at = usize::from(u16::from_le_bytes([a, b]));
        match op % 4 {
            // The shared words: any position that the writer may claim.
            0 => reader.scribble(at % 64 * 8, &sparse(value)),
            1 => reader.scribble(at % 64 * 8, &sparse([value[0], value[1], 0, 0, 0])),
            // The records and what is in them.
            2 => reader.scribble(4096 + at % (CAPACITY - 8), &sparse(value)),
            _ => reader.scribble(4096 + at / 16 * 16 % CAPACITY, &header(value)),
        }
        for _ in 0..4 {
            match reader.read(MOST, &mut out) {
                Ok(Some(piece)) => {
                    assert!(!out.is_empty() && out.len() <= MAX_PIECE, "{} bytes", out.len());
                    assert!(piece.record.segment_len as usize <= MAX_PIECE);
                    assert!(piece.first * piece.record.segment_len as usize <= CAPACITY);
                }
                Ok(None) => break,
                Err(Breach(_)) => {
                    reader.abandon();
                    assert!(reader.is_empty());
                    return;
                }
            }
        }
    }
}

/// Eight bytes that are often small numbers.
fn sparse(value: [u8; 5]) -> [u8; 8] {
    let [low, high, shift, ..] = value;
    (u64::from(u16::from_le_bytes([low, high])) << (shift % 64)).to_le_bytes()
}

/// A valid record header, except perhaps for its lengths.
fn header(value: [u8; 5]) -> [u8; 16] {
    let [b0, b1, s0, s1, flags] = value;
    [b0, b1, flags >> 6, 0, s0, s1, 0, 0, 0xe1, 0xb0, 0, flags & 1, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_reader_survives_whatever_is_written_to_its_ring(
            input in prop::collection::vec(any::<u8>(), 0..1024)
        ) {
            play_hostile_ring(&input);
        }
    }

    /// Two records are read; a shared word is never trusted twice.
    #[test]
    fn a_script_can_say_something_true() {
        let mut input = vec![3, 0, 0, 64, 0, 64, 0, 1];
        input.extend([3, 80, 0, 32, 0, 16, 0, 0]);
        input.extend([1, 0, 0, 128, 0, 0, 0, 0]);
        play_hostile_ring(&input);
    }
}
