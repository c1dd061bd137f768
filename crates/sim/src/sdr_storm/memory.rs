//! A host's registered memory: slots for messages with guard zones between them.

use core::ops::Range;
use std::sync::Arc;

use bowline_nic::{Access, Buffer, MrKey, Nic, PdId, Region};
use bowline_sdr::Source;

use crate::check::pattern;

/// Bytes between slots.
const GAP: usize = 96;

/// A buffer whose every byte is known, except in slots that are in use.
pub(crate) struct Memory {
    buffer: Arc<Buffer>,
    key: MrKey,
    seed: u64,
    /// Where each slot begins.
    places: Vec<usize>,
}

impl Memory {
    /// Memory with slots of these lengths.
    pub(crate) fn new(nic: &mut Nic, pd: PdId, lens: &[u64], seed: u64) -> Memory {
        let mut at = GAP;
        let mut places = Vec::with_capacity(lens.len());
        for len in lens {
            places.push(at);
            at += *len as usize + GAP;
        }
        let buffer = Buffer::new(at);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, access);
        let memory = Memory { buffer, key: key.expect("within the limits"), seed, places };
        memory.restore_range(0..at);
        memory
    }

    /// A slot, for requests.
    pub(crate) fn at(&self, place: usize) -> Source {
        Source { key: self.key, addr: self.places[place] as u64 }
    }

    /// The contents of a slot.
    pub(crate) fn read(&self, place: usize, len: u64) -> Vec<u8> {
        self.buffer.to_vec(self.places[place], len as usize)
    }

    /// The contents of a slot that nobody has written to.
    pub(crate) fn untouched(&self, place: usize, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        pattern::fill_from(self.seed, self.places[place], &mut bytes);
        bytes
    }

    /// Puts a message into a slot.
    pub(crate) fn write(&self, place: usize, bytes: &[u8]) {
        self.buffer.write_at(self.places[place], bytes);
    }

    /// The application owns its bytes again and overwrites them.
    pub(crate) fn restore(&self, place: usize, len: u64) {
        self.restore_range(self.places[place]..self.places[place] + len as usize);
    }

    fn restore_range(&self, range: Range<usize>) {
        let mut bytes = vec![0; range.len()];
        pattern::fill_from(self.seed, range.start, &mut bytes);
        self.buffer.write_at(range.start, &bytes);
    }

    /// Whether everything is unchanged, now that no slot is in use any more.
    ///
    /// # Errors
    /// The first byte that changed.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut expected = vec![0; self.buffer.len()];
        pattern::fill_from(self.seed, 0, &mut expected);
        match pattern::first_difference(&expected, &self.buffer.to_vec(0, expected.len())) {
            None => Ok(()),
            Some(difference) => Err(difference),
        }
    }
}
