//! The contents of a device's files, and the verbs that read them.

use core::ffi::{c_char, c_int};
use std::ffi::CStr;
use std::io::Read;
use std::path::Path;

use bowline_nic::Counters;

use super::tree;
use crate::device::{self, Device};
use crate::errno::Errno;
use crate::gid::{GID_TABLE_LEN, GIDS};
use crate::guard::guard;
use crate::query::FW_VERSION;
use crate::report;

/// Where devices are.
pub(crate) const CLASS: &str = "/sys/class/infiniband";
/// Where the nodes that programs open are.
pub(crate) const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";

/// All files of a device with constant contents; its counters have their initial values.
pub(super) fn files(device: &Device) -> Vec<(String, String)> {
    let digits = format!("{:016x}", device.guid());
    let guid = [&digits[..4], &digits[4..8], &digits[8..12], &digits[12..]].join(":");
    let about = format!("Bowline at {}", device.addr);
    let mut files: Vec<(String, String)> = [
        ("board_id", "BOWLINE"),
        ("hca_type", "BOWLINE"),
        ("hw_rev", "0x0"),
        ("fw_ver", FW_VERSION),
        ("node_type", "1: CA"),
        ("node_desc", &about),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/rate", "25 Gb/sec (1X EDR)"),
        ("ports/1/cap_mask", "0x04010000"),
        ("ports/1/lid", "0x0"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0x0"),
        ("ports/1/lid_mask_count", "0x0"),
        ("ports/1/pkeys/0", "0xffff"),
    ]
    .map(|(file, text)| (file.to_owned(), text.to_owned()))
    .into();
    let groups =
        device.gid().raw.chunks(2).map(|c| format!("{:02x}{:02x}", c[0], c[1])).collect::<Vec<_>>();
    let interface = device.interface().map(|(name, _)| name);
    for index in 0..GIDS {
        files.push((format!("ports/1/gids/{index}"), groups.join(":")));
        files.push((format!("ports/1/gid_attrs/types/{index}"), "RoCE v2".to_owned()));
        let ndevs =
            interface.clone().map(|name| (format!("ports/1/gid_attrs/ndevs/{index}"), name));
        files.extend(ndevs);
    }
    let zeros = ["0000"; 8].join(":");
    files.extend((GIDS..GID_TABLE_LEN).map(|i| (format!("ports/1/gids/{i}"), zeros.clone())));
    files.extend(counters(&Counters::default()));
    files
}

/// The counters of a port under the kernel's names, and below `hw_counters` our own. Data is
/// counted in 4-byte words, as the standard requires.
fn counters(seen: &Counters) -> impl Iterator<Item = (String, String)> {
    let standard = [
        ("port_xmit_data", seen.tx_bytes / 4),
        ("port_rcv_data", seen.rx_bytes / 4),
        ("port_xmit_packets", seen.tx_packets),
        ("port_rcv_packets", seen.rx_packets),
        ("unicast_xmit_packets", seen.tx_packets),
        ("unicast_rcv_packets", seen.rx_packets),
        ("port_rcv_errors", seen.drop_malformed + seen.drop_icrc),
        ("port_xmit_discards", 0),
        ("port_xmit_wait", 0),
        ("symbol_error", 0),
        ("link_downed", 0),
        ("link_error_recovery", 0),
    ];
    let ours: Vec<_> = seen.iter().map(|(name, _, value)| (name, value)).collect();
    let standard = standard.map(|(name, n)| (format!("ports/1/counters/{name}"), n.to_string()));
    let ours =
        ours.into_iter().map(|(name, n)| (format!("ports/1/hw_counters/{name}"), n.to_string()));
    standard.into_iter().chain(ours)
}

/// Updates the counters under a path that is about to be read.
pub(super) fn refresh(root: &Path, path: &[u8]) {
    let Some((device, file)) = std::str::from_utf8(path).ok().and_then(split) else { return };
    if !file.starts_with("ports/1/counters/") && !file.starts_with("ports/1/hw_counters/") {
        return;
    }
    let seen = report::counters_of(device);
    if let Some((_, text)) = counters(&seen).find(|(name, _)| name == file) {
        let to = tree::below(root, &format!("{CLASS}/{}/{file}", device.name));
        // On failure the old contents stay.
        let _ = tree::write(&to, &text);
    }
}

/// The device and the file that a path names.
fn split(path: &str) -> Option<(&'static Device, &str)> {
    let (name, file) = path.strip_prefix(CLASS)?.strip_prefix('/')?.split_once('/')?;
    Some((device::all().iter().find(|d| d.name == name)?, file))
}

/// The contents for a path, if it is one of ours.
fn find(dir: &str, file: &str) -> Option<Option<String>> {
    let path = format!("{dir}/{file}");
    let (device, file) = split(&path)?;
    Some(files(device).into_iter().find_map(|(name, text)| (name == file).then_some(text)))
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
        // SAFETY: `len` and the null byte behind it fit `size`, and nothing is written into 0
        // bytes.
        unsafe {
            if size > 0 {
                core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buf, len);
                *buf.add(len) = 0;
            }
        }
        len as c_int
    })
}

/// A real file, for requests about other devices.
fn read(path: &str, max: usize) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(max as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned())
}
