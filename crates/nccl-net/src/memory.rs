//! NCCL's memory: regions to send from, and memory that peers may write for one receive.

use std::ops::Range;

use bowline::{Access, Buffer, Mr, Pd};

use crate::status::Trouble;

/// Memory that NCCL has registered. Peers have no access to it.
#[derive(Debug)]
pub(crate) struct Registered {
    addr: usize,
    len: usize,
    /// `None` if it is empty.
    mr: Option<Mr>,
}

impl Registered {
    /// Registers `len` bytes at `addr` to send from.
    ///
    /// # Safety
    /// The bytes can be read and written until this and all [`Landing`]s in it are dropped.
    pub(crate) unsafe fn new(pd: &Pd, addr: usize, len: usize) -> Result<Registered, Trouble> {
        if len == 0 {
            return Ok(Registered { addr, len, mr: None });
        }
        // SAFETY: upheld by the caller.
        let mr = unsafe { register(pd, addr, len, Access::empty()) }?;
        Ok(Registered { addr, len, mr: Some(mr) })
    }

    /// The region of `len` bytes at `addr`, and their position in it; no region if `len` is 0.
    pub(crate) fn part(&self, addr: usize, len: usize) -> Result<Option<Part>, Trouble> {
        let start = addr.checked_sub(self.addr).filter(|start| *start <= self.len);
        let end = start.and_then(|start| start.checked_add(len)).filter(|end| *end <= self.len);
        match (start, end, &self.mr) {
            (Some(_), Some(_), _) if len == 0 => Ok(None),
            (Some(start), Some(end), Some(mr)) => {
                Ok(Some(Part { mr: mr.clone(), range: start..end }))
            }
            _ => Err(Trouble::argument(format!(
                "{len} bytes at {addr:#x} are not inside the memory that was registered, \
                 {} bytes at {:#x}",
                self.len, self.addr
            ))),
        }
    }

    /// Lets the peer of a connection write `len` bytes at `addr` until the landing is dropped.
    pub(crate) fn land(&self, pd: &Pd, addr: usize, len: usize) -> Result<Landing, Trouble> {
        self.part(addr, len)?;
        if len == 0 {
            return Ok(Landing { mr: None });
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the bytes are part of the memory that the caller of `Registered::new` vouched
        // for.
        let mr = unsafe { register(pd, addr, len, access) }?;
        Ok(Landing { mr: Some(mr) })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Work requests may still hold the region, and NCCL frees the memory next. A device that
        // has ended touches no memory.
        let _ = self.mr.as_ref().map(Mr::deregister);
    }
}

/// A part of registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) mr: Mr,
    pub(crate) range: Range<usize>,
}

/// The memory for one message. Its key is valid only for these bytes and this receive.
#[derive(Debug)]
pub(crate) struct Landing {
    /// `None` if it is empty.
    pub(crate) mr: Option<Mr>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        // From here on a late packet, or a peer that breaks the protocol, can write nothing.
        let _ = self.mr.as_ref().map(Mr::deregister);
    }
}

/// Registers memory of NCCL.
///
/// # Safety
/// The bytes can be read and written until the region is deregistered.
unsafe fn register(pd: &Pd, addr: usize, len: usize, access: Access) -> Result<Mr, Trouble> {
    let pointer = std::ptr::with_exposed_provenance_mut::<u8>(addr);
    // SAFETY: upheld by the caller. We own nothing of the memory: the registration ends before NCCL
    // may free it.
    let buffer = unsafe { Buffer::foreign(pointer, len, Box::new(())) };
    let buffer = buffer.ok_or_else(|| Trouble::argument("memory beyond the address space"))?;
    Ok(pd.register_buffer(buffer, access)?)
}

#[cfg(test)]
mod tests {
    use bowline::Device;

    use super::*;

    #[test]
    fn parts_stay_inside_what_was_registered() {
        let pd = Device::open("127.93.9.1").unwrap().alloc_pd().unwrap();
        let memory = vec![0_u8; 4096];
        let base = memory.as_ptr().expose_provenance();
        // SAFETY: the vector outlives the registration.
        let region = unsafe { Registered::new(&pd, base, 4096) }.unwrap();
        assert_eq!(region.part(base + 96, 4000).unwrap().unwrap().range, 96..4096);
        assert!(region.part(base + 4096, 0).unwrap().is_none());
        for (addr, len) in [(base - 1, 1), (base, 4097), (base + 4096, 1), (base, usize::MAX)] {
            assert!(region.part(addr, len).is_err(), "{len} at {addr}");
            assert!(region.land(&pd, addr, len).is_err(), "{len} at {addr}");
        }
        let landing = region.land(&pd, base + 8, 8).unwrap();
        let remote = landing.mr.as_ref().unwrap().remote();
        assert_eq!((remote.addr, remote.len), (base as u64 + 8, 8));
    }
}
