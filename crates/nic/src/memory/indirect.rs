//! Indirect regions: one key over a table of slots, each backed by a piece of another region or by
//! nothing.
//!
//! A peer that knows the one key reaches whatever buffer its owner has put into a slot, by the
//! slot's place alone, so that no keys need to be exchanged per buffer. A slot without a buffer is
//! a null key: writes to it succeed and vanish, so that a packet that comes too late does no harm
//! and is still noticed.

use crate::types::MrKey;

/// The slots of an indirect region.
#[derive(Debug)]
pub(super) struct Slots {
    /// A slot spans two to this power bytes of address space.
    shift: u32,
    slots: Box<[Option<Binding>]>,
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
    pub(super) fn new(count: u32, shift: u32) -> Slots {
        Slots { shift, slots: vec![None; count as usize].into_boxed_slice() }
    }

    /// Bytes that a slot spans.
    pub(super) fn slot_bytes(&self) -> u64 {
        1 << self.shift
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Option<Binding>> {
        self.slots.get_mut(slot as usize)
    }

    /// Where `len` bytes at `addr` lead; `None` if they are outside a slot, or outside what backs
    /// it.
    #[inline]
    pub(super) fn target(&self, addr: u64, len: usize) -> Option<Target<'_>> {
        let slot = usize::try_from(addr >> self.shift).ok()?;
        let offset = (addr & (self.slot_bytes() - 1)) as usize;
        match self.slots.get(slot)? {
            Some(binding) => (offset <= binding.len && len <= binding.len - offset)
                .then_some(Target::Bound(binding, offset)),
            None => ((offset + len) as u64 <= self.slot_bytes()).then_some(Target::Null),
        }
    }
}
