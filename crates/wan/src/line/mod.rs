//! One direction of the link: stores packets, and decides when and as what they leave. No IO.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use bowline_link::{Arrival, Damage, Fate, Link, LinkConfig, LinkProfile, Time};

use crate::report::{Counters, Lateness};
use crate::ring::{MAX_READ, Ring};
use crate::superpacket::{Superpacket, is_ecn_capable, mark_congestion};
use crate::vnet::{VNET_BYTES, VnetHeader};

/// Segments of one superpacket that arrive within this time leave together, when the last is due.
const SPAN_NS: u64 = 100_000;
/// What a write costs the emulator, at most: a call, and a nanosecond for so many bytes. The rest
/// is protocol processing of the far end.
const CALL_NS: u64 = 5_000;
const BYTES_PER_NS: u64 = 4;
/// Packets held at most, whatever their size: small ones cost more than their bytes.
const MAX_RECORDS: usize = 1 << 21;
/// More than the emulator can carry; sizes the ring if there is no rate.
const UNLIMITED_BPS: u64 = 20_000_000_000;
/// Largest ring.
const MAX_BYTES: u64 = 1 << 30;

/// Which way a line goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From left to right.
    ToRight,
    /// From right to left.
    ToLeft,
}

/// One direction of an emulated link.
///
/// Read a packet into [`buffer`](Line::buffer) and call [`admit`](Line::admit); write what
/// [`release`](Line::release) returns, until it returns nothing; call again at
/// [`next_due`](Line::next_due). Time is monotonic.
pub struct Line {
    link: Link,
    ring: Ring,
    /// Offset of the last buffer handed out.
    buffer_at: usize,
    /// Packets with parts that have not left, and those that wait for older ones to be freed.
    records: VecDeque<Record>,
    /// Number of the first record.
    first_record: u64,
    /// In order of time, as on the link.
    pieces: VecDeque<Piece>,
    /// Pieces that are delayed so that others overtake them.
    overtaken: BinaryHeap<Reverse<Piece>>,
    /// The record of the last release, which may now be freed.
    leaving: Option<u64>,
    headers: Vec<u8>,
    /// When the last release was due, and until when the far end was busy with it.
    ideal: Time,
    far_end_free_at: Time,
    last_write_bytes: u64,
    /// The link's next configuration, and when it applies.
    step: Option<(Time, LinkConfig)>,
    /// Sum over segments of the queue length at their arrival.
    queue_sum: u128,
    counters: Counters,
    lateness: Lateness,
    read_lateness: Lateness,
}

/// A packet in the ring.
struct Record {
    start: usize,
    len: usize,
    packet: Superpacket,
    /// Pieces of it that have not left.
    pending: u32,
}

/// Segments of a packet that leave together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    due: Time,
    record: u64,
    first: usize,
    end: usize,
    is_marked: bool,
    corrupt_bit: Option<usize>,
}

impl Piece {
    fn segments(&self) -> Range<usize> {
        self.first..self.end
    }
}

/// Something to write to the device at the far end, in one call.
#[derive(Debug, PartialEq, Eq)]
pub struct Release<'a> {
    /// Headers, the device's first.
    pub headers: &'a [u8],
    /// What follows them.
    pub payload: &'a [u8],
}

impl Line {
    /// An idle line. The seed is the profile's; both directions of one link draw different losses.
    pub fn new(profile: &LinkProfile, direction: Direction) -> Line {
        let stream = match direction {
            Direction::ToRight => 0,
            Direction::ToLeft => 1,
        };
        Line {
            ring: Ring::new(ring_bytes(profile)),
            link: Link::from_profile(profile, stream),
            buffer_at: 0,
            records: VecDeque::new(),
            first_record: 0,
            pieces: VecDeque::new(),
            overtaken: BinaryHeap::new(),
            leaving: None,
            headers: Vec::with_capacity(VNET_BYTES + 128),
            ideal: Time::ZERO,
            far_end_free_at: Time::ZERO,
            last_write_bytes: 0,
            step: None,
            queue_sum: 0,
            counters: Counters::default(),
            lateness: Lateness::new(),
            read_lateness: Lateness::new(),
        }
    }

    /// Changes the link's rate, delay and queue at a time. Its loss stays the same.
    pub fn set_step(&mut self, at: Time, config: LinkConfig) {
        self.step = Some((at, config));
    }

    /// Where to read the next packet to; `None` if too much is held already.
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.records.len() >= MAX_RECORDS {
            return None;
        }
        let (start, space) = self.ring.space()?;
        self.buffer_at = start;
        Some(space)
    }

    /// Admits the packet of `len` bytes, the device's header included, that was read into the
    /// buffer at `now` and may have been waiting since `since`.
    pub fn admit(&mut self, since: Time, now: Time, len: usize) {
        // The packets before it would have delayed it anyway.
        self.read_lateness.log(now.nanos_since(since.max(self.link.free_at())), 1);
        let bytes = self.ring.slice(self.buffer_at, len.min(MAX_READ));
        let Some((vnet, packet)) = bytes.split_first_chunk::<VNET_BYTES>() else {
            self.counters.malformed += 1;
            return;
        };
        let is_ecn_capable = is_ecn_capable(packet);
        let Ok(packet) = Superpacket::parse(VnetHeader::parse(vnet), packet) else {
            self.counters.malformed += 1;
            return;
        };
        let record = self.first_record + self.records.len() as u64;
        let (pending, end) = self.draw_fates(now, record, &packet, is_ecn_capable);
        if pending > 0 {
            // What follows the last surviving segment takes no space.
            let len = VNET_BYTES + packet.payload(&(0..end)).end;
            self.ring.keep(self.buffer_at, len);
            self.records.push_back(Record { start: self.buffer_at, len, packet, pending });
        }
        self.counters.packets += 1;
    }

    /// Sends every segment over the link; returns the number of resulting pieces, and the end of
    /// the last.
    fn draw_fates(
        &mut self,
        now: Time,
        record: u64,
        packet: &Superpacket,
        is_ecn_capable: bool,
    ) -> (u32, usize) {
        if let Some((_, config)) = self.step.take_if(|(at, _)| *at <= now) {
            self.link.set_config(now, config);
        }
        let mut growing: Option<(Time, Piece)> = None;
        let (mut pending, mut end) = (0, 0);
        for index in 0..packet.segments() {
            let len = packet.segment_len(index);
            self.counters.segments += 1;
            self.counters.bytes += len as u64;
            self.queue_sum += u128::from(self.link.queued_bytes(now));
            let fate = self.link.admit(now, len, is_ecn_capable);
            if fate == Fate::QueueFull {
                self.counters.last_tail_drop_ms = Some(now.as_nanos() / 1_000_000);
            }
            let Fate::Arrives(Arrival { at, copy_at, damage, is_reordered, is_marked }) = fate
            else {
                continue;
            };
            end = index + 1;
            let corrupt_bit = damage.map(|d: Damage| d.bit(len));
            let piece = Piece { due: at, record, first: index, end, is_marked, corrupt_bit };
            if is_reordered || copy_at.is_some() || corrupt_bit.is_some() {
                pending += self.push_grown(&mut growing);
                if let Some(due) = copy_at {
                    self.push(Piece { due, ..piece.clone() }, true);
                    pending += 1;
                }
                self.push(piece, is_reordered);
                pending += 1;
                continue;
            }
            match &mut growing {
                Some((since, grown))
                    if grown.end == index
                        && grown.is_marked == is_marked
                        && at.nanos_since(*since) <= SPAN_NS =>
                {
                    grown.end = end;
                    grown.due = at;
                }
                _ => {
                    pending += self.push_grown(&mut growing);
                    growing = Some((at, piece));
                }
            }
        }
        pending += self.push_grown(&mut growing);
        (pending, end)
    }

    fn push_grown(&mut self, growing: &mut Option<(Time, Piece)>) -> u32 {
        let Some((_, piece)) = growing.take() else { return 0 };
        self.push(piece, false);
        1
    }

    fn push(&mut self, piece: Piece, is_overtaken: bool) {
        if is_overtaken {
            self.overtaken.push(Reverse(piece));
        } else {
            self.pieces.push_back(piece);
        }
    }

    /// When the next piece is due.
    pub fn next_due(&self) -> Option<Time> {
        let first = self.pieces.front().map(|p| p.due);
        let held_back = self.overtaken.peek().map(|Reverse(p)| p.due);
        match (first, held_back) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When to wake up for the next piece: up to `patience_ns` after it is due, if others are due
    /// by then.
    pub fn next_wake(&self, patience_ns: u64) -> Option<Time> {
        let due = self.next_due()?;
        let end = due.plus_nanos(patience_ns);
        let has_company = self.pieces.get(1).is_some_and(|second| second.due <= end);
        Some(if has_company { end } else { due })
    }

    /// The next piece that is due, to be written now; its lateness is logged.
    pub fn release(&mut self, now: Time) -> Option<Release<'_>> {
        self.free_left();
        let piece = self.pop_due(now)?;
        self.leaving = Some(piece.record);
        self.ideal = piece.due.max(self.far_end_free_at);
        self.lateness.log(now.nanos_since(self.ideal), piece.segments().len() as u64);
        self.counters.released += piece.segments().len() as u64;
        self.counters.writes += 1;
        let record = &self.records[(piece.record - self.first_record) as usize];
        let bytes = self.ring.slice(record.start, record.len);
        let segments = piece.segments();
        self.last_write_bytes = record.packet.payload(&segments).len() as u64;
        // Complete, as most are: the headers can stay.
        let is_whole = segments.len() == record.packet.segments();
        if is_whole && !piece.is_marked && piece.corrupt_bit.is_none() {
            let (headers, payload) = bytes.split_at(VNET_BYTES);
            return Some(Release { headers, payload });
        }
        let packet = &bytes[VNET_BYTES..];
        if let Some(bit) = piece.corrupt_bit {
            record.packet.sealed(packet, piece.first, &mut self.headers);
            if piece.is_marked {
                mark_congestion(&mut self.headers[VNET_BYTES..]);
            }
            if let Some(byte) = self.headers.get_mut(VNET_BYTES + bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            return Some(Release { headers: &self.headers, payload: &[] });
        }
        let payload = if piece.is_marked {
            record.packet.marked_headers(packet, &segments, &mut self.headers)
        } else {
            record.packet.headers(packet, &segments, &mut self.headers);
            record.packet.payload(&segments)
        };
        Some(Release { headers: &self.headers, payload: &packet[payload] })
    }

    fn pop_due(&mut self, now: Time) -> Option<Piece> {
        let is_overtaken_next = match (self.pieces.front(), self.overtaken.peek()) {
            (Some(first), Some(Reverse(held_back))) => held_back.due < first.due,
            (first, _) => first.is_none(),
        };
        if self.next_due()? > now {
            return None;
        }
        if is_overtaken_next {
            self.overtaken.pop().map(|Reverse(piece)| piece)
        } else {
            self.pieces.pop_front()
        }
    }

    /// Frees the record of the last release, and those that waited for it.
    fn free_left(&mut self) {
        let Some(number) = self.leaving.take() else { return };
        self.records[(number - self.first_record) as usize].pending -= 1;
        let mut freed = false;
        while self.records.front().is_some_and(|r| r.pending == 0) {
            self.records.pop_front();
            self.first_record += 1;
            freed = true;
        }
        if freed {
            self.ring.free_until(self.records.front().map(|r| r.start));
        }
    }

    /// Records how much CPU time it took to write the last release.
    ///
    /// Within that call the kernel also does the far end's share of TCP or UDP: it may process one
    /// acknowledgement for a millisecond and more, when a large window has many holes. Packets that
    /// become due meanwhile wait for the far end, as on any host, and not for the link.
    pub fn write_took(&mut self, cpu_ns: u64) {
        let own_ns = CALL_NS + self.last_write_bytes / BYTES_PER_NS;
        let far_end_ns = cpu_ns.saturating_sub(own_ns);
        if far_end_ns > 0 {
            self.far_end_free_at = self.ideal.plus_nanos(far_end_ns);
            self.counters.far_end_busy_ns += far_end_ns;
        }
    }

    /// Counts a packet that was dropped because [`buffer`](Line::buffer) had no space.
    pub fn count_overflow(&mut self) {
        self.counters.overflows += 1;
    }

    /// Counts a release that the device at the far end rejected.
    pub fn count_refused_write(&mut self) {
        self.counters.refused_writes += 1;
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let link = self.link.stats();
        Counters {
            lost: link.lost,
            tail_drops: link.queue_drops,
            duplicated: link.duplicated,
            reordered: link.reordered,
            corrupted: link.corrupted,
            marked: link.marked,
            peak_queue_bytes: link.queue_peak_bytes,
            mean_queue_bytes: (self.queue_sum / u128::from(self.counters.segments.max(1))) as u64,
            ..self.counters.clone()
        }
    }

    /// How late packets left so far.
    pub fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    /// How late packets were taken so far.
    pub fn read_lateness(&self) -> &Lateness {
        &self.read_lateness
    }
}

/// What a link holds when it and its queue are full, and some more: a packet that is partly lost
/// keeps all its space, and packets wait for those that were read before.
fn ring_bytes(profile: &LinkProfile) -> usize {
    let config = &profile.config;
    let rate = config.rate_bps.unwrap_or(UNLIMITED_BPS);
    let delay_ns = config.delay_ns.saturating_add(profile.faults.jitter_ns);
    let flying = delay_ns as f64 / 1e9 * rate as f64 / 8.0;
    // Without a rate nothing is queued, and a queue that takes minutes to drain is never full.
    let waiting = config.rate_bps.map_or(0, |rate| config.queue_bytes.min(rate / 8 * 60));
    let bytes = ((flying + waiting as f64) * 1.5) as u64 + (16 << 20);
    usize::try_from(bytes.min(MAX_BYTES)).unwrap_or(usize::MAX)
}
