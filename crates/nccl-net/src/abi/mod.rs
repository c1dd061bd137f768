//! The binary interface of NCCL's network plug-ins, written from the layout of its public headers.
//! A test compares every offset with the result of a C compiler on those headers.

#![allow(missing_docs, reason = "fields and functions are named as in the headers, which say more")]

mod properties;
mod tables;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_ulong, c_void};

pub use properties::{PropertiesV8, PropertiesV9, PropertiesV11, VDevice};
pub use tables::{Name, NetV8, NetV9, NetV10, NetV11};

/// `ncclResult_t`.
pub type Status = c_int;
pub const SUCCESS: Status = 0;
pub const SYSTEM_ERROR: Status = 2;
pub const INTERNAL_ERROR: Status = 3;
pub const INVALID_ARGUMENT: Status = 4;
pub const INVALID_USAGE: Status = 5;
pub const REMOTE_ERROR: Status = 6;

/// `NCCL_NET_HANDLE_MAXSIZE`: length of the data that one end sends the other through NCCL.
pub const HANDLE_BYTES: usize = 128;
/// `NCCL_NET_MAX_REQUESTS`: maximum number of open requests of a connection.
pub const MAX_REQUESTS: usize = 32;
/// `NCCL_NET_MAX_DEVS_PER_NIC` of these versions.
pub const MAX_DEVS_PER_NIC: usize = 4;
/// `MAX_NET_SIZE`: the maximum message length, for versions in which NCCL does not ask.
pub const MAX_NET_SIZE: usize = 1 << 30;
/// `NCCL_PTR_HOST`, `NCCL_PTR_CUDA`, `NCCL_PTR_DMABUF`: kinds of memory.
pub const PTR_HOST: c_int = 1;
pub const PTR_CUDA: c_int = 2;
pub const PTR_DMABUF: c_int = 4;
/// `NCCL_NET_DEVICE_HOST`: the host drives the network.
pub const DEVICE_HOST: c_int = 0;
/// `NCCL_NET_TRAFFIC_CLASS_UNDEF`.
pub const TRAFFIC_CLASS_UNDEF: c_int = -1;

/// `ncclDebugLogger_t`.
pub type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
/// `ncclProfilerCallback_t`.
pub type Profiler =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> Status;

/// `ncclNetCommConfig_v10_t` and `_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommConfig {
    pub traffic_class: c_int,
}

/// `ncclNetCommAttr_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommAttr {
    pub max_concurrent_peers: i32,
    pub min_concurrent_peers: i32,
    pub max_flows_per_peer: i32,
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NetAttr {
    pub send: CommAttr,
    pub recv: CommAttr,
    pub op: u32,
    pub algo: u32,
    pub proto: u32,
}

/// `ncclNetDeviceHandle_v7_t` to `_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceHandle {
    pub device_type: c_int,
    pub device_version: c_int,
    pub handle: *mut c_void,
    pub size: usize,
    pub needs_proxy_progress: c_int,
}
