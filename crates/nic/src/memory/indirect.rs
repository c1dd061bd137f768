//! Indirect regions: one key over a table of slots, each backed by a piece of another region or by
//! nothing.
//!
//! A peer that knows this key reaches whatever buffer the owner has bound to a slot, by the slot's
//! address alone, so no keys are exchanged per buffer. A slot without a buffer acts as a null key:
//! writes to it succeed and are discarded, so that a late packet does no harm and is still noticed.
//!
//! Slot numbers keep growing, and slots whose numbers differ by a multiple of the table size share
//! a place. The place belongs to the slot bound last, and writes to any other are refused: a packet
//! that somebody held back until its place was reused writes nothing.

use crate::types::MrKey;

/// The slots of an indirect region.
#[derive(Debug)]
pub(super) struct Slots {
    /// A slot spans two to this power bytes of address space.
    shift: u32,
    /// The length is a power of two.
    places: Box<[Place]>,
}

/// Where a slot is kept.
#[derive(Clone, Debug)]
struct Place {
    /// The slot that owns this place now.
    slot: u64,
    binding: Option<Binding>,
}

/// What backs a slot. It only names the region, which may be deregistered in the meantime.
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
    /// Nowhere: the write is discarded.
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

    /// Assigns a slot its place, and binds it; `false` if the slot has no address.
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

    /// Where `len` bytes at `addr` lead; `None` if they are outside a slot or outside what backs
    /// it, or if another slot owns the place.
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
