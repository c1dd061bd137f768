//! Memory of operations.

use std::sync::Arc;

use bowline_nic::{Access, Buffer, MrKey, Region, Rnic, Sge};

use super::{Group, GroupError};
use crate::engine::{FoldTerm, OpId};
use crate::schedule::{Space, Span};

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its key.
    pub key: MrKey,
    /// The address of its first byte within the region.
    pub addr: u64,
    /// Its length in bytes.
    pub len: usize,
}

impl Piece {
    /// No memory.
    pub const EMPTY: Piece = Piece { key: MrKey(0), addr: 0, len: 0 };
}

/// The buffers of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The input; empty for an in-place operation.
    pub input: Piece,
    /// The output.
    pub output: Piece,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) id: OpId,
    pub(super) memory: Memory,
    /// Shared with the operations before and after it, because only one runs at a time.
    pub(super) scratch: Piece,
}

/// Memory that belongs to the group.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) key: MrKey,
    buffer: Arc<Buffer>,
}

impl Scratch {
    fn piece(&self) -> Piece {
        Piece { key: self.key, addr: self.buffer.addr(), len: self.buffer.len() }
    }
}

impl Group {
    /// Reserves scratch memory for an operation. A buffer that has become too small stays until the
    /// operations that use it have ended.
    pub(super) fn reserve(
        &mut self,
        nic: &mut dyn Rnic,
        bytes: usize,
    ) -> Result<Piece, GroupError> {
        if let Some(last) = self.scratch.last()
            && last.buffer.len() >= bytes
        {
            return Ok(last.piece());
        }
        if bytes == 0 {
            return Ok(Piece::EMPTY);
        }
        if self.pending.is_empty() {
            for old in self.scratch.drain(..) {
                // Cannot fail: it is ours, and nothing else removes it.
                let _ = nic.deregister(old.key);
            }
        }
        let buffer = Buffer::new(bytes.next_power_of_two());
        let region = Region::owned(Arc::clone(&buffer));
        let key = nic.register(self.pd, region, buffer.addr(), Access::LOCAL_WRITE)?;
        let scratch = Scratch { key, buffer };
        let piece = scratch.piece();
        self.scratch.push(scratch);
        Ok(piece)
    }

    /// A span of an operation as a scatter/gather entry.
    pub(super) fn sge(&self, op: OpId, span: Span) -> Option<Sge> {
        let pending = self.pending.iter().find(|pending| pending.id == op)?;
        let whole = match span.space {
            Space::Input => pending.memory.input,
            Space::Output => pending.memory.output,
            Space::Scratch => pending.scratch,
        };
        let fits = span.offset.checked_add(span.len)? <= whole.len;
        fits.then(|| Sge::new(whole.key, whole.addr + span.offset as u64, span.len as u32))
    }

    /// A term of a fold of `len` bytes, as a scatter/gather entry.
    pub(super) fn term_sge(&self, op: OpId, term: FoldTerm<'_>, len: usize) -> Option<Sge> {
        match term {
            FoldTerm::Memory(span) => self.sge(op, span),
            FoldTerm::Absent => None,
            FoldTerm::Slot { of, slot, .. } => {
                let (_, key) = self.source(of)?;
                let sdr = self.links.get(of as usize).and_then(|link| link.as_ref()?.sdr.as_ref());
                let at = match sdr {
                    Some(sdr) => sdr.slot_addr(slot)?,
                    None => u64::from(slot) * u64::from(self.config.slot_bytes),
                };
                Some(Sge::new(key, at, len as u32))
            }
        }
    }
}
