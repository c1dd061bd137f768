//! Buffers that the library allocates for programs, to be registered later.
//!
//! Providers use this for memory that their devices can reach in a confidential guest. A soft NIC
//! reaches all memory of its process, so a buffer is ordinary memory, whatever its domain allows.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::*;
use crate::context::Context;
use crate::dm::Block;
use crate::errno::{Errno, minus_one, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::mr;

/// A buffer.
pub(crate) struct Buf {
    ctx: Arc<Context>,
    pd: *mut ibv_pd,
    block: Arc<Block>,
}

impl Public for ibv_buf {
    type Inner = Buf;
    const KIND: Kind = Kind::Buf;
}

impl Buf {
    /// The memory, if `len` bytes from `addr` on are within it and it was allocated in `pd`.
    pub(crate) fn part(
        &self,
        pd: *mut ibv_pd,
        addr: usize,
        len: usize,
    ) -> Result<Arc<Block>, Errno> {
        if pd != self.pd {
            return Err(Errno::INVAL);
        }
        let offset = addr.checked_sub(self.block.start() as usize).ok_or(Errno::INVAL)?;
        self.block.at(offset as u64, len)?;
        Ok(Arc::clone(&self.block))
    }
}

/// `ibv_alloc_buf`: whole pages, of zeros.
///
/// # Safety
/// `pd` must be a protection domain, and `buf` point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    guard(ptr::null_mut(), || {
        object((|| {
            let domain = handle::find(pd)?;
            domain.ctx.core()?;
            if buf.is_null() {
                return Err(Errno::INVAL);
            }
            let block = Arc::new(Block::pages(size)?);
            let start = block.start();
            domain.ctx.objects.fetch_add(1, Ordering::AcqRel);
            let inner = Buf { ctx: Arc::clone(&domain.ctx), pd, block };
            // SAFETY: not null, so a pointer to a pointer by the caller's word.
            unsafe { buf.write(handle::create(ibv_buf { _opaque: 0 }, inner)) };
            Ok(start.cast())
        })())
    })
}

/// `ibv_free_buf`. Regions in it keep the memory until they are deregistered.
///
/// # Safety
/// `buf` must come from [`ibv_alloc_buf`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    guard((), || {
        let Ok(inner) = handle::find(buf) else { return };
        inner.ctx.objects.fetch_sub(1, Ordering::AcqRel);
        let _ = handle::destroy(buf);
    });
}

/// `ibv_reg_buf_mr`: registers a part of a buffer in the domain that it was allocated in.
///
/// # Safety
/// `pd` must be a protection domain, and `buf` come from [`ibv_alloc_buf`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    guard(ptr::null_mut(), || {
        object(mr::register_part(pd, buf, addr as usize, length, addr as u64, access as u32))
    })
}

/// `ibv_export_buf_dmabuf_fd`: `ENODATA`, as for any buffer of ordinary memory.
///
/// # Safety
/// `buf` must come from [`ibv_alloc_buf`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    guard(-1, || minus_one(handle::find(buf).and(Err(Errno(libc::ENODATA)))))
}
