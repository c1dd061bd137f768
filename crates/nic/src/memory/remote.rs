//! Peers' accesses to memory, by keys that they were given.

use bowline_wire::Qpn;

use super::indirect::{Binding, Target};
use super::window::Bound;
use super::{AccessDenied, AtomicOp, Backing, MemoryTable, Mr, Region, Segment};
use crate::types::{Access, PdId};

/// The peer on whose behalf a key is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pd: PdId,
    /// The local QP.
    pub(crate) qpn: Qpn,
}

impl MemoryTable {
    #[inline]
    fn remote(&self, by: Peer, rkey: u32, right: Access) -> Result<&Mr, AccessDenied> {
        let mr = self.find(rkey)?;
        if mr.pd != by.pd || mr.revocation.is_revoked() || !mr.access.contains(right) {
            return Err(AccessDenied);
        }
        Ok(mr)
    }

    /// The memory that a peer's key refers to, and the offset of `addr..addr+len` in it.
    #[inline]
    fn reach<'a>(
        &'a self,
        by: Peer,
        mr: &'a Mr,
        addr: u64,
        len: usize,
    ) -> Result<(&'a Region, usize), AccessDenied> {
        match &mr.backing {
            Backing::Window(bound) => self.through(by, mr.iova, bound, addr, len),
            _ => mr.at(addr, len),
        }
    }

    /// The memory at an address in a window that begins at `iova`. Few peers use one.
    #[cold]
    fn through(
        &self,
        by: Peer,
        iova: u64,
        bound: &Bound,
        addr: u64,
        len: usize,
    ) -> Result<(&Region, usize), AccessDenied> {
        let offset = usize::try_from(addr.wrapping_sub(iova)).map_err(|_| AccessDenied)?;
        let room = bound.to.len.checked_sub(offset);
        if !bound.serves(by.qpn) || room.is_none_or(|room| len > room) {
            return Err(AccessDenied);
        }
        self.bound(&bound.to, offset)
    }

    /// Checks that a peer may access `len` bytes at `addr` as requested.
    #[inline(always)]
    pub(crate) fn check_remote(
        &self,
        by: Peer,
        rkey: u32,
        addr: u64,
        len: u32,
        right: Access,
    ) -> Result<(), AccessDenied> {
        let mr = self.remote(by, rkey, right)?;
        match &mr.backing {
            Backing::Memory(_) => mr.at(addr, len as usize).map(drop),
            Backing::Indirect(slots) => {
                slots.target(addr, len as usize).map(drop).ok_or(AccessDenied)
            }
            Backing::Window(bound) => {
                self.through(by, mr.iova, bound, addr, len as usize).map(drop)
            }
        }
    }

    /// Where packets of a peer's WRITE of `len` bytes go. All of it may be written.
    #[inline]
    pub(crate) fn remote_place(
        &self,
        by: Peer,
        rkey: u32,
        addr: u64,
        len: u32,
    ) -> Result<RemotePlace<'_>, AccessDenied> {
        self.check_remote(by, rkey, addr, len, Access::REMOTE_WRITE)?;
        let mr = self.find(rkey)?;
        let memory = match &mr.backing {
            Backing::Memory(_) => Some(mr.at(addr, len as usize)?),
            Backing::Indirect(_) | Backing::Window(_) => None,
        };
        Ok(RemotePlace { table: self, by, rkey, addr, memory })
    }

    /// A packet of a peer's WRITE. The caller tells whether it ends the message.
    #[inline]
    pub(crate) fn remote_write(
        &self,
        by: Peer,
        rkey: u32,
        addr: u64,
        bytes: &[u8],
        ends: bool,
    ) -> Result<(), AccessDenied> {
        let mr = self.remote(by, rkey, Access::REMOTE_WRITE)?;
        let (region, at) = match &mr.backing {
            Backing::Memory(_) => mr.at(addr, bytes.len())?,
            Backing::Indirect(slots) => match slots.target(addr, bytes.len()) {
                Some(Target::Null) => return Ok(()),
                Some(Target::Bound(binding, offset)) => self.bound(binding, offset)?,
                None => return Err(AccessDenied),
            },
            Backing::Window(bound) => self.through(by, mr.iova, bound, addr, bytes.len())?,
        };
        self.store(region, at, bytes, ends)
    }

    /// The memory behind a binding, and the offset of its byte `offset` in it; `None` if the region
    /// is no longer registered.
    #[inline]
    fn bound(&self, binding: &Binding, offset: usize) -> Result<(&Region, usize), AccessDenied> {
        match self.slots.get(binding.place as usize) {
            Some(Some(Mr { key, backing: Backing::Memory(region), revocation, .. }))
                if *key == binding.key.0 && !revocation.is_revoked() =>
            {
                Ok((region, binding.offset + offset))
            }
            _ => Err(AccessDenied),
        }
    }

    /// A peer's READ: the bytes to send it.
    #[inline]
    pub(crate) fn remote_read(
        &self,
        by: Peer,
        rkey: u32,
        addr: u64,
        len: u32,
    ) -> Result<Segment, AccessDenied> {
        let mr = self.remote(by, rkey, Access::REMOTE_READ)?;
        let (region, at) = self.reach(by, mr, addr, len as usize)?;
        region.segment(at, len as usize).ok_or(AccessDenied)
    }

    /// A peer's atomic: the word as it was.
    pub(crate) fn remote_atomic(
        &self,
        by: Peer,
        rkey: u32,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, AccessDenied> {
        let mr = self.remote(by, rkey, Access::REMOTE_ATOMIC)?;
        let (region, at) = self.reach(by, mr, addr, 8)?;
        region.atomic(at, op).ok_or(AccessDenied)
    }

    /// A peer's SEND with invalidate.
    pub(crate) fn remote_invalidate(&mut self, by: Peer, rkey: u32) -> Result<(), AccessDenied> {
        let mr = self.find(rkey)?;
        if let Backing::Window(bound) = &mr.backing {
            let theirs = bound.serves(by.qpn);
            return if theirs { self.invalidate_window(by.pd, rkey) } else { Err(AccessDenied) };
        }
        if mr.pd != by.pd || !mr.access.contains(Access::REMOTE_INVALIDATE) {
            return Err(AccessDenied);
        }
        mr.revocation.revoke();
        Ok(())
    }
}

/// Where packets of a WRITE go that arrive together.
pub(crate) struct RemotePlace<'a> {
    table: &'a MemoryTable,
    by: Peer,
    rkey: u32,
    addr: u64,
    /// Ordinary memory is found once for all packets. Everything else may change between two.
    memory: Option<(&'a Region, usize)>,
}

impl RemotePlace<'_> {
    /// Writes bytes of a packet that does not end its message, at an offset in the WRITE.
    #[inline]
    pub(crate) fn write_at(&self, offset: u32, bytes: &[u8]) -> Result<(), AccessDenied> {
        match self.memory {
            Some((region, at)) => self.table.store(region, at + offset as usize, bytes, false),
            None => {
                let addr = self.addr.wrapping_add(offset.into());
                self.table.remote_write(self.by, self.rkey, addr, bytes, false)
            }
        }
    }
}
