//! Indirect regions: one key over a table of slots, each backed by a piece of another region or by
//! nothing.
//!
//! A peer that knows the one key reaches whatever buffer its owner has put into a slot, by the
//! slot's place alone, so that no keys need to be exchanged per buffer. A slot without a buffer is
//! a null key: writes to it succeed and vanish, so that a packet that comes too late does no harm
//! and is still noticed.
//!
//! Slots are numbered on and on, and those that are as far apart as there are slots share a place.
//! It belongs to the one that was bound last, and what is written to another is refused: a packet
//! that somebody held back until its slot was used again writes nothing.

use crate::types::MrKey;

/// The slots of an indirect region.
#[derive(Debug)]
pub(super) struct Slots {
    /// A slot spans two to this power bytes of address space.
    shift: u32,
    /// As many as a power of two.
    places: Box<[Place]>,
}

/// Where a slot is kept.
#[derive(Clone, Debug)]
struct Place {
    /// Whose place it is now.
    slot: u64,
    binding: Option<Binding>,
}

/// What backs a slot. The region is named, not referred to: it may be deregistered meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// Where the region is in the table of regions.
    pub(super) place: u32,
    pub(super) key: MrKey,
    /// First byte of the piece, and its length, within the region.
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Where an access to an indirect region leads.
pub(super) enum Target<'a> {
    /// Nowhere: it is discarded.
    Null,
    /// To this many bytes into a binding.
    Bound(&'a Binding, usize),
}

impl Slots {
    /// `count` must be a power of two.
    pub(super) fn new(count: u32, shift: u32) -> Slots {
        let places = (0..u64::from(count)).map(|slot| Place { slot, binding: None }).collect();
        Slots { shift, places }
    }

    /// Bytes that a slot spans.
    pub(super) fn slot_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Gives a slot its place, and puts a binding behind it; `false` if it has no address.
    pub(super) fn bind(&mut self, slot: u64, binding: Option<Binding>) -> bool {
        let at = self.place_of(slot);
        if slot > u64::MAX >> self.shift {
            return false;
        }
        self.places[at] = Place { slot, binding };
        true
    }

    #[inline]
    fn place_of(&self, slot: u64) -> usize {
        slot as usize & (self.places.len() - 1)
    }

    /// Where `len` bytes at `addr` lead; `None` if they are outside a slot, or outside what backs
    /// it, or if the slot's place is another's.
    #[inline]
    pub(super) fn target(&self, addr: u64, len: usize) -> Option<Target<'_>> {
        let slot = addr >> self.shift;
        let offset = (addr & (self.slot_bytes() - 1)) as usize;
        let place = &self.places[self.place_of(slot)];
        if place.slot != slot {
            return None;
        }
        match &place.binding {
            Some(binding) => (offset <= binding.len && len <= binding.len - offset)
                .then_some(Target::Bound(binding, offset)),
            None => ((offset + len) as u64 <= self.slot_bytes()).then_some(Target::Null),
        }
    }
}
