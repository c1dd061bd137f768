//! The system's libibverbs, loaded when it is first asked for.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use bowline_verbs_types::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

use crate::VerbsError;

/// What every distribution calls it.
const SONAME: &str = "libibverbs.so.1";
/// Names another library.
const VARIABLE: &str = "BOWLINE_LIBIBVERBS";

/// The library that is loaded: what `BOWLINE_LIBIBVERBS` names, or the system's.
pub fn library_path() -> PathBuf {
    std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(SONAME), PathBuf::from)
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library that are called by name. Those of the data path are in a
        /// context's table. Who calls one keeps the promises of its manual page.
        pub struct Library {
            $(
                /// libibverbs' function of this name.
                pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,
            )*
        }

        impl Library {
            /// The functions that `symbol` finds.
            ///
            /// # Safety
            /// What it finds under a name has that function's signature in the library's ABI.
            unsafe fn find(
                symbol: impl Fn(&'static CStr) -> Result<*mut c_void, String>,
            ) -> Result<Library, String> {
                Ok(Library {
                    $($name: {
                        const NAME: &CStr =
                            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!("an identifier has no zero byte"),
                            };
                        let found = symbol(NAME)?;
                        // SAFETY: the function of this name has this signature, by the caller's
                        // word.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event);
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    ibv_rereg_mr: fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq:
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();

/// Uses functions of this process instead of a library that is loaded: for a provider that is
/// linked in, as in tests. It must be called before the first device is opened or listed.
///
/// # Errors
/// If a function is missing, or a library is in use already.
///
/// # Safety
/// What `symbol` finds under a name of libibverbs' has that function's signature and keeps its
/// promises.
pub unsafe fn provide(
    symbol: impl Fn(&'static CStr) -> Option<*mut c_void>,
) -> Result<(), VerbsError> {
    let find = |name| symbol(name).ok_or_else(|| format!("{name:?} is not provided"));
    // SAFETY: by the caller's word.
    let library = unsafe { Library::find(find) };
    let library = library.map_err(|why| VerbsError::Library { why })?;
    let why = || VerbsError::Library { why: "another library is in use already".to_owned() };
    LOADED.set(Ok(library)).map_err(|_| why())
}

impl Library {
    /// The library. It is loaded once and stays: providers start threads and register handlers.
    pub fn get() -> Result<&'static Library, VerbsError> {
        let loaded = LOADED.get_or_init(Library::load);
        loaded.as_ref().map_err(|why| VerbsError::Library { why: why.clone() })
    }

    fn load() -> Result<Library, String> {
        let path = library_path();
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{} has a zero byte in its name", path.display()))?;
        // Its symbols stay its own: ours may be preloaded into the same process.
        // SAFETY: a C string that lives for the call; what the library does when it is loaded is
        // its own affair, as with every library of the system.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(linker_error());
        }
        // SAFETY: the library's functions are those of its ABI, whose names they have.
        unsafe { Library::find(|name| symbol(handle, name)) }
    }
}

/// A symbol in its default version.
fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a live handle, and a C string.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() { Err(linker_error()) } else { Ok(found) }
}

/// What the dynamic linker says about its last failure.
fn linker_error() -> String {
    // SAFETY: null, or a string that lives until the next call of this thread.
    unsafe {
        match libc::dlerror() {
            text if text.is_null() => "the dynamic linker does not say why".to_owned(),
            text => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}
