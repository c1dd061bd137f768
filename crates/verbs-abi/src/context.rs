//! Open devices.

use core::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_device::{Device as Core, DeviceError};

use crate::abi::{ibv_context, ibv_device, verbs_context};
use crate::async_event::Owners;
use crate::device::{self, Device};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::ops::ContextFds;
use crate::sys::{self, Watch};
use crate::{env, fork, log, ops, report, spec, unopened};

/// The only port of every device.
pub(crate) const PORT: u8 = 1;

/// An open device, and what programs make on it.
pub(crate) struct Context {
    pub(crate) device: &'static Device,
    core: Arc<Core>,
    /// How often connections check on silent peers, if at all.
    pub(crate) keepalive: Option<Duration>,
    /// The descriptor of asynchronous events that programs see.
    pub(crate) watch: Watch,
    /// Stands in for the descriptor through which other providers send commands: programs check
    /// that there is one, and import the device by it.
    commands: OwnedFd,
    /// Number of the program's pointers to it.
    pointers: AtomicUsize,
    /// The last handle assigned to an object.
    last_handle: AtomicU32,
    /// The process that opened it.
    epoch: u32,
    /// Objects made on it that live.
    pub(crate) objects: AtomicUsize,
    /// The owners of events.
    pub(crate) owners: Owners,
    /// The program has been told that the device died.
    pub(crate) told_fatal: AtomicBool,
}

/// What is behind a pointer to an open device.
pub(crate) struct Opened {
    ctx: Arc<Context>,
    /// The descriptor that it was imported by.
    imported_by: Mutex<Option<OwnedFd>>,
}

impl Public for verbs_context {
    type Inner = Opened;
    const KIND: Kind = Kind::Context;
}

impl Context {
    /// The device, if this process opened it.
    #[inline]
    pub(crate) fn core(&self) -> Result<&Arc<Core>, Errno> {
        if self.epoch != fork::epoch() {
            return Err(Errno::IO);
        }
        Ok(&self.core)
    }

    /// The device, for reading only, not for calls.
    pub(crate) fn peek(&self) -> &Core {
        &self.core
    }

    /// A handle that no other object of the device has had.
    pub(crate) fn next_handle(&self) -> u32 {
        self.last_handle.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Ends the device. Later verbs fail with `EIO`.
    pub(crate) fn shut_down(&self) {
        if let Ok(core) = self.core() {
            core.shut_down();
        }
    }
}

/// The open device behind a pointer.
pub(crate) fn find<'a>(context: *mut ibv_context) -> Result<&'a Arc<Context>, Errno> {
    if context.is_null() {
        return Err(Errno::INVAL);
    }
    Ok(&handle::find(container(context))?.ctx)
}

/// The structure that ends with this context.
fn container(context: *mut ibv_context) -> *mut verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// `ibv_open_device`.
///
/// # Safety
/// `device` must come from `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    guard(core::ptr::null_mut(), || object(device::find(device).and_then(open)))
}

fn open(device: &'static Device) -> Result<*mut ibv_context, Errno> {
    fork::watch();
    unopened::opened();
    let ctx = start(device).map_err(|(why, errno)| {
        log::warn(&format!("cannot open {} at {}: {why}", device.name, device.addr));
        errno
    })?;
    let via = ctx.core.via();
    let lanes = match ctx.core.lanes().len() {
        1 => String::new(),
        lanes => format!(", {lanes} lanes"),
    };
    log::info(&format!("opened {} at {} ({via}{lanes})", device.name, device.addr));
    report::opened(&ctx);
    Ok(point_to(ctx, None))
}

/// A pointer to an open device, for the program.
fn point_to(ctx: Arc<Context>, imported_by: Option<OwnedFd>) -> *mut ibv_context {
    ctx.pointers.fetch_add(1, Ordering::AcqRel);
    let vectors = std::thread::available_parallelism().map_or(1, |n| n.get() as c_int);
    let commands = imported_by.as_ref().unwrap_or(&ctx.commands).as_raw_fd();
    let fds = ContextFds { commands, events: ctx.watch.as_raw_fd() };
    let public = ops::verbs_context(ctx.device.as_ptr(), fds, vectors);
    let context = handle::create(public, Opened { ctx, imported_by: Mutex::new(imported_by) });
    context.wrapping_byte_add(offset_of!(verbs_context, context)).cast()
}

/// Another pointer to the open device with this command descriptor. Takes ownership of the
/// descriptor.
pub(crate) fn import(commands: c_int) -> Result<*mut ibv_context, Errno> {
    let id = sys::file_id(commands)?;
    let is_it = |opened: &Opened| {
        sys::file_id(opened.ctx.commands.as_raw_fd()) == Ok(id) && opened.ctx.core().is_ok()
    };
    let open = handle::search::<verbs_context>(is_it).ok_or(Errno::UNSUPPORTED)?;
    let ctx = Arc::clone(&handle::find(open)?.ctx);
    // SAFETY: open, or it would have no number; the verb takes it over from its caller.
    let commands = unsafe { OwnedFd::from_raw_fd(commands) };
    Ok(point_to(ctx, Some(commands)))
}

/// Why a device cannot be opened, in words and as a number.
type Refusal = (String, Errno);

/// Opens a device as the environment wants it.
fn start(device: &'static Device) -> Result<Arc<Context>, Refusal> {
    let spec = spec::of(device).map_err(|why| (why, Errno::INVAL))?;
    let keepalive = env::keepalive().map_err(|why| (why, Errno::INVAL))?;
    let refusal = |error: DeviceError| (error.to_string(), Errno::from(error));
    let core = spec.open().map_err(refusal)?;
    if let Some(backup) = &spec.backup {
        log::info(&format!("{}: failover ({}) to {}", device.name, backup.mode, backup.addr));
    }
    let watch = Watch::over(core.events().as_raw_fd());
    let watch = watch.map_err(|errno| ("no descriptor for its events".to_owned(), errno))?;
    let commands = sys::anonymous_file()
        .map_err(|errno| ("no descriptor for its commands".to_owned(), errno))?;
    Ok(Arc::new(Context {
        device,
        core,
        keepalive,
        watch,
        commands,
        pointers: AtomicUsize::new(0),
        last_handle: AtomicU32::new(0),
        epoch: fork::epoch(),
        objects: AtomicUsize::new(0),
        owners: Owners::default(),
        told_fatal: AtomicBool::new(false),
    }))
}

/// `ibv_close_device`. Objects left on it stay allocated, and calls on them fail.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    guard(-1, || code(find(context).and_then(|_| close(container(context)))))
}

fn close(context: *mut verbs_context) -> Result<(), Errno> {
    let Opened { ctx, imported_by } = handle::find(context)?;
    if ctx.core().is_err() {
        // A child's copy of the parent's device: the child must not close anything.
        return Ok(());
    }
    imported_by.lock().unwrap_or_else(PoisonError::into_inner).take();
    if ctx.pointers.fetch_sub(1, Ordering::AcqRel) == 1 {
        report::closing(ctx);
        ctx.shut_down();
    }
    if ctx.objects.load(Ordering::Acquire) > 0 {
        // Programs reach the context through them, so it must stay.
        log::info("a device was closed with objects left on it");
        return Ok(());
    }
    handle::destroy(context)
}

/// The all-ones value that marks a context whose structure is `verbs_context`.
pub(crate) const EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
