//! Device memory: for a soft NIC this is ordinary memory, which programs access by copying and by
//! keys.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use std::alloc::{self, Layout};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use crate::context::{self, Context};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::{mr, sys};

/// The largest allocation.
pub(crate) const MAX_DM_BYTES: usize = 256 << 20;
const WORD: usize = 4;
/// Alignments beyond a page are of no use to a soft NIC.
const MAX_LOG_ALIGN: u32 = 12;

/// Memory that lives as long as its object and the regions in it.
pub(crate) struct Block {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory. Who copies into it while a peer writes gets a mix, as with any NIC.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize, log_align: u32) -> Result<Block, Errno> {
        if len == 0 || len > MAX_DM_BYTES || log_align > MAX_LOG_ALIGN {
            return Err(Errno::INVAL);
        }
        Block::aligned(len, (1 << log_align).max(64))
    }

    /// Page-aligned memory.
    pub(crate) fn pages(len: usize) -> Result<Block, Errno> {
        if len == 0 { Err(Errno::INVAL) } else { Block::aligned(len, sys::page_size()) }
    }

    fn aligned(len: usize, align: usize) -> Result<Block, Errno> {
        let layout = Layout::from_size_align(len, align).map_err(|_| Errno::INVAL)?;
        // SAFETY: not of size zero, by the callers' checks.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        if start.is_null() { Err(Errno::NOMEM) } else { Ok(Block { start, layout }) }
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The address of `len` bytes at `offset`, if they are inside.
    pub(crate) fn at(&self, offset: u64, len: usize) -> Result<*mut u8, Errno> {
        let offset = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        if end > self.layout.size() {
            return Err(Errno::INVAL);
        }
        Ok(self.start.wrapping_add(offset))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody has it any more.
        unsafe { alloc::dealloc(self.start, self.layout) };
    }
}

/// Device memory that a program has allocated.
pub(crate) struct Dm {
    ctx: Arc<Context>,
    block: Arc<Block>,
    /// The handle by which the program may import it.
    handle: u32,
}

impl Dm {
    /// Hands it out.
    fn create(self, context: *mut ibv_context) -> *mut ibv_dm {
        self.ctx.objects.fetch_add(1, Ordering::AcqRel);
        let handle = self.handle;
        let public = ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle };
        handle::create(public, self)
    }
}

impl Public for ibv_dm {
    type Inner = Dm;
    const KIND: Kind = Kind::Dm;
}

/// `ibv_alloc_dm`, in the context's table.
///
/// # Safety
/// `context` must be an open device's, and `attr` point to attributes.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *const ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    guard(ptr::null_mut(), || {
        object((|| {
            // A child may allocate some, too: this does not touch the device.
            let ctx = context::find(context)?;
            // SAFETY: null, or attributes by the caller's word.
            let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
            if attr.comp_mask != 0 {
                return Err(Errno::UNSUPPORTED);
            }
            let block = Arc::new(Block::new(attr.length, attr.log_align_req)?);
            Ok(Dm { ctx: Arc::clone(ctx), block, handle: ctx.next_handle() }.create(context))
        })())
    })
}

/// `ibv_free_dm`, in the context's table. Regions in it keep the memory until they are
/// deregistered.
///
/// # Safety
/// `dm` must come from [`alloc_dm`].
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    guard(libc::EIO, || code(free(dm)))
}

fn free(dm: *mut ibv_dm) -> Result<(), Errno> {
    handle::find(dm)?.ctx.objects.fetch_sub(1, Ordering::AcqRel);
    handle::destroy(dm)
}

/// Another pointer to the device memory of this handle.
pub(crate) fn import(context: *mut ibv_context, wanted: u32) -> Result<*mut ibv_dm, Errno> {
    let ctx = context::find(context)?;
    let is_it = |dm: &Dm| dm.handle == wanted && Arc::ptr_eq(&dm.ctx, ctx);
    let original = handle::search::<ibv_dm>(is_it).ok_or(Errno::INVAL)?;
    let block = Arc::clone(&handle::find(original)?.block);
    Ok(Dm { ctx: Arc::clone(ctx), block, handle: wanted }.create(context))
}

/// Ends a pointer that [`import`] gave.
pub(crate) fn unimport(dm: *mut ibv_dm) {
    let _ = free(dm);
}

/// `ibv_reg_dm_mr`, in the context's table. Its addresses begin at zero.
///
/// # Safety
/// `pd` must come from `ibv_alloc_pd`, and `dm` from [`alloc_dm`].
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
    access: c_uint,
) -> *mut ibv_mr {
    guard(ptr::null_mut(), || {
        object((|| {
            let block = Arc::clone(&handle::find(dm)?.block);
            let start = block.at(offset, len)?;
            mr::create_in_block(pd, start as usize, len, access, block)
        })())
    })
}

/// The address that a copy reads or writes: NICs with such memory move 4-byte words, and programs
/// know that.
fn copied(dm: *mut ibv_dm, offset: u64, len: usize) -> Result<*mut u8, Errno> {
    if !offset.is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
        return Err(Errno::INVAL);
    }
    handle::find(dm)?.block.at(offset, len)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let to = copied(dm, offset, len)?;
            // SAFETY: `len` bytes of ours, and as many of the caller's by its word.
            unsafe { ptr::copy(from.cast::<u8>(), to, len) };
            Ok(())
        })())
    })
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    guard(libc::EIO, || {
        code((|| {
            let from = copied(dm, offset, len)?;
            // SAFETY: as above.
            unsafe { ptr::copy(from, to.cast::<u8>(), len) };
            Ok(())
        })())
    })
}
