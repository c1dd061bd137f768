//! Bytes that others may write while they are read.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::sync::atomic::{Ordering, compiler_fence};

/// Bytes that somebody else may write at any time: registered memory, which its owner keeps using
/// while a NIC sends it.
///
/// No `&[u8]` to such bytes may exist, since the compiler may assume that its contents are
/// constant. They can only be copied, each byte once; the copy is what is examined.
#[derive(Clone, Copy, Debug)]
pub struct LiveBytes<'a> {
    ptr: *const u8,
    len: usize,
    lives: PhantomData<&'a u8>,
}

impl<'a> LiveBytes<'a> {
    /// The bytes at an address.
    ///
    /// # Safety
    /// The range must stay readable for `'a`. Others may write it meanwhile; the copy is then any
    /// mixture of old and new bytes.
    #[inline]
    pub const unsafe fn new(ptr: *const u8, len: usize) -> LiveBytes<'a> {
        LiveBytes { ptr, len, lives: PhantomData }
    }

    /// Number of bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first byte.
    #[inline]
    pub(super) const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// The first `at` bytes and the rest.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub(super) fn split_at(self, at: usize) -> (LiveBytes<'a>, LiveBytes<'a>) {
        assert!(at <= self.len, "cut at {at} of {} bytes", self.len);
        let rest = self.ptr.wrapping_add(at);
        (LiveBytes { len: at, ..self }, LiveBytes { ptr: rest, len: self.len - at, ..self })
    }

    /// Copies the bytes to the start of `room` and returns the copy.
    ///
    /// # Panics
    /// If there is less room than bytes.
    #[inline]
    pub fn copy_to(self, room: &mut [MaybeUninit<u8>]) -> &[u8] {
        let room = &mut room[..self.len];
        // SAFETY: the bytes are readable by the constructor's contract; `room` is as long, and
        // exclusively borrowed.
        unsafe { copy(self.ptr, room.as_mut_ptr().cast(), self.len) };
        // Keeps the compiler from reading the source again instead of the copy.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: this many bytes have just been written.
        unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), self.len) }
    }
}

impl<'a> From<&'a [u8]> for LiveBytes<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> LiveBytes<'a> {
        LiveBytes { ptr: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }
}

/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they are apart.
#[cfg(not(miri))]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(PAGE);
        if piece >= ASKED_BYTES {
            ask_for(from.wrapping_add(at + PAGE));
        }
        // SAFETY: the caller's contract. A processor reads each byte atomically, whoever writes it
        // meanwhile.
        unsafe { from.add(at).copy_to_nonoverlapping(to.add(at), piece) };
        at += piece;
    }
}

/// Hardware prefetching stops at a page boundary.
const PAGE: usize = 4096;
/// Bytes of the next page to prefetch while one is copied; the processor continues from there.
const ASKED_BYTES: usize = 1024;

/// Prefetches the first bytes of a page, mapped or not.
#[inline]
fn ask_for(page: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..ASKED_BYTES).step_by(64) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which touches nothing and is ignored for an address that is not mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(page.wrapping_add(line).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = page;
}

/// By the language's rules: bytes that others may write are read with atomics.
///
/// # Safety
/// As above.
#[cfg(miri)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use core::sync::atomic::AtomicU8;
    for i in 0..len {
        // SAFETY: the caller's contract.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(i).cast_mut()).load(Ordering::Relaxed);
            to.add(i).write(byte);
        }
    }
}
