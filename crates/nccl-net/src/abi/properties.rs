//! What a device reports to NCCL about itself.

use std::ffi::{c_char, c_int};

use super::MAX_DEVS_PER_NIC;

/// `ncclNetVDeviceProps_v9_t` to `_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VDevice {
    pub ndevs: c_int,
    pub devs: [c_int; MAX_DEVS_PER_NIC],
}

/// `ncclNetProperties_v8_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV8 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
}

/// `ncclNetProperties_v9_t` and `_v10_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV9 {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub latency: f32,
    pub max_comms: c_int,
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VDevice,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
}

/// `ncclNetProperties_v11_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PropertiesV11 {
    pub v9: PropertiesV9,
    pub max_multi_request_size: c_int,
}
