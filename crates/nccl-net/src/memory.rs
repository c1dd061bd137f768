//! NCCL's memory: what is registered to send from, and what peers may write for one receive.

use std::ops::Range;

use bowline::{Access, Buffer, Mr, Pd};

use crate::status::Trouble;

/// Memory that NCCL has registered. Peers have no access to it.
#[derive(Debug)]
pub(crate) struct Registered {
    addr: usize,
    len: usize,
    /// None of an empty one.
    mr: Option<Mr>,
}

impl Registered {
    /// Registers `len` bytes at `addr` to be sent from.
    ///
    /// # Safety
    /// The bytes can be read and written until this is dropped and [`Landing`]s in it are.
    pub(crate) unsafe fn new(pd: &Pd, addr: usize, len: usize) -> Result<Registered, Trouble> {
        if len == 0 {
            return Ok(Registered { addr, len, mr: None });
        }
        // SAFETY: the caller's promise.
        let mr = unsafe { register(pd, addr, len, Access::empty()) }?;
        Ok(Registered { addr, len, mr: Some(mr) })
    }

    /// The region and the place in it of `len` bytes at `addr`; no region if they are none.
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

    /// Offers `len` bytes at `addr` to the peer of a connection, to be written until the landing
    /// ends.
    pub(crate) fn land(&self, pd: &Pd, addr: usize, len: usize) -> Result<Landing, Trouble> {
        self.part(addr, len)?;
        if len == 0 {
            return Ok(Landing { mr: None });
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // SAFETY: the bytes are a part of memory that `Registered::new` was promised of.
        let mr = unsafe { register(pd, addr, len, access) }?;
        Ok(Landing { mr: Some(mr) })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // Work requests may still hold the region, and NCCL frees the memory next. A device that
        // has ended touches nothing.
        let _ = self.mr.as_ref().map(Mr::deregister);
    }
}

/// A part of registered memory.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) mr: Mr,
    pub(crate) range: Range<usize>,
}

/// Where one message lands. Its key is good for these bytes and this receive only.
#[derive(Debug)]
pub(crate) struct Landing {
    /// None of an empty one.
    pub(crate) mr: Option<Mr>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        // From here on a late packet, or a peer that does not keep to the protocol, writes nothing.
        let _ = self.mr.as_ref().map(Mr::deregister);
    }
}

/// Registers memory of NCCL's.
///
/// # Safety
/// The bytes can be read and written until the region is deregistered.
unsafe fn register(pd: &Pd, addr: usize, len: usize, access: Access) -> Result<Mr, Trouble> {
    let pointer = std::ptr::with_exposed_provenance_mut::<u8>(addr);
    // SAFETY: the caller's promise. Nobody owns the memory on this side: the registration ends
    // before NCCL may free it.
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
