//! Copies from and to memory that others may read and write concurrently, behind a safe interface.
//!
//! To the compiler an ordinary copy promises that nobody else writes. These make no such promise:
//! on x86-64 the processor copies with an instruction that is opaque to the compiler, elsewhere
//! (and under Miri) with atomics. Each costs some tens of cycles; large ones cost no more than
//! other copies.

#![allow(unsafe_code)]

/// Copies shared bytes out.
///
/// # Safety
/// `from` is readable for as many bytes as there are in `to`.
#[inline]
pub(super) unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller's word; `to` is exclusively ours.
    unsafe { imp::copy(from, to.as_mut_ptr(), to.len(), imp::Shared::From) };
}

/// Copies bytes to where they are shared.
///
/// # Safety
/// `to` is writable for as many bytes as there are in `bytes`.
#[inline]
pub(super) unsafe fn store(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's word; nobody writes `bytes`.
    unsafe { imp::copy(bytes.as_ptr(), to, bytes.len(), imp::Shared::To) };
}

/// Sets shared bytes to a value.
///
/// # Safety
/// `to` is writable for `len` bytes.
#[inline]
pub(super) unsafe fn fill(to: *mut u8, len: usize, value: u8) {
    // SAFETY: the caller's word.
    unsafe { imp::fill(to, len, value) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use core::arch::asm;

    /// Which end of a copy others may use.
    #[derive(Clone, Copy)]
    pub(super) enum Shared {
        From,
        To,
    }

    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes.
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, _: Shared) {
        // SAFETY: the caller's word; the direction flag is clear, as everywhere.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
    }

    /// # Safety
    /// `to` is writable for `len` bytes.
    #[inline]
    pub(super) unsafe fn fill(to: *mut u8, len: usize, value: u8) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") len => _,
                inout("rdi") to => _,
                in("al") value,
                options(nostack, preserves_flags)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use core::sync::atomic::{AtomicU8, Ordering};

    /// Which end of a copy others may use.
    #[derive(Clone, Copy)]
    pub(super) enum Shared {
        From,
        To,
    }

    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes.
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize, shared: Shared) {
        for i in 0..len {
            // SAFETY: the caller's word.
            unsafe {
                match shared {
                    Shared::From => {
                        let from = AtomicU8::from_ptr(from.add(i).cast_mut());
                        to.add(i).write(from.load(Ordering::Relaxed));
                    }
                    Shared::To => {
                        AtomicU8::from_ptr(to.add(i)).store(from.add(i).read(), Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(super) unsafe fn fill(to: *mut u8, len: usize, value: u8) {
        for i in 0..len {
            // SAFETY: the caller's word.
            unsafe { AtomicU8::from_ptr(to.add(i)).store(value, Ordering::Relaxed) };
        }
    }
}
