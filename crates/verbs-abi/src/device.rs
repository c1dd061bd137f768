//! The list of devices.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;
use std::net::IpAddr;
use std::sync::OnceLock;

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device, ibv_gid};
use crate::env::{self, DeviceSpec};
use crate::errno::Errno;
use crate::gid;
use crate::guard::guard;

/// A device that programs can open. It lives as long as the process.
#[repr(C)]
pub(crate) struct Device {
    public: ibv_device,
    /// Providers linked into a program look after the structure for signs that a device is theirs:
    /// they find zeros.
    nothing: [u64; 64],
    pub(crate) name: String,
    pub(crate) c_name: CString,
    pub(crate) addr: IpAddr,
    pub(crate) index: c_int,
}

// SAFETY: the only pointers are the two null ones of `public.ops`; nobody writes to a device.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    fn new(index: usize, spec: DeviceSpec) -> Device {
        let public = ibv_device {
            ops: [core::ptr::null(); 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: text(&spec.name),
            dev_name: text(&format!("uverbs{index}")),
            dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
            ibdev_path: text(&format!("{}/{}", crate::files::sysfs::CLASS, spec.name)),
        };
        // A name of the environment has no null byte, and the parser refuses one.
        let c_name = CString::new(spec.name.clone()).unwrap_or_default();
        Device {
            public,
            nothing: [0; 64],
            name: spec.name,
            c_name,
            addr: spec.addr,
            index: index as c_int,
        }
    }

    /// The pointer that programs get.
    pub(crate) fn as_ptr(&'static self) -> *mut ibv_device {
        debug_assert_eq!(self.nothing[0], 0);
        (&raw const self.public).cast_mut()
    }

    /// Its permanent identifier, derived from its address.
    pub(crate) fn guid(&self) -> u64 {
        match self.addr {
            // A locally administered EUI-64: "Bow", then the address.
            IpAddr::V4(v4) => 0x0242_6f77_0000_0000 | u64::from(u32::from(v4)),
            IpAddr::V6(v6) => (u128::from(v6) as u64) | 0x0200_0000_0000_0000,
        }
    }

    /// Its only GID.
    pub(crate) fn gid(&self) -> ibv_gid {
        gid::of_addr(self.addr)
    }

    /// Name and index of its network interface.
    pub(crate) fn interface(&self) -> Option<(String, u32)> {
        let local = bowline_io::local_address(self.addr).ok()??;
        Some((local.interface, local.index))
    }
}

/// A C string in an array of fixed size, truncated if necessary.
fn text<const N: usize>(string: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(string.bytes()) {
        *to = from as c_char;
    }
    out
}

/// All devices.
pub(crate) fn all() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        env::devices().into_iter().enumerate().map(|(i, spec)| Device::new(i, spec)).collect()
    })
}

/// The device behind a pointer.
pub(crate) fn find(pointer: *const ibv_device) -> Result<&'static Device, Errno> {
    all().iter().find(|d| core::ptr::eq(d.as_ptr(), pointer)).ok_or(Errno::INVAL)
}

/// `ibv_get_device_list`: a null-terminated array of all devices.
///
/// # Safety
/// `count` must be null or point to an `int`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard(core::ptr::null_mut(), || {
        let devices = all();
        if !count.is_null() {
            // SAFETY: not null, so an `int` by the caller's word.
            unsafe { *count = devices.len() as c_int };
        }
        // SAFETY: `calloc` may be called with any sizes; the result is checked.
        let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }
            .cast::<*mut ibv_device>();
        if list.is_null() {
            Errno::NOMEM.set();
            return list;
        }
        for (i, device) in devices.iter().enumerate() {
            // SAFETY: the array has a place for every device and one more.
            unsafe { *list.add(i) = device.as_ptr() };
        }
        list
    })
}

/// `ibv_free_device_list`. The devices stay.
///
/// # Safety
/// `list` must be null or come from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: it came from `calloc`, or is null, which `free` allows.
    unsafe { libc::free(list.cast::<c_void>()) };
}

/// `ibv_get_device_name`.
///
/// # Safety
/// `device` must come from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    guard(core::ptr::null(), || find(device).map_or(core::ptr::null(), |d| d.c_name.as_ptr()))
}

/// `ibv_get_device_index`.
///
/// # Safety
/// `device` must come from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    guard(-1, || find(device).map_or(-1, |d| d.index))
}

/// `ibv_get_device_guid`, in network byte order.
///
/// # Safety
/// `device` must come from [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    guard(0, || find(device).map_or(0, |d| d.guid().to_be()))
}
