//! Devices that connections are made on.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_cm::{CommId, Config, ServiceId};
use bowline_device::Connections;
use bowline_wire::Qpn;

use super::abi::rdma_cm_id;
use super::dispatch;
use crate::abi::{ibv_context, ibv_pd};
use crate::context::{self, Context, ibv_open_device};
use crate::device::{self, Device};
use crate::errno::Errno;
use crate::pd::ibv_alloc_pd;
use crate::qp::Qp;
use crate::{fork, log};

/// A pointer used only as a name: check it with [`crate::handle`] before dereferencing it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Name<T>(pub(super) *mut T);

impl<T> Clone for Name<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Name<T> {}

// SAFETY: it is not followed without asking.
unsafe impl<T> Send for Name<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Name<T> {}

/// An open device with its connection manager. It stays until the process ends, as librdmacm's do.
pub(crate) struct Port {
    pub(super) device: &'static Device,
    pub(super) context: Name<ibv_context>,
    pub(super) ctx: Arc<Context>,
    pub(super) connections: Connections,
    /// The default domain of identifiers.
    pub(super) pd: Name<ibv_pd>,
    tables: Mutex<Tables>,
    /// Connections whose peers are watched, by the number of this end's queue pair.
    watched: Mutex<HashMap<Qpn, CommId>>,
    epoch: u32,
}

/// The identifiers of a port.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) ids: HashMap<CommId, Name<rdma_cm_id>>,
    pub(super) listeners: HashMap<ServiceId, Name<rdma_cm_id>>,
}

impl Port {
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the peer of an established connection, so that its death is noticed. A killed
    /// process sends nothing.
    pub(super) fn watch(&self, comm: CommId, qpn: Qpn) {
        let Some(interval) = self.ctx.keepalive else { return };
        self.watched().insert(qpn, comm);
        let begin = |qp: &Qp| Ok(qp.core()?.watch_peer(Some(interval))?);
        if let Err(error) = self.ctx.with_qp(qpn, begin) {
            // It is another device's, or not an RC queue pair.
            log::debug(|| format!("the peer of QP {qpn} is not watched: error {}", error.0));
            self.unwatch(comm, qpn);
        }
    }

    /// The program gives up a connection.
    pub(super) fn unwatch(&self, comm: CommId, qpn: Qpn) {
        let mut watched = self.watched();
        if watched.get(&qpn) == Some(&comm) {
            watched.remove(&qpn);
        }
    }

    /// The peer of a queue pair is gone, and so is the connection.
    pub(super) fn peer_lost(&self, qpn: Qpn) {
        let Some(comm) = self.watched().remove(&qpn) else { return };
        // Ignore a connection that has ended meanwhile.
        let _ = self.connections.call(|cm, now| cm.peer_lost(now, comm));
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<Qpn, CommId>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The port of a device, opened when it is first asked for.
pub(super) fn of_device(device: &'static Device) -> Result<Arc<Port>, Errno> {
    static PORTS: Mutex<Vec<Arc<Port>>> = Mutex::new(Vec::new());
    let mut ports = PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let epoch = fork::epoch();
    let is_it = |port: &&Arc<Port>| port.epoch == epoch && core::ptr::eq(port.device, device);
    if let Some(port) = ports.iter().find(is_it) {
        return Ok(Arc::clone(port));
    }
    // SAFETY: a device of the list.
    let context = unsafe { ibv_open_device(device.as_ptr()) };
    if context.is_null() {
        return Err(Errno::last());
    }
    let ctx = Arc::clone(context::find(context)?);
    let config = Config { ca_guid: device.guid(), ..Config::default() };
    let connections = Connections::open(ctx.core()?, config).map_err(|error| {
        log::warn(&format!("no connection manager on {}: {error}", device.name));
        Errno::from(error)
    })?;
    // SAFETY: the context is open, and stays so.
    let pd = unsafe { ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    let (context, pd) = (Name(context), Name(pd));
    let (tables, watched) = (Mutex::default(), Mutex::default());
    let port = Arc::new(Port { device, context, ctx, connections, pd, tables, watched, epoch });
    dispatch::start(&port)?;
    ports.push(Arc::clone(&port));
    Ok(port)
}

/// The device at an address. A loopback address that no device has stands for the first device, as
/// with the kernel's.
pub(super) fn at(addr: IpAddr) -> Result<&'static Device, Errno> {
    let all = device::all();
    let stands_for = |d: &&Device| addr.is_loopback() && d.addr.is_ipv4() == addr.is_ipv4();
    let found = all.iter().find(|d| d.addr == addr).or_else(|| all.iter().find(stands_for));
    found.ok_or(Errno(libc::ENODEV))
}

/// The device from which an address is reached: the one at the kernel's source address for it, or
/// else the first one that is local in the same sense.
pub(super) fn towards(dst: IpAddr) -> Result<&'static Device, Errno> {
    let any: IpAddr = match dst {
        IpAddr::V4(_) => [0; 4].into(),
        IpAddr::V6(_) => [0; 16].into(),
    };
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(SocketAddr::new(dst, 4791))?;
        socket.local_addr()
    });
    if let Ok(source) = routed
        && let Ok(device) = at(source.ip())
    {
        return Ok(device);
    }
    let alike = |device: &&Device| {
        let near = dst.is_multicast() || device.addr.is_loopback() == dst.is_loopback();
        device.addr.is_ipv4() == dst.is_ipv4() && near
    };
    let found = device::all().iter().find(alike);
    found.ok_or(Errno(libc::ENETUNREACH))
}
