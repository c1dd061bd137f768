//! libc's functions that take a path, with the path redirected as [`super::shown`] says.
//!
//! Programs find these before libc's own, because the library is preloaded, and they call the next
//! function of the same name, which is libc's. Paths relative to a descriptor are not redirected: a
//! descriptor of a directory in the tree is already inside the tree.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::transmute_copy;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CStr;

use super::shown;
use crate::errno::Errno;

/// The next function of a name, looked up once.
struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Looks it up. Concurrent lookups find the same function.
    fn look(&self) -> *mut c_void {
        // SAFETY: C strings. A handle that is never closed stays good.
        unsafe {
            let next = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            if !next.is_null() {
                return next;
            }
            // Where the library is not preloaded, libc may come before it, and nothing after it.
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            let libc = libc::dlopen(c"libc.so.6".as_ptr(), flags);
            if libc.is_null() { next } else { libc::dlsym(libc, self.name.as_ptr()) }
        }
    }

    /// The function, as the type that the caller knows; `None` if this libc lacks it.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to the function of this name.
    unsafe fn get<F: Copy>(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.look();
            self.found.store(found, Ordering::Relaxed);
        }
        if found.is_null() {
            Errno(libc::ENOSYS).set();
            return None;
        }
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: a pointer of a function of that type, by the caller's word.
        Some(unsafe { transmute_copy(&found) })
    }
}

/// Declares functions that differ from libc's only by redirecting a path argument, which is named
/// first.
macro_rules! led {
    ($(
        fn $name:ident($($before:ident: $bt:ty,)* *$path:ident $(, $after:ident: $at:ty)*)
            -> $ret:ty = $failed:expr;
    )*) => {$(
        /// As libc's function of this name.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $bt,)* $path: *const c_char $(, $after: $at)*) -> $ret {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a null byte"),
            });
            type Function = unsafe extern "C" fn($($bt,)* *const c_char $(, $at)*) -> $ret;
            // SAFETY: the caller's arguments, with a path that lives until the call is over.
            unsafe {
                let led = shown($path);
                NEXT.get::<Function>()
                    .map_or($failed, |next| next($($before,)* led.as_ptr() $(, $after)*))
            }
        }
    )*};
}

/// The same for functions whose last argument exists only with some flags. It is passed on
/// unchanged; if the caller gave none, libc does not read it.
macro_rules! opening {
    ($(fn $name:ident($($before:ident: $bt:ty,)* *$path:ident, flags);)*) => {$(
        /// As libc's function of this name.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $bt,)* $path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a null byte"),
            });
            type Function = unsafe extern "C" fn($($bt,)* *const c_char, c_int, ...) -> c_int;
            // SAFETY: as above.
            unsafe {
                let led = shown($path);
                NEXT.get::<Function>()
                    .map_or(-1, |next| next($($before,)* led.as_ptr(), flags, mode))
            }
        }
    )*};
}

opening! {
    fn open(*path, flags);
    fn open64(*path, flags);
    fn openat(dir: c_int, *path, flags);
    fn openat64(dir: c_int, *path, flags);
}

led! {
    fn __open_2(*path, flags: c_int) -> c_int = -1;
    fn __open64_2(*path, flags: c_int) -> c_int = -1;
    fn fopen(*path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
    fn fopen64(*path, mode: *const c_char) -> *mut c_void = ptr::null_mut();
    fn opendir(*path) -> *mut c_void = ptr::null_mut();
    fn scandir(*path, to: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
    fn scandir64(*path, to: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
    fn stat(*path, to: *mut c_void) -> c_int = -1;
    fn stat64(*path, to: *mut c_void) -> c_int = -1;
    fn lstat(*path, to: *mut c_void) -> c_int = -1;
    fn lstat64(*path, to: *mut c_void) -> c_int = -1;
    fn fstatat(dir: c_int, *path, to: *mut c_void, flags: c_int) -> c_int = -1;
    fn fstatat64(dir: c_int, *path, to: *mut c_void, flags: c_int) -> c_int = -1;
    fn statx(dir: c_int, *path, flags: c_int, mask: c_uint, to: *mut c_void) -> c_int = -1;
    fn __xstat(version: c_int, *path, to: *mut c_void) -> c_int = -1;
    fn __xstat64(version: c_int, *path, to: *mut c_void) -> c_int = -1;
    fn __lxstat(version: c_int, *path, to: *mut c_void) -> c_int = -1;
    fn __lxstat64(version: c_int, *path, to: *mut c_void) -> c_int = -1;
    fn access(*path, mode: c_int) -> c_int = -1;
    fn faccessat(dir: c_int, *path, mode: c_int, flags: c_int) -> c_int = -1;
    fn getxattr(*path, name: *const c_char, to: *mut c_void, len: usize) -> isize = -1;
    fn lgetxattr(*path, name: *const c_char, to: *mut c_void, len: usize) -> isize = -1;
    fn listxattr(*path, to: *mut c_char, len: usize) -> isize = -1;
    fn llistxattr(*path, to: *mut c_char, len: usize) -> isize = -1;
    fn readlink(*path, to: *mut c_char, len: usize) -> isize = -1;
    fn readlinkat(dir: c_int, *path, to: *mut c_char, len: usize) -> isize = -1;
    fn realpath(*path, to: *mut c_char) -> *mut c_char = ptr::null_mut();
    fn __realpath_chk(*path, to: *mut c_char, len: usize) -> *mut c_char = ptr::null_mut();
}
