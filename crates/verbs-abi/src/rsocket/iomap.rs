//! Mapped memory: buffers of a program that the other end writes to directly, by offset.

use core::ffi::{c_int, c_void};

use super::socket::{self, Inner};
use super::stream::Stream;
use super::wire::{Message, RemoteBuffer};
use crate::abi::*;
use crate::errno::Errno;
use crate::guard::guard;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};

/// Bytes of an entry: an offset, and the memory behind it.
pub(super) const ENTRY: usize = 8 + RemoteBuffer::LEN;

/// Memory that this end has mapped.
pub(super) struct Mapping {
    mr: *mut ibv_mr,
    offset: u64,
    /// The peer's entry for it; none if the peer may not write to it.
    index: Option<u16>,
    /// The peer has yet to be told.
    pending: bool,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: registered in `map`, once.
        unsafe { ibv_dereg_mr(self.mr) };
    }
}

fn map(
    inner: &mut Inner,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    offset: i64,
) -> Result<i64, Errno> {
    if prot & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 || u32::try_from(len).is_err() {
        return Err(Errno::INVAL);
    }
    let remote = prot & libc::PROT_WRITE != 0;
    let index = if remote {
        let entries = inner.stream()?.peer().map_or(0, |peer| peer.maps);
        let is_free = |index: &u16| inner.mappings.iter().all(|m| m.index != Some(*index));
        Some((0..entries).find(is_free).ok_or(Errno::NOMEM)?)
    } else {
        None
    };
    let rights = if remote { IBV_ACCESS_REMOTE_WRITE } else { 0 };
    // SAFETY: the identifier lives; the memory is the program's, which unmaps before it frees.
    let mr = unsafe {
        let pd = (*inner.id).pd;
        ibv_reg_mr(pd, buf, len, (IBV_ACCESS_LOCAL_WRITE | rights) as c_int)
    };
    if mr.is_null() {
        return Err(Errno::last());
    }
    let offset = if offset == -1 { buf as i64 } else { offset };
    inner.mappings.push(Mapping { mr, offset: offset as u64, index, pending: remote });
    Ok(offset)
}

impl Inner {
    /// Whether the peer has yet to be told of a mapping.
    pub(super) fn has_news(&self) -> bool {
        self.mappings.iter().any(|mapping| mapping.pending)
    }

    /// Tells the peer of the next mapping. The caller has checked that something can be sent.
    pub(super) fn tell_of_mapping(&mut self) -> Result<(), Errno> {
        let Some(mapping) = self.mappings.iter_mut().find(|mapping| mapping.pending) else {
            return Ok(());
        };
        mapping.pending = false;
        let (Some(index), Some(stream)) = (mapping.index, self.stream.as_mut()) else {
            return Ok(());
        };
        // SAFETY: registered as long as the mapping is there.
        let (addr, key, len) = unsafe {
            let mr = &*mapping.mr;
            (mr.addr as u64, mr.rkey, mr.length as u32)
        };
        stream.send_mapping(index, mapping.offset, RemoteBuffer { addr, key, len })
    }
}

impl Stream {
    fn send_mapping(&mut self, index: u16, offset: u64, memory: RemoteBuffer) -> Result<(), Errno> {
        let Some((to, big_endian)) = self.peer().map(|peer| peer.map_entry(index)) else {
            return Err(Errno(libc::ENOTCONN));
        };
        let mut entry = [0; ENTRY];
        let offset = if big_endian { offset.to_be_bytes() } else { offset.to_le_bytes() };
        entry[..8].copy_from_slice(&offset);
        entry[8..].copy_from_slice(&memory.to_memory(big_endian));
        self.sent = self.sent.wrapping_add(1);
        // SAFETY: an array of this length.
        unsafe { self.write(Message::Map(index), entry.as_ptr(), ENTRY, to) }
    }

    /// The peer's memory at an offset of its mappings, and its length.
    fn mapped(&self, offset: u64) -> Option<RemoteBuffer> {
        (0..usize::from(self.sizes.maps)).find_map(|index| {
            let mut entry = [0; ENTRY];
            // SAFETY: as many bytes as the array has.
            unsafe {
                let at = super::stream::MAPS_AT + index * ENTRY;
                self.targets.read(at, entry.as_mut_ptr(), ENTRY);
            }
            let (begin, memory) = entry.split_first_chunk::<8>()?;
            let begin = u64::from_ne_bytes(*begin);
            let memory = RemoteBuffer::from_memory(*memory.first_chunk()?);
            let into = offset.checked_sub(begin).filter(|into| *into < memory.len.into())?;
            let (addr, len) = (memory.addr.wrapping_add(into), memory.len - into as u32);
            Some(RemoteBuffer { addr, len, ..memory })
        })
    }

    /// Writes as much as one request takes to the peer's mapped memory; returns the number of
    /// bytes.
    ///
    /// # Safety
    /// `from` must point to `len` bytes.
    unsafe fn send_direct(
        &mut self,
        from: *const u8,
        len: usize,
        offset: u64,
    ) -> Result<usize, Errno> {
        let to = self.mapped(offset).ok_or(Errno::INVAL)?;
        let len = len.min(super::transfer::MAX_TRANSFER).min(self.out_free).min(to.len as usize);
        // SAFETY: by the caller's word.
        unsafe { self.write(Message::Direct(len as u32), from, len, to) }?;
        Ok(len)
    }
}

/// `riomap`: lets the other end write to memory of the program, at an offset.
///
/// # Safety
/// `buf` must point to `len` bytes that live until `riounmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: i64,
) -> i64 {
    guard(-1, || {
        let mapped = socket::find(fd).and_then(|s| map(&mut s.lock(), buf, len, prot, offset));
        mapped.unwrap_or_else(|error| {
            error.set();
            -1
        })
    })
}

/// `riounmap`.
///
/// # Safety
/// `buf` and `len` must be those of a `riomap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: usize) -> c_int {
    guard(-1, || {
        crate::errno::minus_one(socket::find(fd).and_then(|socket| {
            let mut inner = socket.lock();
            // SAFETY: registered as long as the mapping is there.
            let is_it = |m: &Mapping| unsafe { (*m.mr).addr == buf && (*m.mr).length == len };
            let at = inner.mappings.iter().position(is_it).ok_or(Errno::INVAL)?;
            drop(inner.mappings.swap_remove(at));
            Ok(())
        }))
    })
}

/// `riowrite`: writes to memory that the other end has mapped.
///
/// # Safety
/// `buf` must point to `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: i64,
    flags: c_int,
) -> usize {
    guard(usize::MAX, || {
        super::calls::counted(socket::find(fd).and_then(|socket| {
            socket.send_all(count, flags, |stream, done, left| {
                // SAFETY: within the program's bytes.
                unsafe {
                    let from = buf.cast::<u8>().add(done);
                    stream.send_direct(from, left, (offset as u64).wrapping_add(done as u64))
                }
            })
        })) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_as_long_as_other_rsockets_have_it() {
        assert_eq!(ENTRY, 24);
        assert_eq!(super::super::stream::MAPS_AT, 32);
    }
}
