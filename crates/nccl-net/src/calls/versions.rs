//! The functions whose arguments differ between versions.

use std::ffi::c_int;

use super::{Void, connect_by, give, listen_on, receive, send, start, traffic_class};
use crate::abi::{
    CommConfig, DeviceHandle, Logger, NetAttr, Profiler, PropertiesV8, PropertiesV9, PropertiesV11,
    SUCCESS, Status,
};
use crate::devices;
use crate::objects;
use crate::status::{Trouble, guard};

pub(crate) unsafe extern "C" fn init_v8(logger: Option<Logger>) -> Status {
    guard(|| start(logger))
}

pub(crate) unsafe extern "C" fn init_v10(logger: Option<Logger>, _: Option<Profiler>) -> Status {
    guard(|| start(logger))
}

/// The context of a communicator is its traffic class plus one, because 0 would be null.
pub(crate) unsafe extern "C" fn init_v11(
    context: *mut Void,
    _: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
    _: Option<Profiler>,
) -> Status {
    guard(|| {
        start(logger)?;
        // SAFETY: NCCL's pointers are valid.
        unsafe { give(context, objects::pointer(usize::from(traffic_class(config)) + 1)) }
    })
}

pub(crate) unsafe extern "C" fn finalize(_: Void) -> Status {
    SUCCESS
}

/// NCCL's hints about future operations have no effect here.
pub(crate) unsafe extern "C" fn set_net_attr(_: Void, _: *const NetAttr) -> Status {
    SUCCESS
}

pub(crate) unsafe extern "C" fn properties_v8(dev: c_int, place: *mut PropertiesV8) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { give(place, devices::get(dev)?.properties_v8()) })
}

pub(crate) unsafe extern "C" fn properties_v9(dev: c_int, place: *mut PropertiesV9) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { give(place, devices::get(dev)?.properties_v9(dev)) })
}

pub(crate) unsafe extern "C" fn properties_v11(dev: c_int, place: *mut PropertiesV11) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { give(place, devices::get(dev)?.properties_v11(dev)) })
}

pub(crate) unsafe extern "C" fn listen_v8(dev: c_int, handle: Void, comm: *mut Void) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { listen_on(dev, handle, comm) })
}

pub(crate) unsafe extern "C" fn listen_v11(
    _: Void,
    dev: c_int,
    handle: Void,
    comm: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { listen_on(dev, handle, comm) })
}

pub(crate) unsafe extern "C" fn connect_v8(
    dev: c_int,
    handle: Void,
    comm: *mut Void,
    device: *mut *mut DeviceHandle,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { connect_by(dev, 0, handle, comm, device) })
}

pub(crate) unsafe extern "C" fn connect_v10(
    dev: c_int,
    config: *const CommConfig,
    handle: Void,
    comm: *mut Void,
    device: *mut *mut DeviceHandle,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { connect_by(dev, traffic_class(config), handle, comm, device) })
}

pub(crate) unsafe extern "C" fn connect_v11(
    context: Void,
    dev: c_int,
    handle: Void,
    comm: *mut Void,
    device: *mut *mut DeviceHandle,
) -> Status {
    let class = u8::try_from(context.addr().saturating_sub(1)).unwrap_or(0);
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { connect_by(dev, class, handle, comm, device) })
}

pub(crate) unsafe extern "C" fn isend_v8(
    comm: Void,
    data: Void,
    size: c_int,
    tag: c_int,
    memory: Void,
    request: *mut Void,
) -> Status {
    guard(|| {
        let size = usize::try_from(size);
        let size = size.map_err(|_| Trouble::argument("the size of a send is negative"))?;
        // SAFETY: NCCL's pointers are valid.
        unsafe { send(comm, data, size, tag, memory, request) }
    })
}

pub(crate) unsafe extern "C" fn isend_v9(
    comm: Void,
    data: Void,
    size: usize,
    tag: c_int,
    memory: Void,
    request: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { send(comm, data, size, tag, memory, request) })
}

pub(crate) unsafe extern "C" fn isend_v10(
    comm: Void,
    data: Void,
    size: usize,
    tag: c_int,
    memory: Void,
    _: Void,
    request: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { send(comm, data, size, tag, memory, request) })
}

pub(crate) unsafe extern "C" fn irecv_v8(
    comm: Void,
    count: c_int,
    data: *const Void,
    sizes: *const c_int,
    tags: *const c_int,
    memories: *const Void,
    request: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { receive(comm, count, data, sizes, tags, memories, request) })
}

pub(crate) unsafe extern "C" fn irecv_v9(
    comm: Void,
    count: c_int,
    data: *const Void,
    sizes: *const usize,
    tags: *const c_int,
    memories: *const Void,
    request: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { receive(comm, count, data, sizes, tags, memories, request) })
}

#[allow(clippy::too_many_arguments, reason = "as the header has it")]
pub(crate) unsafe extern "C" fn irecv_v10(
    comm: Void,
    count: c_int,
    data: *const Void,
    sizes: *const usize,
    tags: *const c_int,
    memories: *const Void,
    _: *const Void,
    request: *mut Void,
) -> Status {
    // SAFETY: NCCL's pointers are valid.
    guard(|| unsafe { receive(comm, count, data, sizes, tags, memories, request) })
}
