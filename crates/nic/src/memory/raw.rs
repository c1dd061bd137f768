//! The one place where the engine touches memory that it does not own.
//!
//! RDMA means that a peer reads and writes an application's memory while the application runs, so
//! no `&[u8]` or `&mut [u8]` over registered memory may exist for longer than a call in here, and
//! the rest of the crate works with offsets that [`super::MemoryTable`] has checked. Bytes that the
//! application changes while the NIC moves them arrive torn, exactly as with a hardware NIC.

use core::any::Any;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;

use bowline_wire::{Icrc, LiveBytes};

use super::live;
use super::stream::{self, Trail};

/// Memory that an application shares with a NIC: zeroed and page-aligned, or
/// [foreign](Buffer::foreign).
///
/// It is read and written by copying, because a NIC may change any byte at any time.
pub struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
    /// Bytes before it that belong to the same allocation, if that is our own.
    skipped: usize,
    /// Keeps foreign memory alive. Without one the memory is our own.
    owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: `Buffer` owns plain memory, or an owner that is `Send` does; all access goes through raw
// copies or atomics, never through references, so handing it to another thread (or sharing it)
// creates no aliasing `&mut`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Alignment of every buffer of our own: a page, so that registered memory never shares one.
    /// Kernels for other processors than x86 have pages of up to 64 KiB.
    pub const ALIGN: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

    /// From so many bytes on, zeros are left to the system.
    const LONG: usize = 1 << 20;

    /// Allocates `len` zero bytes.
    pub fn new(len: usize) -> Arc<Buffer> {
        let layout = Self::layout(len);
        // SAFETY: `layout` has a size of at least one page, so it is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        let skipped = start.align_offset(Self::ALIGN);
        // SAFETY: `layout` has room for the bytes up to the next page: it is aligned to one, or
        // longer than `len` by one.
        let ptr = unsafe { start.add(skipped) };
        Arc::new(Buffer { ptr, len, skipped, owner: None })
    }

    /// Memory that somebody else owns: a NumPy array, a C program's buffer. `owner` keeps it alive,
    /// and is dropped with the buffer: once the last registration and handle are gone. `None` if
    /// the range has no address or leaves the address space.
    ///
    /// # Safety
    /// Until `owner` is dropped `ptr..ptr + len` stays mapped and readable, and writable if it is
    /// written here or registered with any write right. Rust references to it exist only while no
    /// peer and no work request can touch it.
    pub unsafe fn foreign(
        ptr: *mut u8,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Option<Arc<Buffer>> {
        (ptr as usize).checked_add(len).filter(|_| isize::try_from(len).is_ok())?;
        let (ptr, owner) = (NonNull::new(ptr)?, Some(owner));
        Some(Arc::new(Buffer { ptr, len, skipped: 0, owner }))
    }

    /// What is allocated for a buffer of our own. For a long one, memory of no alignment to speak
    /// of: the allocator takes it from the system, which hands out zero pages when they are first
    /// touched. Aligned memory it would fill with zeros itself, 128 MiB in 50 ms.
    fn layout(len: usize) -> Layout {
        let size = len.max(1).next_multiple_of(Self::ALIGN);
        let (size, align) = match size.checked_add(Self::ALIGN) {
            Some(longer) if len >= Self::LONG => (longer, 1),
            _ => (size, Self::ALIGN),
        };
        Layout::from_size_align(size, align).expect("a buffer's size fits an isize")
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address, which is also the default virtual address a peer uses.
    pub fn addr(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    /// The first byte, for handing the memory to C or to a kernel.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range was checked against `self.len`; `out` is a distinct allocation.
        unsafe { live::load(self.ptr.as_ptr().add(offset), out) }
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range was checked against `self.len`; `bytes` is a distinct allocation.
        unsafe { live::store(bytes, self.ptr.as_ptr().add(offset)) }
    }

    /// Sets `len` bytes from `offset` to `value`.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn fill(&self, offset: usize, len: usize, value: u8) {
        self.check(offset, len);
        // SAFETY: the range was checked against `self.len`.
        unsafe { live::fill(self.ptr.as_ptr().add(offset), len, value) }
    }

    /// A copy of the range.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn to_vec(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        self.read_at(offset, &mut v);
        v
    }

    /// Reads the aligned 64-bit word at `offset` with acquire ordering, to wait for a peer's write.
    ///
    /// # Panics
    /// If the word is not inside the buffer or not aligned to 8 bytes.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes the aligned 64-bit word at `offset`.
    ///
    /// # Panics
    /// If the word is not inside the buffer or not aligned to 8 bytes.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        let word = self.ptr.as_ptr().wrapping_add(offset).cast::<u64>();
        assert!(word.is_aligned(), "offset {offset} is not aligned to 8 bytes");
        // SAFETY: in bounds, aligned, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(word) }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes {offset}..+{len} are outside a buffer of {}",
            self.len
        );
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owner.is_none() {
            // SAFETY: `new` has skipped so many bytes of this very allocation.
            let start = unsafe { self.ptr.sub(self.skipped) };
            // SAFETY: allocated in `new` with this very layout, and freed once.
            unsafe { dealloc(start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl core::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Buffer({:p}, {} bytes)", self.ptr, self.len)
    }
}

/// Memory to be registered: where it is, and what keeps it alive.
pub struct Region {
    ptr: NonNull<u8>,
    len: usize,
    /// Kept only for its `Drop`: an owned region cannot be freed while it is registered.
    _owner: Option<Arc<Buffer>>,
    /// Where peers have written it recently.
    trail: Trail,
}

// SAFETY: a region is an address range; see the module's comment on how it is accessed.
unsafe impl Send for Region {}

impl Region {
    /// A region over a shared buffer, which stays alive as long as the region does.
    pub fn owned(buffer: Arc<Buffer>) -> Region {
        Region { ptr: buffer.ptr, len: buffer.len, _owner: Some(buffer), trail: Trail::default() }
    }

    /// A region over a part of a shared buffer; `None` if that is not inside it.
    pub fn part(buffer: Arc<Buffer>, offset: usize, len: usize) -> Option<Region> {
        if offset > buffer.len || len > buffer.len - offset {
            return None;
        }
        // SAFETY: `offset` is at most the buffer's length, so the sum stays within it or one past.
        let ptr = unsafe { buffer.ptr.add(offset) };
        Some(Region { ptr, len, _owner: Some(buffer), trail: Trail::default() })
    }

    /// A region over memory that the caller owns, as `ibv_reg_mr` gets it.
    ///
    /// # Safety
    /// `ptr..ptr+len` must be valid for reads, and for writes if it is registered with any write
    /// right, until the region has been deregistered. Other threads of the program may read and
    /// write the memory meanwhile: the bytes transferred are then unspecified.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> Option<Region> {
        // A range that wraps around the address space cannot be valid; refusing it here keeps
        // every later offset computation free of overflow.
        (ptr as usize).checked_add(len)?;
        Some(Region { ptr: NonNull::new(ptr)?, len, _owner: None, trail: Trail::default() })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    /// A reference to `len` bytes at `offset` for sending, or `None` outside the region.
    #[inline]
    pub(crate) fn segment(&self, offset: usize, len: usize) -> Option<Segment> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: `offset <= self.len`, so the sum stays within (or one past) the region.
        let ptr = unsafe { self.ptr.as_ptr().add(offset) };
        Some(Segment { ptr, len: len as u32 })
    }

    /// Copies `bytes` to `offset`, with streaming stores if that pays and `may_stream`; returns
    /// whether it did so. Outside the region it returns `None` and writes nothing.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8], may_stream: bool) -> Option<bool> {
        if offset > self.len || bytes.len() > self.len - offset {
            return None;
        }
        let stream = self.trail.goes_on(offset, bytes.len()) && may_stream;
        // SAFETY: in bounds by the check above; the region is valid for writes by the contract of
        // its constructor and the access rights that the caller of this crate-private function has
        // checked; a received frame lives in a receive ring, never in registered memory.
        unsafe {
            let to = self.ptr.as_ptr().add(offset);
            if cfg!(miri) {
                // What the processor guarantees anyway, made explicit for the interpreter.
                live::store(bytes, to);
            } else if stream {
                stream::copy(bytes, to);
            } else {
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
        }
        Some(stream)
    }

    /// Copies a segment to `offset`, with streaming stores if that pays; nothing at all if it does
    /// not fit.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, segment: &Segment) {
        let len = segment.len();
        if offset > self.len || len > self.len - offset {
            return;
        }
        let stream = self.trail.goes_on(offset, len);
        // SAFETY: in bounds by the check above, and valid for writes as in `write`. A segment is a
        // checked range of a region or a slice, valid during this call. Its owner may write it
        // meanwhile, and then gets torn bytes; so no slice of it is made but for the interpreter.
        unsafe {
            let to = self.ptr.as_ptr().add(offset);
            if cfg!(miri) {
                live::store(core::slice::from_raw_parts(segment.ptr, len), to);
            } else if stream {
                stream::copy_far(segment.ptr, to, len);
            } else {
                to.copy_from_nonoverlapping(segment.ptr, len);
            }
        }
    }

    /// Everything copied so far is visible to others before what is copied from now on.
    #[inline]
    pub(crate) fn settle(&self) {
        stream::settle();
    }

    /// Applies `op` to the aligned 64-bit word at `offset` atomically, with respect to the
    /// application's own atomics too, and returns the word as it was.
    pub(crate) fn atomic(&self, offset: usize, op: AtomicOp) -> Option<u64> {
        if offset > self.len || self.len - offset < 8 {
            return None;
        }
        // SAFETY: in bounds by the check above.
        let ptr = unsafe { self.ptr.as_ptr().add(offset) };
        if !(ptr as usize).is_multiple_of(8) {
            return None;
        }
        // SAFETY: in bounds, aligned, and valid for writes by the constructor's contract and the
        // atomic right, which implies write access.
        let word = unsafe { AtomicU64::from_ptr(ptr.cast()) };
        Some(match op {
            AtomicOp::FetchAdd(add) => word.fetch_add(add, Ordering::AcqRel),
            AtomicOp::CompareSwap { compare, swap } => {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }
        })
    }
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Region({:p}, {} bytes)", self.ptr, self.len)
    }
}

/// What an RDMA atomic does to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    FetchAdd(u64),
    CompareSwap { compare: u64, swap: u64 },
}

/// A borrowed piece of outgoing payload: an address that stays valid until the engine call ends.
#[derive(Clone, Copy)]
pub struct Segment {
    ptr: *const u8,
    len: u32,
}

// SAFETY: an address and a length; whoever dereferences it does so in this module or in a system
// call, under the contract of `Region`.
unsafe impl Send for Segment {}

impl Segment {
    /// A segment over bytes that the caller keeps in place (inline data, staged copies).
    pub(crate) fn of_slice(bytes: &[u8]) -> Segment {
        Segment { ptr: bytes.as_ptr(), len: bytes.len() as u32 }
    }

    /// Address of the first byte, for a gather list.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` bytes and the rest; `None` if there are fewer.
    #[inline]
    pub(crate) fn split_at(self, len: u32) -> Option<(Segment, Segment)> {
        let left = self.len.checked_sub(len)?;
        let behind = self.ptr.wrapping_add(len as usize);
        Some((Segment { len, ..self }, Segment { ptr: behind, len: left }))
    }

    /// Appends a copy of the bytes, and returns the CRC register after them.
    #[inline]
    pub(crate) fn append_summed(&self, icrc: Icrc, out: &mut Vec<u8>) -> Icrc {
        out.reserve(self.len());
        let icrc = icrc.update_copying(self.live(), out.spare_capacity_mut());
        // SAFETY: there is room for so many, and they have just been written.
        unsafe { out.set_len(out.len() + self.len()) };
        icrc
    }

    /// Appends a copy of the bytes.
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        let copied = self.live().copy_to(out.spare_capacity_mut()).len();
        // SAFETY: there is room for so many, and they have just been written.
        unsafe { out.set_len(out.len() + copied) };
    }

    /// The bytes, which the application may write concurrently.
    #[inline]
    fn live(&self) -> LiveBytes<'_> {
        // SAFETY: a segment is made from a checked range of a region or from a slice, and none
        // outlives the engine call that made it.
        unsafe { LiveBytes::new(self.ptr, self.len as usize) }
    }
}

impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Segment({:p}, {})", self.ptr, self.len)
    }
}

/// A part of a region: its first byte and its length.
pub type RegionPart<'a> = (&'a Region, usize, usize);

/// Runs `f` over parts of regions, some to be read and some to be written, for devices that keep a
/// registration table of their own; `None` if a part is not inside its region, or a written one
/// overlaps another.
///
/// # Safety
/// The regions of `writes` are valid for writes.
pub unsafe fn compute_over(
    reads: &[RegionPart<'_>],
    writes: &[RegionPart<'_>],
    f: &mut crate::Compute<'_>,
) -> Option<()> {
    let find = |(region, offset, len): &RegionPart<'_>| region.segment(*offset, *len);
    let reads = reads.iter().map(find).collect::<Option<Vec<_>>>()?;
    let writes = writes.iter().map(find).collect::<Option<Vec<_>>>()?;
    with_slices(&reads, &writes, f)
}

/// Runs `f` over the bytes of segments, some to be read and some to be written; `None` if a written
/// one overlaps another. The segments come from regions that the caller may read and write.
pub(super) fn with_slices<R>(
    reads: &[Segment],
    writes: &[Segment],
    f: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R,
) -> Option<R> {
    let overlap = |a: &Segment, b: &Segment| {
        let (a_start, b_start) = (a.ptr as usize, b.ptr as usize);
        a_start < b_start + b.len() && b_start < a_start + a.len()
    };
    for (i, write) in writes.iter().enumerate() {
        if reads.iter().chain(&writes[..i]).any(|other| overlap(write, other)) {
            return None;
        }
    }
    // SAFETY: each segment is a checked range of a region that is valid for reads, and for writes
    // where the caller has checked that right; no written range overlaps another, as checked above.
    // The application may touch the memory meanwhile: `f` computes over the bytes, so the worst is
    // a torn result, as with any transfer from or to a buffer that is in use.
    let reads: Vec<&[u8]> =
        reads.iter().map(|s| unsafe { core::slice::from_raw_parts(s.ptr, s.len()) }).collect();
    let mut writes: Vec<&mut [u8]> = writes
        .iter()
        // SAFETY: as above.
        .map(|s| unsafe { core::slice::from_raw_parts_mut(s.ptr.cast_mut(), s.len()) })
        .collect();
    Some(f(&reads, &mut writes))
}
