//! The function tables that NCCL looks up by name.

use std::ffi::{c_char, c_int, c_void};

use super::{
    CommConfig, DeviceHandle, Logger, NetAttr, Profiler, PropertiesV8, PropertiesV9, PropertiesV11,
    Status, VDevice,
};

type Void = *mut c_void;
type InitV8 = unsafe extern "C" fn(Option<Logger>) -> Status;
type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<Profiler>) -> Status;
type InitV11 = unsafe extern "C" fn(
    *mut Void,
    u64,
    *const CommConfig,
    Option<Logger>,
    Option<Profiler>,
) -> Status;
type Devices = unsafe extern "C" fn(*mut c_int) -> Status;
type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> Status;
type ListenV8 = unsafe extern "C" fn(c_int, Void, *mut Void) -> Status;
type ListenV11 = unsafe extern "C" fn(Void, c_int, Void, *mut Void) -> Status;
type ConnectV8 = unsafe extern "C" fn(c_int, Void, *mut Void, *mut *mut DeviceHandle) -> Status;
type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    Void,
    *mut Void,
    *mut *mut DeviceHandle,
) -> Status;
type ConnectV11 =
    unsafe extern "C" fn(Void, c_int, Void, *mut Void, *mut *mut DeviceHandle) -> Status;
type Accept = unsafe extern "C" fn(Void, *mut Void, *mut *mut DeviceHandle) -> Status;
type RegMr = unsafe extern "C" fn(Void, Void, usize, c_int, *mut Void) -> Status;
type RegMrDmaBuf = unsafe extern "C" fn(Void, Void, usize, c_int, u64, c_int, *mut Void) -> Status;
type DeregMr = unsafe extern "C" fn(Void, Void) -> Status;
type IsendV8 = unsafe extern "C" fn(Void, Void, c_int, c_int, Void, *mut Void) -> Status;
type IsendV9 = unsafe extern "C" fn(Void, Void, usize, c_int, Void, *mut Void) -> Status;
type IsendV10 = unsafe extern "C" fn(Void, Void, usize, c_int, Void, Void, *mut Void) -> Status;
/// Takes arrays of pointers, lengths, tags and registrations, and their length.
type IrecvV8 = unsafe extern "C" fn(
    Void,
    c_int,
    *const Void,
    *const c_int,
    *const c_int,
    *const Void,
    *mut Void,
) -> Status;
type IrecvV9 = unsafe extern "C" fn(
    Void,
    c_int,
    *const Void,
    *const usize,
    *const c_int,
    *const Void,
    *mut Void,
) -> Status;
type IrecvV10 = unsafe extern "C" fn(
    Void,
    c_int,
    *const Void,
    *const usize,
    *const c_int,
    *const Void,
    *const Void,
    *mut Void,
) -> Status;
type Iflush =
    unsafe extern "C" fn(Void, c_int, *const Void, *const c_int, *const Void, *mut Void) -> Status;
type Test = unsafe extern "C" fn(Void, *mut c_int, *mut c_int) -> Status;
type Close = unsafe extern "C" fn(Void) -> Status;
type GetDeviceMr = unsafe extern "C" fn(Void, Void, *mut Void) -> Status;
type IrecvConsumed = unsafe extern "C" fn(Void, c_int, Void) -> Status;
type MakeVDevice = unsafe extern "C" fn(*mut c_int, *const VDevice) -> Status;
type SetNetAttr = unsafe extern "C" fn(Void, *const NetAttr) -> Status;

/// A name for NCCL to read. It lives as long as the library.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Name(pub *const c_char);

// SAFETY: it points to constant bytes.
unsafe impl Sync for Name {}

/// `ncclNet_v8_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NetV8 {
    pub name: Name,
    pub init: InitV8,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV8>,
    pub listen: ListenV8,
    pub connect: ConnectV8,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV8,
    pub irecv: IrecvV8,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
}

/// `ncclNet_v9_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NetV9 {
    pub name: Name,
    pub init: InitV8,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV9>,
    pub listen: ListenV8,
    pub connect: ConnectV8,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV9,
    pub irecv: IrecvV9,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDevice>,
}

/// `ncclNet_v10_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NetV10 {
    pub name: Name,
    pub init: InitV10,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV9>,
    pub listen: ListenV8,
    pub connect: ConnectV10,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDevice>,
}

/// `ncclNet_v11_t`.
#[repr(C)]
#[derive(Debug)]
pub struct NetV11 {
    pub name: Name,
    pub init: InitV11,
    pub devices: Devices,
    pub get_properties: GetProperties<PropertiesV11>,
    pub listen: ListenV11,
    pub connect: ConnectV11,
    pub accept: Accept,
    pub reg_mr: RegMr,
    pub reg_mr_dma_buf: RegMrDmaBuf,
    pub dereg_mr: DeregMr,
    pub isend: IsendV10,
    pub irecv: IrecvV10,
    pub iflush: Iflush,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDevice>,
    pub finalize: Close,
    pub set_net_attr: Option<SetNetAttr>,
}
