//! The receive back end: tracks which packets of each message have landed, coalesced into chunks.
//!
//! It sees every packet, wherever packets are handled, in one lane or in several at once, and takes
//! no lock: a packet sets its bit, and the one that sets a chunk's last bit sets the chunk's.
//! Readers that load a chunk's bit with acquire ordering see all its bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bowline_nic::Landing;

use crate::imm::ImmLayout;

/// Generation of a closed slot, in which nothing may land.
const CLOSED: u32 = u32::MAX;

/// Receive messages by ID, with their bitmaps.
#[derive(Debug)]
pub struct RecvTable {
    layout: ImmLayout,
    /// A chunk has two to this power packets.
    chunk_shift: u32,
    slots: Box<[Slot]>,
    /// Whether several lanes may land packets at the same time.
    shared: bool,
    /// Slots in which a chunk, or the user's immediate, was completed since the last call.
    dirty: Box<[AtomicU64]>,
}

/// One message. Aligned so that lanes working on different messages do not share cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    /// The generation whose packets belong here.
    generation: AtomicU32,
    /// Packets of the message.
    packets: AtomicU32,
    packet_bits: Bits,
    /// Empty where a chunk is one packet: then the packets' bits are the chunks'.
    chunk_bits: Bits,
    /// Full words of `packet_bits`, by chunk, where a chunk spans more than one.
    full_words: Box<[AtomicU32]>,
    /// The user's immediate, and above it the set of fragments seen.
    user: AtomicU64,
}

/// Bits in whole cache lines: lanes that set bits of different stripes of 512 share none.
#[derive(Debug)]
struct Bits(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; 8]);

impl Bits {
    fn new(bits: u32) -> Bits {
        Bits((0..bits.div_ceil(512)).map(|_| Line::default()).collect())
    }

    #[inline]
    fn word(&self, index: u32) -> &AtomicU64 {
        &self.0[(index / 8) as usize].0[(index % 8) as usize]
    }
}

/// The effect of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// It was missing, and its chunk is still incomplete.
    Packet,
    /// It completed its chunk.
    Chunk,
    /// It had landed before.
    Duplicate,
    /// It only carried a fragment of the user's immediate.
    Fragment,
    /// It belongs to a message that has been completed.
    Late,
}

impl RecvTable {
    /// A table for messages of at most `max_packets`, in chunks of `1 << chunk_shift` packets.
    pub fn new(layout: ImmLayout, max_packets: u32, chunk_shift: u32) -> RecvTable {
        let chunks = max_packets.div_ceil(1 << chunk_shift);
        let wide_chunks = if chunk_shift > 6 { chunks } else { 0 };
        let slot = || Slot {
            generation: AtomicU32::new(CLOSED),
            packets: AtomicU32::new(0),
            packet_bits: Bits::new(max_packets),
            chunk_bits: Bits::new(if chunk_shift == 0 { 0 } else { chunks }),
            full_words: (0..wide_chunks).map(|_| AtomicU32::new(0)).collect(),
            user: AtomicU64::new(0),
        };
        RecvTable {
            layout,
            chunk_shift,
            slots: (0..layout.ids()).map(|_| slot()).collect(),
            shared: true,
            dirty: zeroes(layout.ids().div_ceil(64) as usize),
        }
    }

    /// For one lane: all calls except reads are made under one lock. An atomic update would wait
    /// until the packet's payload, which has just been written, has reached the cache.
    pub fn for_one_lane(self) -> RecvTable {
        RecvTable { shared: false, ..self }
    }

    /// Sets bits of a word, and returns its previous value.
    #[inline]
    fn set(&self, word: &AtomicU64, bits: u64) -> u64 {
        if self.shared {
            // Acquire, so that completing a chunk also publishes the bytes that other lanes landed.
            return word.fetch_or(bits, Ordering::AcqRel);
        }
        let before = word.load(Ordering::Relaxed);
        word.store(before | bits, Ordering::Release);
        before
    }

    /// Opens slot `id` for a message of `packets`. No packet may be landing in the slot meanwhile:
    /// it was closed, and every lane has answered a call since.
    ///
    /// # Panics
    /// If there is no such slot, or the message is longer than the table allows.
    pub fn open(&self, id: u32, generation: u32, packets: u32) {
        let slot = &self.slots[id as usize];
        let words = packets.div_ceil(64);
        assert!(words as usize <= slot.packet_bits.0.len() * 8, "{packets} packets do not fit");
        for word in 0..words {
            slot.packet_bits.word(word).store(0, Ordering::Relaxed);
        }
        // Bits of the last word beyond the message count as set.
        if !packets.is_multiple_of(64) {
            let beyond = u64::MAX << (packets % 64);
            slot.packet_bits.word(words - 1).store(beyond, Ordering::Relaxed);
        }
        for word in slot.chunk_bits.0.iter().flat_map(|line| &line.0) {
            word.store(0, Ordering::Relaxed);
        }
        for count in &slot.full_words {
            count.store(0, Ordering::Relaxed);
        }
        let chunks = packets.div_ceil(1 << self.chunk_shift);
        if self.chunk_shift > 6 && chunks > 0 {
            // And so do the last chunk's words beyond it.
            let absent = (chunks << (self.chunk_shift - 6)) - words;
            slot.full_words[chunks as usize - 1].store(absent, Ordering::Relaxed);
        }
        slot.user.store(0, Ordering::Relaxed);
        slot.packets.store(packets, Ordering::Relaxed);
        slot.generation.store(generation, Ordering::Release);
    }

    /// Closes a slot: nothing lands in it any more.
    pub fn close(&self, id: u32) {
        self.slots[id as usize].generation.store(CLOSED, Ordering::Release);
    }

    /// A packet has arrived through a QP of `generation`.
    #[inline]
    pub fn land(&self, generation: u32, imm: u32) -> Landed {
        let (id, packet, fragment) = self.layout.split(imm);
        let slot = &self.slots[id as usize];
        if slot.generation.load(Ordering::Acquire) != generation {
            return Landed::Late;
        }
        if self.layout.fragments() > 0 {
            self.note_fragment(id, slot, packet, fragment);
        }
        if packet >= slot.packets.load(Ordering::Relaxed) {
            return Landed::Fragment;
        }
        let bit = 1 << (packet % 64);
        let before = self.set(slot.packet_bits.word(packet / 64), bit);
        if before & bit != 0 {
            return Landed::Duplicate;
        }
        if !self.completes(slot, packet, before | bit) {
            return Landed::Packet;
        }
        self.complete_chunk(id, slot, packet >> self.chunk_shift);
        Landed::Chunk
    }

    /// An empty packet has arrived. Beyond the end of a message it carries only a fragment of the
    /// user's immediate, and that end is not known here: the receive may be longer.
    pub fn land_empty(&self, generation: u32, imm: u32) -> Landed {
        let (id, packet, fragment) = self.layout.split(imm);
        if packet == 0 {
            return self.land(generation, imm);
        }
        let slot = &self.slots[id as usize];
        if slot.generation.load(Ordering::Acquire) != generation {
            return Landed::Late;
        }
        if self.layout.fragments() > 0 {
            self.note_fragment(id, slot, packet, fragment);
        }
        Landed::Fragment
    }

    /// Counts packets that will never arrive as landed.
    pub fn fill(&self, id: u32, packets: Range<u32>) {
        let slot = &self.slots[id as usize];
        let end = packets.end.min(slot.packets.load(Ordering::Relaxed));
        let mut next = packets.start;
        while next < end {
            // As much as lies in one word and in one chunk.
            let stop = end
                .min((next / 64 + 1) * 64)
                .min(((next >> self.chunk_shift) + 1) << self.chunk_shift);
            let bits = (u64::MAX >> (64 - (stop - next))) << (next % 64);
            let before = self.set(slot.packet_bits.word(next / 64), bits);
            if before & bits != bits && self.completes(slot, next, before | bits) {
                self.complete_chunk(id, slot, next >> self.chunk_shift);
            }
            next = stop;
        }
    }

    #[inline]
    fn complete_chunk(&self, id: u32, slot: &Slot, chunk: u32) {
        if self.chunk_shift > 0 {
            self.set(slot.chunk_bits.word(chunk / 64), 1 << (chunk % 64));
        }
        self.mark_dirty(id);
    }

    /// Whether the packet that changed its word to `now` has completed its chunk.
    #[inline]
    fn completes(&self, slot: &Slot, packet: u32, now: u64) -> bool {
        match self.chunk_shift {
            0 => true,
            shift @ 1..=6 => {
                let ones = u64::MAX >> (64 - (1 << shift));
                let first = (packet % 64) & !((1 << shift) - 1);
                now >> first & ones == ones
            }
            shift => {
                let words = 1 << (shift - 6);
                let count = &slot.full_words[(packet >> shift) as usize];
                now == u64::MAX && count.fetch_add(1, Ordering::AcqRel) + 1 == words
            }
        }
    }

    #[inline]
    fn note_fragment(&self, id: u32, slot: &Slot, packet: u32, fragment: u32) {
        let fragments = self.layout.fragments();
        let index = packet % fragments;
        let seen = 1 << (32 + index);
        if slot.user.load(Ordering::Relaxed) & seen == 0 {
            let bits = u64::from(fragment) << (index * (32 / fragments));
            self.set(&slot.user, seen | bits);
            self.mark_dirty(id);
        }
    }

    #[inline]
    fn mark_dirty(&self, id: u32) {
        let (word, bit) = (&self.dirty[(id / 64) as usize], 1 << (id % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            self.set(word, bit);
        }
    }

    /// Calls `f` with each slot in which something was completed since the last call.
    pub fn take_dirty(&self, mut f: impl FnMut(u32)) {
        for (index, word) in self.dirty.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                f(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// The chunks of the message in a slot.
    pub fn chunks(&self, id: u32) -> ChunkBitmap<'_> {
        let slot = &self.slots[id as usize];
        let bits = if self.chunk_shift == 0 { &slot.packet_bits } else { &slot.chunk_bits };
        let packets = slot.packets.load(Ordering::Relaxed);
        ChunkBitmap { bits, len: packets.div_ceil(1 << self.chunk_shift) }
    }

    /// The user's immediate of the message in a slot, once all its fragments have arrived.
    pub fn user_imm(&self, id: u32) -> Option<u32> {
        let user = self.slots[id as usize].user.load(Ordering::Acquire);
        let all = (1u64 << self.layout.fragments()) - 1;
        (user >> 32 == all && all != 0).then_some(user as u32)
    }
}

fn zeroes(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Which chunks of a message have arrived: one bit each, which goes from 0 to 1 once.
#[derive(Clone, Copy, Debug)]
pub struct ChunkBitmap<'a> {
    bits: &'a Bits,
    len: u32,
}

impl ChunkBitmap<'_> {
    /// Chunks of the message.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the message has no chunks.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a chunk has arrived.
    #[inline]
    pub fn get(&self, chunk: u32) -> bool {
        chunk < self.len && self.word(chunk / 64) >> (chunk % 64) & 1 != 0
    }

    /// Chunks `64 * index` and up, one bit each from the lowest.
    #[inline]
    pub fn word(&self, index: u32) -> u64 {
        let left = self.len.saturating_sub(index.saturating_mul(64));
        if left == 0 {
            return 0;
        }
        let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        self.bits.word(index).load(Ordering::Acquire) & mask
    }

    /// How many have arrived.
    pub fn count(&self) -> u32 {
        (0..self.len.div_ceil(64)).map(|i| self.word(i).count_ones()).sum()
    }

    /// Whether all have.
    pub fn is_complete(&self) -> bool {
        self.count() == self.len
    }
}

/// What a lane has seen land: written by the lane alone, read by all.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct LandingCounters {
    packets: AtomicU64,
    duplicates: AtomicU64,
    late: AtomicU64,
    refused: AtomicU64,
}

/// A snapshot of [`LandingCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LandingStats {
    /// Packets, whatever their effect.
    pub packets: u64,
    /// Packets that had landed before.
    pub duplicates: u64,
    /// Packets of completed messages, or without a place in theirs.
    pub late: u64,
    /// Datagrams and control messages from others than the peer, which do not count as packets.
    pub refused: u64,
}

impl LandingCounters {
    /// The counts so far.
    pub fn snapshot(&self) -> LandingStats {
        LandingStats {
            packets: self.packets.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Increments a counter that only this lane writes.
#[inline]
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Reports the packets that arrive through a QP of one generation.
pub(crate) struct PacketLanding {
    pub(crate) table: Arc<RecvTable>,
    pub(crate) counters: Arc<LandingCounters>,
    pub(crate) generation: u32,
}

impl PacketLanding {
    /// A packet arrived that has no place any more.
    pub(crate) fn late(&self) {
        add(&self.counters.packets);
        add(&self.counters.late);
    }

    /// A datagram came from another sender.
    pub(crate) fn refused(&self) {
        add(&self.counters.refused);
    }
}

impl Landing for PacketLanding {
    #[inline]
    fn landed(&mut self, imm: u32, bytes: u32) {
        add(&self.counters.packets);
        let landed = if bytes == 0 {
            self.table.land_empty(self.generation, imm)
        } else {
            self.table.land(self.generation, imm)
        };
        match landed {
            Landed::Duplicate => add(&self.counters.duplicates),
            Landed::Late => add(&self.counters.late),
            Landed::Packet | Landed::Chunk | Landed::Fragment => {}
        }
    }
}

#[cfg(test)]
mod tests;
