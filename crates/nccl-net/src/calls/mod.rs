//! The functions that NCCL calls and that are the same in all versions; `versions` has those that
//! differ.
//!
//! NCCL adheres to its headers: pointers to results can be written, arrays have as many elements as
//! the count beside them, a handle has 128 bytes, and registered memory stays valid until it is
//! deregistered or its connection is closed.

mod versions;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub(crate) use versions::*;

use crate::abi::{
    CommConfig, DeviceHandle, HANDLE_BYTES, Logger, PTR_HOST, Status, TRAFFIC_CLASS_UNDEF,
};
use crate::comm::{Arrival, MAX_BYTES, MAX_GROUP, Wish};
use crate::config::Config;
use crate::objects::{self, Object, lock, wrong_kind};
use crate::setup::{self, Listening};
use crate::status::{Trouble, guard};
use crate::{devices, log};

type Void = *mut c_void;

/// Writes a result.
///
/// # Safety
/// `place` is null, or can be written.
unsafe fn give<T>(place: *mut T, value: T) -> Result<(), Trouble> {
    if place.is_null() {
        return Err(Trouble::argument("the pointer for the result is NULL"));
    }
    // SAFETY: upheld by the caller.
    unsafe { place.write(value) };
    Ok(())
}

/// The first `count` elements of an array.
///
/// # Safety
/// `array` is null, or has this many elements, which nothing changes during the call.
unsafe fn elements<'a, T>(array: *const T, count: usize, what: &str) -> Result<&'a [T], Trouble> {
    if array.is_null() {
        return Err(Trouble::argument(format!("the array of {what} is NULL")));
    }
    // SAFETY: upheld by the caller.
    Ok(unsafe { std::slice::from_raw_parts(array, count) })
}

/// Initialises the log, and checks the settings from the environment.
fn start(logger: Option<Logger>) -> Result<(), Trouble> {
    log::set(logger);
    let (config, nics) = (Config::get()?, devices::all()?);
    let (transport, release) = (config.transport.name(), env!("CARGO_PKG_VERSION"));
    log::info(&format!("release {release}, {} device(s), transport {transport}", nics.len()));
    Ok(())
}

/// The traffic class that NCCL's configuration asks for.
///
/// # Safety
/// `config` is null, or valid.
unsafe fn traffic_class(config: *const CommConfig) -> u8 {
    // SAFETY: upheld by the caller.
    let class = unsafe { config.as_ref() }.map_or(TRAFFIC_CLASS_UNDEF, |c| c.traffic_class);
    u8::try_from(class).unwrap_or(0)
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    // SAFETY: NCCL's pointers are valid, as the module says.
    guard(|| unsafe { give(count, devices::all()?.len() as c_int) })
}

/// Listens on a device.
///
/// # Safety
/// The arguments are NCCL's.
unsafe fn listen_on(dev: c_int, handle: Void, listener: *mut Void) -> Result<(), Trouble> {
    let (listening, bytes) = Listening::start(dev)?;
    // SAFETY: upheld by the caller; a handle has this many bytes.
    unsafe {
        give(handle.cast::<[u8; HANDLE_BYTES]>(), bytes)?;
        give(listener, objects::add(Object::Listen(listening.into())))
    }
}

/// Connects over a device. The result is null until the connection is established.
///
/// # Safety
/// The arguments are NCCL's.
unsafe fn connect_by(
    dev: c_int,
    class: u8,
    handle: Void,
    comm: *mut Void,
    device: *mut *mut DeviceHandle,
) -> Result<(), Trouble> {
    // SAFETY: upheld by the caller; a handle has this many bytes.
    unsafe {
        give(comm, null_mut())?;
        no_offload(device);
        let bytes = elements(handle.cast::<[u8; HANDLE_BYTES]>(), 1, "bytes of the handle")?;
        match setup::connect(dev, &bytes[0], class)? {
            Some(sender) => give(comm, sender),
            None => Ok(()),
        }
    }
}

/// Reports that GPUs do not drive the connection.
///
/// # Safety
/// `device` is null, or can be written.
unsafe fn no_offload(device: *mut *mut DeviceHandle) {
    if !device.is_null() {
        // SAFETY: upheld by the caller.
        unsafe { device.write(null_mut()) };
    }
}

pub(crate) unsafe extern "C" fn accept(
    listener: Void,
    comm: *mut Void,
    device: *mut *mut DeviceHandle,
) -> Status {
    guard(|| {
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe {
            give(comm, null_mut())?;
            no_offload(device);
        }
        let object = objects::get(listener)?;
        let Object::Listen(listening) = &*object else {
            return Err(wrong_kind(&object, "a listener"));
        };
        match lock(listening)?.accept()? {
            // SAFETY: as above.
            Some(receiver) => unsafe { give(comm, receiver) },
            None => Ok(()),
        }
    })
}

pub(crate) unsafe extern "C" fn reg_mr(
    comm: Void,
    data: Void,
    size: usize,
    kind: c_int,
    memory: *mut Void,
) -> Status {
    guard(|| {
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(memory, null_mut()) }?;
        if kind != PTR_HOST {
            let why = format!("memory of kind {kind}: only host memory (1) can be registered");
            return Err(Trouble::usage(why));
        }
        let (object, addr) = (objects::get(comm)?, data.expose_provenance());
        // SAFETY: NCCL keeps the memory until it deregisters it or closes the connection.
        let number = unsafe {
            match &*object {
                Object::Send(sender) => lock(sender)?.register(addr, size)?,
                Object::Recv(receiver) => lock(receiver)?.register(addr, size)?,
                Object::Listen(_) => return Err(wrong_kind(&object, "a connection")),
            }
        };
        // SAFETY: as above.
        unsafe { give(memory, objects::pointer(number)) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    _: Void,
    _: Void,
    _: usize,
    _: c_int,
    _: u64,
    _: c_int,
    memory: *mut Void,
) -> Status {
    guard(|| {
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(memory, null_mut()) }?;
        let why = "DMA-BUF memory cannot be registered: the soft NIC reaches host memory only, as \
                   ptrSupport says";
        Err(Trouble::usage(why))
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(comm: Void, memory: Void) -> Status {
    guard(|| {
        let (object, number) = (objects::get(comm)?, memory.addr());
        match &*object {
            Object::Send(sender) => lock(sender)?.deregister(number),
            Object::Recv(receiver) => lock(receiver)?.deregister(number),
            Object::Listen(_) => Err(wrong_kind(&object, "a connection")),
        }
    })
}

/// Returns a request of a connection, if it has started.
///
/// # Safety
/// The arguments are NCCL's.
unsafe fn give_request(place: *mut Void, comm: Void, begun: Option<usize>) -> Result<(), Trouble> {
    let Some(index) = begun else {
        // NCCL will ask again. Meanwhile, drive requests that NCCL does not poll.
        objects::drive_all();
        return Ok(());
    };
    // SAFETY: upheld by the caller.
    unsafe { give(place, objects::request(comm, index)) }
}

/// Sends. The result is null if the peer is not ready.
///
/// # Safety
/// The arguments are NCCL's.
unsafe fn send(
    comm: Void,
    data: Void,
    size: usize,
    tag: c_int,
    memory: Void,
    request: *mut Void,
) -> Result<(), Trouble> {
    // SAFETY: upheld by the caller.
    unsafe { give(request, null_mut()) }?;
    let object = objects::get(comm)?;
    let Object::Send(sender) = &*object else {
        return Err(wrong_kind(&object, "a send connection"));
    };
    if size > MAX_BYTES {
        let why = format!("a send of {size} bytes is too long: at most {MAX_BYTES} bytes");
        return Err(Trouble::argument(why));
    }
    let begun = lock(sender)?.send(data.addr(), size, tag, memory.addr())?;
    // SAFETY: as above.
    unsafe { give_request(request, comm, begun) }
}

/// Receives. The result is null if too many requests are open. Its initial value, by which NCCL may
/// say that it need not be told of the end, is ignored: the end is always reported.
///
/// # Safety
/// The arguments are NCCL's.
unsafe fn receive<S: Copy + TryInto<usize>>(
    comm: Void,
    count: c_int,
    data: *const Void,
    sizes: *const S,
    tags: *const c_int,
    memories: *const Void,
    request: *mut Void,
) -> Result<(), Trouble> {
    // SAFETY: upheld by the caller.
    unsafe { give(request, null_mut()) }?;
    let object = objects::get(comm)?;
    let Object::Recv(receiver) = &*object else {
        return Err(wrong_kind(&object, "a receive connection"));
    };
    let Some(count) = usize::try_from(count).ok().filter(|count| (1..=MAX_GROUP).contains(count))
    else {
        let why = format!("invalid number of receives {count}: use 1 to {MAX_GROUP}");
        return Err(Trouble::argument(why));
    };
    // SAFETY: upheld by the caller.
    let (data, sizes, tags, memories) = unsafe {
        (
            elements(data, count, "addresses")?,
            elements(sizes, count, "sizes")?,
            elements(tags, count, "tags")?,
            elements(memories, count, "registrations")?,
        )
    };
    let negative = |_| Trouble::argument("the size of a receive is negative");
    let wish = |i: usize| -> Result<Wish, Trouble> {
        let len = sizes[i].try_into().map_err(|_| ()).map_err(negative)?;
        Ok(Wish { addr: data[i].addr(), len, tag: tags[i], memory: memories[i].addr() })
    };
    let wishes = (0..count).map(wish).collect::<Result<Vec<_>, _>>()?;
    let begun = lock(receiver)?.recv(&wishes)?;
    // SAFETY: upheld by the caller.
    unsafe { give_request(request, comm, begun) }
}

/// Data in host memory is visible when a receive has completed, so there is nothing to wait for.
pub(crate) unsafe extern "C" fn iflush(
    comm: Void,
    _: c_int,
    _: *const Void,
    _: *const c_int,
    _: *const Void,
    request: *mut Void,
) -> Status {
    guard(|| {
        let object = objects::get(comm)?;
        let Object::Recv(_) = &*object else {
            return Err(wrong_kind(&object, "a receive connection"));
        };
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(request, null_mut()) }
    })
}

pub(crate) unsafe extern "C" fn test(request: Void, done: *mut c_int, sizes: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(done, 0) }?;
        let (object, index) = (objects::get(request)?, objects::request_index(request)?);
        let over = match &*object {
            Object::Send(sender) => lock(sender)?.test(index)?.map(Arrival::of_one),
            Object::Recv(receiver) => lock(receiver)?.test(index)?,
            Object::Listen(_) => return Err(wrong_kind(&object, "a request")),
        };
        let Some(Arrival { count, lens }) = over else {
            // Meanwhile, drive requests that NCCL does not poll.
            objects::drive_all();
            return Ok(());
        };
        if !sizes.is_null() {
            for (i, len) in lens[..count].iter().enumerate() {
                // SAFETY: NCCL provides a place for each receive of the request, and one for a
                // send.
                unsafe { sizes.add(i).write(*len as c_int) };
            }
        }
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(done, 1) }
    })
}

pub(crate) unsafe extern "C" fn close_send(comm: Void) -> Status {
    close(comm, "a send connection", |object| matches!(object, Object::Send(_)))
}

pub(crate) unsafe extern "C" fn close_recv(comm: Void) -> Status {
    close(comm, "a receive connection", |object| matches!(object, Object::Recv(_)))
}

pub(crate) unsafe extern "C" fn close_listen(comm: Void) -> Status {
    close(comm, "a listener", |object| matches!(object, Object::Listen(_)))
}

fn close(handle: Void, wanted: &str, is_wanted: impl FnOnce(&Object) -> bool) -> Status {
    guard(|| {
        let object = objects::get(handle)?;
        if !is_wanted(&object) {
            return Err(wrong_kind(&object, wanted));
        }
        match &*objects::take(handle)? {
            Object::Send(sender) => lock(sender)?.close(),
            Object::Recv(receiver) => lock(receiver)?.close(),
            Object::Listen(_) => {}
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_device_mr(_: Void, _: Void, place: *mut Void) -> Status {
    guard(|| {
        // SAFETY: NCCL's pointers are valid, as the module says.
        unsafe { give(place, null_mut()) }?;
        Err(Trouble::usage("GPUs do not drive this network: netDeviceType says host"))
    })
}

/// NCCL calls this for every receive that its kernels are done with. Nothing waits for that.
pub(crate) unsafe extern "C" fn irecv_consumed(_: Void, _: c_int, _: Void) -> Status {
    crate::abi::SUCCESS
}
