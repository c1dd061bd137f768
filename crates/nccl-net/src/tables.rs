//! The symbols that NCCL looks for, from the newest version down.
//!
//! There is no `makeVDevice`: NCCL would use it to merge devices into one, which has no benefit
//! here.

use crate::abi::{Name, NetV8, NetV9, NetV10, NetV11};
use crate::calls::*;

/// The name for `NCCL_NET` and `ncclConfig_t::netName`.
const NAME: Name = Name(c"Bowline".as_ptr());

/// The interface of version 8.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclNetPlugin_v8: NetV8 = NetV8 {
    name: NAME,
    init: init_v8,
    devices,
    get_properties: properties_v8,
    listen: listen_v8,
    connect: connect_v8,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v8,
    irecv: irecv_v8,
    iflush,
    test,
    close_send,
    close_recv,
    close_listen,
    get_device_mr: Some(get_device_mr),
    irecv_consumed: Some(irecv_consumed),
};

/// The interface of version 9.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclNetPlugin_v9: NetV9 = NetV9 {
    name: NAME,
    init: init_v8,
    devices,
    get_properties: properties_v9,
    listen: listen_v8,
    connect: connect_v8,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v9,
    irecv: irecv_v9,
    iflush,
    test,
    close_send,
    close_recv,
    close_listen,
    get_device_mr: Some(get_device_mr),
    irecv_consumed: Some(irecv_consumed),
    make_v_device: None,
};

/// The interface of version 10.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclNetPlugin_v10: NetV10 = NetV10 {
    name: NAME,
    init: init_v10,
    devices,
    get_properties: properties_v9,
    listen: listen_v8,
    connect: connect_v10,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v10,
    irecv: irecv_v10,
    iflush,
    test,
    close_send,
    close_recv,
    close_listen,
    get_device_mr: Some(get_device_mr),
    irecv_consumed: Some(irecv_consumed),
    make_v_device: None,
};

/// The interface of version 11.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclNetPlugin_v11: NetV11 = NetV11 {
    name: NAME,
    init: init_v11,
    devices,
    get_properties: properties_v11,
    listen: listen_v11,
    connect: connect_v11,
    accept,
    reg_mr,
    reg_mr_dma_buf,
    dereg_mr,
    isend: isend_v10,
    irecv: irecv_v10,
    iflush,
    test,
    close_send,
    close_recv,
    close_listen,
    get_device_mr: Some(get_device_mr),
    irecv_consumed: Some(irecv_consumed),
    make_v_device: None,
    finalize,
    set_net_attr: Some(set_net_attr),
};
