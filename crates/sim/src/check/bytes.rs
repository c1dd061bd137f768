//! Registered memory holds what was written to it, and nothing else.

use core::ops::Range;
use std::collections::VecDeque;

use bowline_nic::Buffer;

use super::pattern;

/// A write that is pending, or may have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The request.
    pub wr_id: u64,
    /// Where in the region.
    pub range: Range<usize>,
    /// Seed of its bytes.
    pub pattern: u64,
}

impl Write {
    fn explains(&self, place: usize, byte: u8) -> bool {
        self.range.contains(&place)
            && pattern::byte_at(self.pattern, place - self.range.start) == byte
    }
}

/// Model of a region that one QP writes.
///
/// Writes of a reliable connection execute in posting order, so when one completes, the region
/// holds it and all earlier ones, and perhaps parts of later ones. A write that failed, or that an
/// unreliable service may have lost, can be there in part.
#[derive(Debug)]
pub struct RegionModel {
    /// Offset of the region in its buffer.
    base: usize,
    expected: Vec<u8>,
    pending: VecDeque<Write>,
    unsure: Vec<Write>,
    /// Ranges without any guarantee.
    loose: Vec<Range<usize>>,
    frozen: bool,
}

impl RegionModel {
    /// A region of `len` bytes at `base` of a buffer, filled with the bytes of `seed`.
    pub fn new(buffer: &Buffer, base: usize, len: usize, seed: u64) -> RegionModel {
        let expected = pattern::message(seed, len);
        buffer.write_at(base, &expected);
        RegionModel {
            base,
            expected,
            pending: VecDeque::new(),
            unsure: Vec::new(),
            loose: Vec::new(),
            frozen: false,
        }
    }

    /// The application itself writes.
    pub fn store(&mut self, buffer: &Buffer, start: usize, bytes: &[u8]) {
        self.expected[start..start + bytes.len()].copy_from_slice(bytes);
        buffer.write_at(self.base + start, bytes);
    }

    /// The application resets a range to the model's contents, as if to use it again: this exposes
    /// late writes by an engine.
    pub fn restore(&self, buffer: &Buffer, range: Range<usize>) {
        buffer.write_at(self.base + range.start, &self.expected[range]);
    }

    /// From now on nothing is guaranteed about a range.
    pub fn loosen(&mut self, range: Range<usize>) {
        self.loose.push(range);
    }

    /// From now on nothing may change, whatever was still in flight.
    pub fn freeze(&mut self, buffer: &Buffer) {
        buffer.read_at(self.base, &mut self.expected);
        self.unsure.clear();
        self.frozen = true;
    }

    /// What the region holds.
    pub fn actual(&self, buffer: &Buffer, range: Range<usize>) -> Vec<u8> {
        buffer.to_vec(self.base + range.start, range.len())
    }

    /// An ordered write was posted.
    pub fn posted(&mut self, write: Write) {
        self.pending.push_back(write);
    }

    /// A write without ordering or delivery guarantees was posted.
    pub fn posted_unreliably(&mut self, write: Write) {
        self.unsure.push(write);
    }

    /// The oldest write succeeded. Its bytes must be there now.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn succeeded(&mut self, buffer: &Buffer, wr_id: u64) -> Result<(), String> {
        let Some(write) = self.pending.pop_front().filter(|w| w.wr_id == wr_id) else {
            return Err(format!("write {wr_id:#x} completed out of order"));
        };
        let target = &mut self.expected[write.range.clone()];
        pattern::fill_from(write.pattern, 0, target);
        self.check_range(buffer, write.range)
    }

    /// The peer was notified of a write, perhaps before its sender knows of the success.
    ///
    /// # Errors
    /// The first byte of it that is not there.
    pub fn landed(&self, buffer: &Buffer, write: &Write) -> Result<(), String> {
        let bytes = self.actual(buffer, write.range.clone());
        let all = || self.unsure.iter().chain(&self.pending);
        if !all().any(|w| w.wr_id == write.wr_id) {
            // The sender knows of the success, so the model does.
            return self.check_read(write.range.start, &bytes);
        }
        let later = all().skip_while(|w| w.wr_id != write.wr_id).skip(1);
        for (i, byte) in bytes.iter().enumerate() {
            let place = write.range.start + i;
            if !write.explains(place, *byte) && !later.clone().any(|w| w.explains(place, *byte)) {
                return Err(format!(
                    "byte {place} of write {:#x} was announced before it arrived",
                    write.wr_id
                ));
            }
        }
        Ok(())
    }

    /// The peer was notified of something sent after these writes: all of them must be there.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn landed_before(&self, buffer: &Buffer, wr_id: u64) -> Result<(), String> {
        self.pending.iter().filter(|w| w.wr_id < wr_id).try_for_each(|w| self.landed(buffer, w))
    }

    /// The application reuses the target of a write that it was notified of. Executing the write
    /// again would destroy the new contents.
    pub fn reuse(&mut self, buffer: &Buffer, write: &Write, pattern: u64) {
        let known = self.pending.iter_mut().chain(&mut self.unsure);
        for own in known.filter(|w| w.wr_id == write.wr_id) {
            own.pattern = pattern;
        }
        let bytes = pattern::message(pattern, write.range.len());
        self.store(buffer, write.range.start, &bytes);
    }

    /// The oldest write failed: any part of it may be there.
    pub fn failed(&mut self, wr_id: u64) {
        if let Some(at) = self.pending.iter().position(|w| w.wr_id == wr_id) {
            let failed = self.pending.drain(..=at);
            if !self.frozen {
                self.unsure.extend(failed);
            }
        }
    }

    /// Whether `bytes`, read from `start` on, are consistent with everything known to have
    /// happened.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn check_read(&self, start: usize, bytes: &[u8]) -> Result<(), String> {
        self.check_fenced_read(start, bytes, u64::MAX)
    }

    /// As [`RegionModel::check_read`], but writes from `fence` on must not be seen.
    ///
    /// # Errors
    /// The first byte that cannot be.
    pub fn check_fenced_read(&self, start: usize, bytes: &[u8], fence: u64) -> Result<(), String> {
        let expected = &self.expected[start..start + bytes.len()];
        if expected == bytes {
            return Ok(());
        }
        for (i, (e, a)) in expected.iter().zip(bytes).enumerate() {
            if e != a && !self.explained(start + i, *a, fence) {
                return Err(format!("byte {} holds {a:#04x}, expected {e:#04x}", start + i));
            }
        }
        Ok(())
    }

    fn explained(&self, place: usize, byte: u8, fence: u64) -> bool {
        let pending = self.pending.iter().filter(|w| !self.frozen && w.wr_id < fence);
        self.loose.iter().any(|range| range.contains(&place))
            || pending.chain(&self.unsure).any(|write| write.explains(place, byte))
    }

    fn check_range(&self, buffer: &Buffer, range: Range<usize>) -> Result<(), String> {
        self.check_read(range.start, &buffer.to_vec(self.base + range.start, range.len()))
    }

    /// Whether the model explains the whole region.
    ///
    /// # Errors
    /// The first byte that is not.
    pub fn check(&self, buffer: &Buffer) -> Result<(), String> {
        self.check_range(buffer, 0..self.expected.len())
    }
}
