//! Files that programs look for below `/sys/class/infiniband`: there are none, so they are answered
//! from here.

use core::ffi::{c_char, c_int};
use std::ffi::CStr;
use std::io::Read;

use crate::device::{self, Device};
use crate::errno::Errno;
use crate::gid::GIDS;
use crate::guard::guard;
use crate::query::FW_VERSION;

/// Where devices would be.
pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// What a file of a device says, if it has such a file.
fn answer(device: &Device, file: &str) -> Option<String> {
    let guid = || {
        let text = format!("{:016x}", device.guid());
        format!("{}:{}:{}:{}", &text[..4], &text[4..8], &text[8..12], &text[12..])
    };
    let in_table = |index: &str| index.parse::<u32>().is_ok_and(|i| i < GIDS);
    Some(match file {
        "board_id" | "hca_type" => "BOWLINE".to_owned(),
        "fw_ver" => FW_VERSION.to_owned(),
        "node_type" => "1: CA".to_owned(),
        "node_desc" => format!("Bowline at {}", device.addr),
        "node_guid" | "sys_image_guid" => guid(),
        _ => match file.strip_prefix("ports/1/")? {
            "state" => "4: ACTIVE".to_owned(),
            "phys_state" => "5: LinkUp".to_owned(),
            "link_layer" => "Ethernet".to_owned(),
            "rate" => "25 Gb/sec (1X EDR)".to_owned(),
            "lid" | "sm_lid" | "sm_sl" | "lid_mask_count" => "0x0".to_owned(),
            "pkeys/0" => "0xffff".to_owned(),
            rest => match rest.rsplit_once('/')? {
                ("gids", index) if in_table(index) => {
                    let raw = device.gid().raw;
                    let groups: Vec<String> =
                        raw.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1])).collect();
                    groups.join(":")
                }
                ("gid_attrs/types", index) if in_table(index) => "RoCE v2".to_owned(),
                ("gid_attrs/ndevs", index) if in_table(index) => device.interface()?.0,
                _ => return None,
            },
        },
    })
}

/// The answer to a path, if it is one of ours.
fn find(dir: &str, file: &str) -> Option<Option<String>> {
    let path = format!("{dir}/{file}");
    let (name, file) = path.strip_prefix(CLASS)?.strip_prefix('/')?.split_once('/')?;
    let device = device::all().iter().find(|d| d.name == name)?;
    Some(answer(device, file))
}

/// `ibv_get_sysfs_path`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: how many bytes the file has, without the newline at its end, or −1.
///
/// # Safety
/// `dir` and `file` must be C strings, and `buf` have `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    guard(-1, || {
        if dir.is_null() || file.is_null() || buf.is_null() {
            Errno::INVAL.set();
            return -1;
        }
        // SAFETY: C strings, by the caller's word.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let (dir, file) = (dir.to_string_lossy(), file.to_string_lossy());
        let found = find(&dir, &file).unwrap_or_else(|| read(&format!("{dir}/{file}"), size));
        let Some(text) = found else {
            Errno(libc::ENOENT).set();
            return -1;
        };
        let len = text.len().min(size.saturating_sub(1));
        // SAFETY: `len` and the null byte behind it fit `size`, and nothing is written into 0 bytes.
        unsafe {
            if size > 0 {
                core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, len);
                *buf.add(len) = 0;
            }
        }
        len as c_int
    })
}

/// A real file, for whoever asks about another device.
fn read(path: &str, max: usize) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(max as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
}
