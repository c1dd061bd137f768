//! Sizes and offsets that a C compiler produces from NCCL's headers (release 2.28, x86-64 and
//! AArch64).

use std::mem::{offset_of, size_of};

use super::*;

macro_rules! offsets {
    ($type:ty: $($field:ident $offset:expr),+ $(,)?) => {
        $(assert_eq!(offset_of!($type, $field), $offset, stringify!($type, $field));)+
    };
}

#[test]
fn properties() {
    assert_eq!(size_of::<PropertiesV8>(), 64);
    offsets!(PropertiesV8: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28, speed 32,
        port 36, latency 40, max_comms 44, max_recvs 48, net_device_type 52, net_device_version 56);
    assert_eq!(size_of::<PropertiesV9>(), 104);
    offsets!(PropertiesV9: name 0, pci_path 8, guid 16, ptr_support 24, reg_is_global 28,
        force_flush 32, speed 36, port 40, latency 44, max_comms 48, max_recvs 52,
        net_device_type 56, net_device_version 60, v_props 64, max_p2p_bytes 88, max_coll_bytes 96);
    assert_eq!(size_of::<PropertiesV11>(), 112);
    offsets!(PropertiesV11: v9 0, max_multi_request_size 104);
    assert_eq!(size_of::<VDevice>(), 20);
}

#[test]
fn small_structures() {
    assert_eq!(size_of::<CommConfig>(), 4);
    assert_eq!(size_of::<NetAttr>(), 44);
    assert_eq!(size_of::<DeviceHandle>(), 32);
}

#[test]
fn tables() {
    let sizes = [size_of::<NetV8>(), size_of::<NetV9>(), size_of::<NetV10>(), size_of::<NetV11>()];
    assert_eq!(sizes, [152, 160, 160, 176]);
    macro_rules! table {
        ($type:ty) => {
            offsets!($type: name 0, init 8, devices 16, get_properties 24, listen 32, connect 40,
                accept 48, reg_mr 56, reg_mr_dma_buf 64, dereg_mr 72, isend 80, irecv 88, iflush 96,
                test 104, close_send 112, close_recv 120, close_listen 128, get_device_mr 136,
                irecv_consumed 144);
        };
    }
    table!(NetV8);
    table!(NetV9);
    table!(NetV10);
    table!(NetV11);
    offsets!(NetV9: make_v_device 152);
    offsets!(NetV10: make_v_device 152);
    offsets!(NetV11: make_v_device 152, finalize 160, set_net_attr 168);
}
