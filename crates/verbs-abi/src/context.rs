//! Open devices.

use core::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_fec::{Fec, FecConfig};
use bowline_io::control::ControlServer;
use bowline_io::{
    Impair, Lane, LaneConfig, LinkProfile, LinkState, PcapTap, Port, PortError, RegistryError,
    Sharing, UdpConfig, Via,
};
use bowline_nic::{Mtu, Nic, NicConfig, Time};
use bowline_rails::{Rail, Rails, RailsError};

use crate::abi::{ibv_context, ibv_device, verbs_context};
use crate::async_event::Owners;
use crate::device::{self, Device};
use crate::errno::{Errno, code, object};
use crate::guard::guard;
use crate::handle::{self, Kind, Public};
use crate::{env, failover, fork, log, ops, report, sys};

/// The only port of every device.
pub(crate) const PORT: u8 = 1;

/// An open device: one lane, and what programs make on it.
pub(crate) struct Context {
    pub(crate) device: &'static Device,
    lane: Arc<Lane>,
    /// The lane and its backup as one, if the environment asks for it.
    pub(crate) rails: Option<Rails>,
    /// Tell `bowline devinfo` about it, and about its backup.
    control: Mutex<Vec<ControlServer>>,
    /// Under all connections, if the environment asks for it.
    pub(crate) fec: Option<Fec>,
    /// What the NIC was made with: its limits.
    pub(crate) limits: NicConfig,
    /// Which process opened it.
    epoch: u32,
    /// Objects made on it that live.
    pub(crate) objects: AtomicUsize,
    /// To whom events belong.
    pub(crate) owners: Owners,
    /// The program has been told that the device died.
    pub(crate) told_fatal: AtomicBool,
}

impl Public for verbs_context {
    type Inner = Arc<Context>;
    const KIND: Kind = Kind::Context;
}

impl Context {
    /// The lane, if this process opened it.
    #[inline]
    pub(crate) fn lane(&self) -> Result<&Lane, Errno> {
        if self.epoch != fork::epoch() {
            return Err(Errno::IO);
        }
        Ok(&self.lane)
    }

    /// Whether the port carries anything: its own NIC, or the backup in its place.
    pub(crate) fn link(&self) -> LinkState {
        self.rails.as_ref().map_or_else(|| self.lane.link(), Rails::link)
    }

    /// Calls the NIC; what that makes ready leaves at once.
    pub(crate) fn control<R, E>(
        &self,
        verb: impl FnOnce(&mut Nic, Time) -> Result<R, E>,
    ) -> Result<R, Errno>
    where
        Errno: From<E>,
    {
        Ok(self.lane()?.with(verb)??)
    }

    /// Makes the counterpart of an object that has just been made; without one, the program goes on
    /// without a backup for it.
    pub(crate) fn shadow<R>(
        &self,
        what: &str,
        make: impl FnOnce(&Rails) -> Result<R, RailsError>,
    ) -> Option<R> {
        let made = make(self.rails.as_ref()?);
        made.inspect_err(|e| log::warn(&format!("failover: no backup for a {what}: {e}"))).ok()
    }

    /// Ends the counterpart of an object that is gone. What goes wrong leaves it to the device's end.
    pub(crate) fn forget(&self, what: &str, end: impl FnOnce(&Rails) -> Result<(), RailsError>) {
        if let Some(Err(error)) = self.rails.as_ref().map(end) {
            log::debug(|| format!("failover: the backup of a {what} stays: {error}"));
        }
    }

    /// The caller, who has polled until now, is about to sleep.
    pub(crate) fn stop_polling(&self) -> Result<(), Errno> {
        self.lane()?.stop_polling();
        if let Some(rails) = &self.rails {
            rails.lane(Rail::Backup).stop_polling();
        }
        Ok(())
    }

    /// Begins to answer those who ask about the device and its backup.
    fn listen(self: &Arc<Context>) {
        let ctx = Arc::downgrade(self);
        let mut servers = vec![ControlServer::start(&self.device.name, move |line| {
            ctx.upgrade().map_or_else(String::new, |ctx| report::answer(&ctx, line))
        })];
        if let Some(rails) = &self.rails {
            let name = failover::backup_name(self.device);
            servers.push(ControlServer::for_lane(&name, rails.lane(Rail::Backup)));
        }
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        control.extend(servers.into_iter().filter_map(|server| {
            server.inspect_err(|e| log::info(&format!("nobody can ask for counters: {e}"))).ok()
        }));
    }

    /// Ends the device. Later verbs fail with `EIO`.
    pub(crate) fn shut_down(&self) {
        if let Ok(lane) = self.lane() {
            drop(std::mem::take(&mut *self.control.lock().unwrap_or_else(PoisonError::into_inner)));
            match &self.rails {
                Some(rails) => rails.shutdown(),
                None => lane.shutdown(),
            }
        }
    }
}

/// The open device behind a pointer.
pub(crate) fn find<'a>(context: *mut ibv_context) -> Result<&'a Arc<Context>, Errno> {
    if context.is_null() {
        return Err(Errno::INVAL);
    }
    handle::find(container(context))
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
    let ctx = start(device).map_err(|(why, errno)| {
        log::warn(&format!("cannot open {} at {}: {why}", device.name, device.addr));
        errno
    })?;
    let async_fd = ctx.lane.events().as_raw_fd();
    sys::set_blocking(async_fd)?;
    let via = ctx.lane.port_caps().via;
    log::info(&format!("opened {} at {} ({via})", device.name, device.addr));
    report::opened(&ctx);
    let vectors = std::thread::available_parallelism().map_or(1, |n| n.get() as c_int);
    let public = ops::verbs_context(device.as_ptr(), async_fd, vectors);
    let context = handle::create(public, ctx);
    Ok(context.wrapping_byte_add(offset_of!(verbs_context, context)).cast())
}

/// Why a device cannot be opened, in words and as a number.
pub(crate) type Refusal = (String, Errno);

/// What is under the NIC of a device, or of its backup.
pub(crate) struct Ground {
    port: Box<dyn Port>,
    pub(crate) limits: NicConfig,
}

/// Opens the ports, makes the NICs and starts the lanes.
fn start(device: &'static Device) -> Result<Arc<Context>, Refusal> {
    let fec = env::fec().map_err(|why| (why, Errno::INVAL))?;
    let fec = fec.map(|mode| Fec::new(FecConfig::new(mode)));
    let wish = failover::wish(device).map_err(|why| (why, Errno::INVAL))?;
    let mut ground = Ground::open(device.addr)?;
    let backup = wish.as_ref().map(|wish| wish.open(&mut ground)).transpose()?;
    let limits = ground.limits.clone();
    let lane = ground.start(&device.name, fec.as_ref())?;
    let mut rails = None;
    if let (Some(wish), Some(backup)) = (&wish, backup) {
        let backup = backup.start(&failover::backup_name(device), fec.as_ref())?;
        rails = Some(wish.start([Arc::clone(&lane), backup])?);
    }
    let ctx = Arc::new(Context {
        device,
        lane,
        rails,
        control: Mutex::default(),
        fec,
        limits,
        epoch: fork::epoch(),
        objects: AtomicUsize::new(0),
        owners: Owners::default(),
        told_fatal: AtomicBool::new(false),
    });
    ctx.listen();
    Ok(ctx)
}

impl Ground {
    pub(crate) fn open(addr: IpAddr) -> Result<Ground, Refusal> {
        let link = env::link().map_err(|why| (why, Errno::INVAL))?;
        let via = env::via().map_err(|why| (why, Errno::INVAL))?;
        let (port, qpn_prefix) =
            open_port(addr, via, link).map_err(|e| (e.to_string(), errno_of(&e)))?;
        let caps = port.caps();
        let mut limits =
            NicConfig::new(caps.addr, sys::random().map_err(|e| ("no randomness".into(), e))?);
        limits.udp_port = caps.udp_port;
        limits.peer_udp_port = caps.udp_port;
        limits.qpn_prefix = qpn_prefix;
        limits.max_mtu = Mtu::for_ip_mtu(caps.ip_mtu)
            .ok_or_else(|| (format!("an MTU of {} is too small", caps.ip_mtu), Errno::INVAL))?;
        Ok(Ground { port, limits })
    }

    fn start(self, name: &str, fec: Option<&Fec>) -> Result<Arc<Lane>, Refusal> {
        let mut nic = Nic::new(self.limits).map_err(|e| (e.to_string(), e.into()))?;
        if let Some(fec) = fec {
            fec.install(&mut nic);
        }
        let config = LaneConfig { name: format!("bowline-{name}"), ..LaneConfig::default() };
        Lane::start(nic, self.port, config).map_err(|e| (e.to_string(), e.into()))
    }
}

fn open_port(
    addr: IpAddr,
    via: Via,
    link: Option<LinkProfile>,
) -> Result<(Box<dyn Port>, u8), PortError> {
    let sharing = Sharing::SameUser { registry_dir: None };
    let udp = UdpConfig { sharing, notice: log::warn_once, ..UdpConfig::new(addr) };
    let (mut port, qpn_prefix) = via.open(&udp)?;
    if let Some(file) = env::pcap() {
        port = Box::new(PcapTap::create(port, file)?);
    }
    if let Some(profile) = link {
        port = Box::new(Impair::new(port, profile));
    }
    Ok((port, qpn_prefix))
}

fn errno_of(error: &PortError) -> Errno {
    match error {
        PortError::InUse { .. } => Errno(libc::EADDRINUSE),
        PortError::NotLocal(_) | PortError::Unspecified(_) => Errno(libc::EADDRNOTAVAIL),
        PortError::Os { source, .. }
        | PortError::Xdp { source, .. }
        | PortError::Registry(RegistryError::File { source, .. }) => {
            Errno(source.raw_os_error().unwrap_or(libc::EIO))
        }
        _ => Errno::IO,
    }
}

/// `ibv_close_device`. Objects that the program has left on it stay where they are and fail.
///
/// # Safety
/// `context` must be an open device's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    guard(-1, || code(find(context).and_then(|ctx| close(context, ctx))))
}

fn close(context: *mut ibv_context, ctx: &Arc<Context>) -> Result<(), Errno> {
    if ctx.lane().is_err() {
        // A child's copy of the parent's device: nothing of it is the child's to end.
        return Ok(());
    }
    report::closing(ctx);
    ctx.shut_down();
    if ctx.objects.load(Ordering::Acquire) > 0 {
        // Programs reach the context through them, so it has to stay.
        log::info("a device was closed with objects left on it");
        return Ok(());
    }
    handle::destroy(container(context))
}

/// The all-ones value that marks a context whose structure is `verbs_context`.
pub(crate) const EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);
