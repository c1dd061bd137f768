//! The functions as tables, and the layout of verbs, for the versioned libraries and the lab's
//! check.

use core::ffi::c_void;

use crate::abi::{LAYOUT, LayoutEntry};

/// The address of a function.
#[repr(transparent)]
pub struct Verb(*const ());

impl Verb {
    /// The address.
    pub fn address(&self) -> *mut c_void {
        self.0.cast_mut().cast()
    }
}

// SAFETY: the address of a function, which is the same for every thread.
unsafe impl Sync for Verb {}

mod generated {
    #![allow(non_upper_case_globals)]
    use super::Verb;
    include!(concat!(env!("OUT_DIR"), "/table.rs"));
}
pub use generated::{bowline_rdmacm_table, bowline_verbs_table};

/// The layout that this library was made with: `*count` entries.
///
/// # Safety
/// `count` must be null or point to a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bowline_verbs_layout(count: *mut usize) -> *const LayoutEntry {
    if !count.is_null() {
        // SAFETY: not null, so a `size_t` by the caller's word.
        unsafe { *count = LAYOUT.len() };
    }
    LAYOUT.as_ptr()
}
