//! The files by which programs find devices, where the kernel has none: `/dev/infiniband`,
//! `/sys/class/infiniband` and `/sys/class/infiniband_verbs`.
//!
//! [`interpose`] intercepts libc's functions that take a path, and redirects these directories to a
//! [`tree`] of real files that the process creates on first use. So listing, descending and reading
//! need nothing else, and no privilege is required. Device nodes are links to `/dev/null`: a
//! character device that everybody may open, with nothing behind it. [`sysfs`] has the contents of
//! the files.

mod interpose;
pub(crate) mod sysfs;
mod tree;

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;

/// The directories redirected to the tree, where they have the same names.
const FOLDERS: [&[u8]; 3] =
    [b"/dev/infiniband", b"/sys/class/infiniband", b"/sys/class/infiniband_verbs"];

/// A path to pass on to libc: the caller's own, or the redirected one.
enum Shown {
    Own(*const c_char),
    Led(CString),
}

impl Shown {
    fn as_ptr(&self) -> *const c_char {
        match self {
            Shown::Own(path) => *path,
            Shown::Led(path) => path.as_ptr(),
        }
    }
}

/// Redirects a path. Other paths pass untouched, without a lock or an allocation: programs call
/// these functions anywhere, including in signal handlers.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn shown(path: *const c_char) -> Shown {
    if path.is_null() {
        return Shown::Own(path);
    }
    // SAFETY: a C string, by the caller's word.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !is_ours(bytes) {
        return Shown::Own(path);
    }
    let Some(root) = tree::root() else { return Shown::Own(path) };
    sysfs::refresh(root, bytes);
    let led = [root.as_os_str().as_bytes(), bytes].concat();
    CString::new(led).map_or(Shown::Own(path), Shown::Led)
}

/// Whether a path is one of our folders or below it.
fn is_ours(path: &[u8]) -> bool {
    // Nearly all paths end here.
    if !path.starts_with(b"/dev/inf") && !path.starts_with(b"/sys/class/inf") {
        return false;
    }
    let below = |folder: &[u8]| matches!(path.strip_prefix(folder), Some([] | [b'/', ..]));
    FOLDERS.iter().any(|folder| below(folder))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn our_folders_are_told_from_their_neighbours() {
        for ours in ["/dev/infiniband", "/dev/infiniband/", "/sys/class/infiniband_verbs/uverbs0"] {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for other in ["/dev/infinibandwagon", "/sys/class/infiniband_cm", "/sys/class/net", "", "/"]
        {
            assert!(!is_ours(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_program_finds_devices_as_if_the_kernel_had_them() {
        // The functions also intercept calls of this program's `std`, as in any other program.
        let names: Vec<_> = fs::read_dir("/sys/class/infiniband").unwrap().flatten().collect();
        assert!(!names.is_empty(), "this machine has loopback at least");
        let first = names[0].path();
        assert_eq!(fs::read_to_string(first.join("ports/1/state")).unwrap(), "4: ACTIVE\n");
        assert_eq!(
            fs::read_to_string(first.join("ports/1/gid_attrs/types/0")).unwrap(),
            "RoCE v2\n"
        );
        assert!(fs::read_dir(first.join("device/net")).unwrap().next().is_some());

        let node = fs::metadata("/dev/infiniband/uverbs0").unwrap();
        assert!(node.file_type().is_char_device());
        let ibdev = fs::read_to_string("/sys/class/infiniband_verbs/uverbs0/ibdev").unwrap();
        assert!(fs::metadata(format!("/sys/class/infiniband/{}", ibdev.trim_end())).is_ok());
        assert!(fs::metadata("/sys/class/infiniband/nonesuch").is_err());
    }
}
