//! A ring of bursts in memory shared by two processes: one writes, the other reads.
//!
//! Both positions count bytes from the start and never wrap in practice. Each end keeps its own
//! position privately, publishes it, and checks the other's each time: that may only move forward,
//! and never so far that the ring would hold more than its capacity. A record is read once: header
//! and packets are copied before they are examined. So an end that breaks the rules can garble its
//! own packets, and nothing else.
//!
//! Records start at multiples of their header's length, so that a header never wraps around the end
//! of the ring.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::bell::Bell;
use crate::sys::SharedArea;

/// Offsets of the shared words: each in its own cache lines, since the two ends write them
/// concurrently.
const TAIL_AT: usize = 0;
const HEAD_AT: usize = 128;
const ASLEEP_AT: usize = 256;
const DATA_AT: usize = 4096;
/// Bytes of a record before its packets.
pub(super) const RECORD_HEADER: usize = 16;
const MAGIC: u16 = 0xb0e1;

/// Limits of a ring's capacity.
const MIN_CAPACITY: usize = 64 << 10;
const MAX_CAPACITY: usize = 64 << 20;
/// No packet is longer: bounds what a reader copies at a time.
const MAX_SEGMENT: u32 = 1 << 16;

/// Whether this is a valid capacity: a power of two, within limits.
pub(super) fn is_capacity(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_CAPACITY as u64..=MAX_CAPACITY as u64).contains(&bytes)
}

/// A burst without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Length of all packets together.
    pub(super) bytes: u32,
    /// Length of each packet but the last, which may be shorter.
    pub(super) segment_len: u32,
    /// TOS or traffic class.
    pub(super) tos: u8,
    /// The packets have ICRCs.
    pub(super) summed: bool,
}

impl Record {
    /// Bytes that it occupies in the ring.
    fn room(&self) -> u64 {
        RECORD_HEADER as u64 + u64::from(self.bytes).next_multiple_of(RECORD_HEADER as u64)
    }

    fn emit(&self) -> [u8; RECORD_HEADER] {
        let mut out = [0; RECORD_HEADER];
        out[..4].copy_from_slice(&self.bytes.to_le_bytes());
        out[4..8].copy_from_slice(&self.segment_len.to_le_bytes());
        out[8..10].copy_from_slice(&MAGIC.to_le_bytes());
        out[10] = self.tos;
        out[11] = self.summed.into();
        out
    }

    /// A record, if its fields are consistent.
    fn parse(from: [u8; RECORD_HEADER]) -> Option<Record> {
        let [b0, b1, b2, b3, s0, s1, s2, s3, m0, m1, tos, summed, rest @ ..] = from;
        let bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        let segment_len = u32::from_le_bytes([s0, s1, s2, s3]);
        let right = u16::from_le_bytes([m0, m1]) == MAGIC
            && rest == [0; 4]
            && summed <= 1
            && (1..=bytes.min(MAX_SEGMENT)).contains(&segment_len);
        right.then_some(Record { bytes, segment_len, tos, summed: summed == 1 })
    }
}

/// The other end has violated the protocol. The ring is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Breach(pub(super) &'static str);

/// Common to both ends.
struct Ring {
    area: SharedArea,
    capacity: usize,
}

impl Ring {
    #[inline]
    fn bell(&self) -> Bell<'_> {
        Bell { tail: self.area.word(TAIL_AT), asleep: self.area.word(ASLEEP_AT) }
    }

    /// The bytes at a position, as two pieces, split where the ring wraps.
    #[inline]
    fn pieces(&self, at: u64, len: usize) -> [(usize, usize); 2] {
        let start = (at & (self.capacity as u64 - 1)) as usize;
        let first = len.min(self.capacity - start);
        [(DATA_AT + start, first), (DATA_AT, len - first)]
    }
}

/// The writing end.
pub(super) struct RingWriter {
    ring: Ring,
    tail: u64,
    /// The reader's position when last read.
    head: u64,
}

impl RingWriter {
    /// Creates a ring.
    pub(super) fn create(capacity: usize) -> io::Result<RingWriter> {
        assert!(is_capacity(capacity as u64), "a ring of {capacity} bytes");
        let area = SharedArea::create(DATA_AT + capacity)?;
        Ok(RingWriter { ring: Ring { area, capacity }, tail: 0, head: 0 })
    }

    /// The file to pass to the reader.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.ring.area.file()
    }

    /// The file has been passed.
    pub(super) fn close_file(&mut self) {
        self.ring.area.close_file();
    }

    /// The reader's position, as last read.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Writes a burst and publishes it; returns `false` if it does not fit now.
    #[inline]
    pub(super) fn write(&mut self, record: &Record, bytes: &[u8]) -> Result<bool, Breach> {
        let room = record.room();
        if !self.has_room(room) {
            self.ask_reader()?;
            if !self.has_room(room) {
                return Ok(false);
            }
        }
        let [(at, _), _] = self.ring.pieces(self.tail, RECORD_HEADER);
        self.ring.area.write(at, &record.emit());
        let [(at, first), (again, _)] =
            self.ring.pieces(self.tail + RECORD_HEADER as u64, bytes.len());
        let (first, second) = bytes.split_at(first);
        self.ring.area.write(at, first);
        if !second.is_empty() {
            self.ring.area.write(again, second);
        }
        self.tail += room;
        self.ring.bell().publish(self.tail);
        Ok(true)
    }

    #[inline]
    fn has_room(&self, bytes: u64) -> bool {
        self.tail - self.head + bytes <= self.ring.capacity as u64
    }

    fn ask_reader(&mut self) -> Result<(), Breach> {
        // Acquire: the reader has finished copying what is about to be overwritten.
        let head = self.ring.area.word(HEAD_AT).load(Ordering::Acquire);
        if !(self.head..=self.tail).contains(&head) {
            return Err(Breach("the reader claims to have read what was not written"));
        }
        self.head = head;
        Ok(())
    }

    /// Whether the reader has to be woken for what was written.
    #[inline]
    pub(super) fn rings(&self) -> bool {
        self.ring.bell().rings()
    }
}

/// Some packets of one burst, as many as were read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) record: Record,
    /// Number of packets of the burst before these.
    pub(super) first: usize,
}

/// The reading end.
pub(super) struct RingReader {
    ring: Ring,
    /// Start of the current record, or of the next.
    head: u64,
    /// The writer's position when last read.
    tail: u64,
    /// The current record, and how many of its bytes have been read.
    current: Option<(Record, usize)>,
    abandoned: bool,
}

impl RingReader {
    /// A ring that another process has created.
    pub(super) fn open(file: OwnedFd, capacity: usize) -> io::Result<RingReader> {
        if !is_capacity(capacity as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut area = SharedArea::open(file, DATA_AT + capacity)?;
        area.close_file();
        let ring = Ring { area, capacity };
        Ok(RingReader { ring, head: 0, tail: 0, current: None, abandoned: false })
    }

    /// Whether there is nothing to read.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.abandoned || (self.current.is_none() && self.ring.bell().published() == self.head)
    }

    /// Reads whole packets of the next burst, about `most` bytes and at least one packet, into
    /// `out`.
    #[inline]
    pub(super) fn read(&mut self, most: usize, out: &mut Vec<u8>) -> Result<Option<Piece>, Breach> {
        let (record, taken) = match self.current {
            Some(current) => current,
            None => match self.next_record()? {
                Some(record) => (record, 0),
                None => return Ok(None),
            },
        };
        let segment = record.segment_len as usize;
        let left = record.bytes as usize - taken;
        let len = (most / segment).max(1).saturating_mul(segment).min(left);
        out.clear();
        for (at, len) in self.ring.pieces(self.head + (RECORD_HEADER + taken) as u64, len) {
            self.ring.area.append_to(at, len, out);
        }
        if len == left {
            self.current = None;
            self.head += record.room();
            // Release: everything in the freed space has been copied.
            self.ring.area.word(HEAD_AT).store(self.head, Ordering::Release);
        } else {
            self.current = Some((record, taken + len));
        }
        Ok(Some(Piece { record, first: taken / segment }))
    }

    /// The header of the next record, checked.
    #[inline]
    fn next_record(&mut self) -> Result<Option<Record>, Breach> {
        if self.tail == self.head {
            let tail = self.ring.bell().published();
            if tail == self.head {
                return Ok(None);
            }
            if tail < self.head || tail - self.head > self.ring.capacity as u64 {
                return Err(Breach("the writer claims to have written more than fits"));
            }
            self.tail = tail;
        }
        let within = self.tail - self.head;
        let [(at, _), _] = self.ring.pieces(self.head, RECORD_HEADER);
        match Record::parse(self.ring.area.read(at)) {
            Some(record) if record.room() <= within => Ok(Some(record)),
            _ => Err(Breach("what is in the ring is no record")),
        }
    }

    /// Stops reading: the ring counts as empty from now on.
    pub(super) fn abandon(&mut self) {
        self.abandoned = true;
        self.current = None;
    }

    /// The reader is about to sleep; see [`Bell::lie_down`].
    pub(super) fn lie_down(&self) {
        self.ring.bell().lie_down();
    }

    /// The reader does not sleep.
    pub(super) fn get_up(&self) {
        self.ring.bell().get_up();
    }

    /// Writes anywhere in the ring, as a hostile writer may.
    pub(super) fn scribble(&self, at: usize, bytes: &[u8]) {
        self.ring.area.write(at, bytes);
    }
}
