//! Identifiers: one end of a connection, or a listener.

use core::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bowline_cm::mad::{Rep, Req};
use bowline_cm::{CommId, ServiceId};
use bowline_wire::{Psn, Qpn};

use super::abi::*;
use super::addrinfo::rdma_freeaddrinfo;
use super::channel::{self, CmChannel, CmEvent};
use super::port::{Name, Port};
use super::{addr, qp};
use crate::abi::*;
use crate::context::PORT;
use crate::errno::{Errno, minus_one};
use crate::gid;
use crate::guard::guard;
use crate::handle::{self, Kind, Public};

/// What this library knows of an identifier.
pub(crate) struct Id {
    state: Mutex<State>,
    /// Events that the program has got and not acknowledged.
    unacknowledged: Mutex<u32>,
    acknowledged: Condvar,
}

/// What changes.
pub(super) struct State {
    pub(super) channel: Arc<CmChannel>,
    /// The identifier has its own channel: calls wait for completion.
    pub(super) sync: Option<Name<rdma_event_channel>>,
    pub(super) port: Option<Arc<Port>>,
    pub(super) src: Option<SocketAddr>,
    pub(super) dst: Option<SocketAddr>,
    pub(super) comm: Option<CommId>,
    /// What it listens for, and where.
    pub(super) listens: Vec<(Arc<Port>, ServiceId)>,
    /// The peer's request.
    pub(super) req: Option<Box<Req>>,
    pub(super) rep: Option<Box<Rep>>,
    /// The peer resolves a datagram service.
    pub(super) is_sidr: bool,
    pub(super) psn: Psn,
    /// This end's queue pair, once it has connected or accepted.
    pub(super) qpn: Qpn,
    /// READs and atomics that this end serves, and may have outstanding.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) traffic_class: u8,
    /// How long QPs wait for acknowledgements, as the program set it or by default.
    pub(super) ack_timeout: u8,
    /// How QPs of requests are made, by `rdma_create_ep`.
    pub(super) qp_init: Option<(Name<ibv_pd>, Box<ibv_qp_init_attr>)>,
    /// Multicast groups that it has joined.
    pub(super) groups: Vec<IpAddr>,
    /// What `rdma_resolve_addrinfo` has found.
    pub(super) resolved: Option<Name<rdma_addrinfo>>,
    /// The QP's queues were created with it.
    pub(super) owns_cqs: bool,
}

// SAFETY: the pointers of `qp_init` are the program's, which lets them live as long as the
// identifier.
unsafe impl Send for State {}

impl Public for rdma_cm_id {
    type Inner = Arc<Id>;
    const KIND: Kind = Kind::CmId;
}

impl Id {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device, once there is one.
    pub(super) fn port(&self) -> Result<Arc<Port>, Errno> {
        let port = self.state().port.clone().ok_or(Errno::INVAL)?;
        port.ctx.core()?;
        Ok(port)
    }

    pub(super) fn comm(&self) -> Result<CommId, Errno> {
        self.state().comm.ok_or(Errno::INVAL)
    }

    /// Watches the peer of the connection, which is now established.
    pub(super) fn watch_peer(&self, comm: CommId) {
        let (port, qpn) = {
            let state = self.state();
            (state.port.clone(), state.qpn)
        };
        if let Some(port) = port {
            port.watch(comm, qpn);
        }
    }

    fn unacknowledged(&self) -> MutexGuard<'_, u32> {
        self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn delivered(&self) {
        *self.unacknowledged() += 1;
    }

    pub(super) fn acknowledged(&self) {
        *self.unacknowledged() -= 1;
        self.acknowledged.notify_all();
    }

    fn wait_for_acknowledgements(&self) {
        let mut left = self.unacknowledged();
        while *left > 0 {
            left = self.acknowledged.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn push(&self, event: Box<CmEvent>) {
        self.state().channel.push(event);
    }
}

/// The type of QP that a port space has.
fn qp_type_of(ps: c_uint) -> Result<c_uint, Errno> {
    match ps {
        RDMA_PS_TCP | RDMA_PS_IB => Ok(IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => Ok(IBV_QPT_UD),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// Makes an identifier; with its own channel if none is given.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: c_uint,
) -> Result<*mut rdma_cm_id, Errno> {
    let qp_type = qp_type_of(ps)?;
    let own = if channel.is_null() { Some(channel::create()?) } else { None };
    let used = own.unwrap_or(channel);
    let state = State {
        channel: Arc::clone(handle::find(used)?),
        sync: own.map(Name),
        port: None,
        src: None,
        dst: None,
        comm: None,
        listens: Vec::new(),
        req: None,
        rep: None,
        is_sidr: false,
        psn: draw_psn()?,
        qpn: Qpn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        traffic_class: 0,
        ack_timeout: qp::ACK_TIMEOUT,
        qp_init: None,
        groups: Vec::new(),
        resolved: None,
        owns_cqs: false,
    };
    // SAFETY: a plain C struct for which zeroes are valid.
    let mut public: rdma_cm_id = unsafe { core::mem::zeroed() };
    (public.channel, public.context, public.ps, public.qp_type) = (used, context, ps, qp_type);
    let inner = Id {
        state: Mutex::new(state),
        unacknowledged: Mutex::new(0),
        acknowledged: Condvar::new(),
    };
    Ok(handle::create(public, Arc::new(inner)))
}

/// Binds an identifier to a device.
pub(super) fn attach(id: *mut rdma_cm_id, inner: &Id, port: Arc<Port>) {
    // SAFETY: the identifier lives; programs only read these fields.
    unsafe {
        (*id).verbs = port.context.0;
        (*id).port_num = PORT;
        // Programs that manage their own QPs create them in the identifier's domain.
        if (*id).pd.is_null() {
            (*id).pd = port.pd.0;
        }
    }
    inner.state().port = Some(port);
}

/// Sets the addresses that the program sees.
pub(super) fn set_addresses(
    id: *mut rdma_cm_id,
    inner: &Id,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
) {
    let mut state = inner.state();
    // SAFETY: the identifier lives; programs only read these fields.
    let shown = unsafe { &mut (*id).route.addr };
    if let Some(src) = src {
        state.src = Some(src);
        shown.src = addr::write(src);
        shown.ib.sgid = gid::of_addr(src.ip());
    }
    if let Some(dst) = dst {
        state.dst = Some(dst);
        shown.dst = addr::write(dst);
        shown.ib.dgid = gid::of_addr(dst.ip());
    }
    shown.ib.pkey = u16::MAX;
}

/// The PSN for the peer to start with: programs that manage their own QPs need it before they
/// connect or accept.
fn draw_psn() -> Result<Psn, Errno> {
    let drawn: [u8; 4] = bowline_device::random_bytes().map_err(|_| Errno::IO)?;
    Ok(Psn::new(u32::from_le_bytes(drawn)))
}

/// A source port for programs that have not chosen one.
pub(super) fn any_port() -> Result<u16, Errno> {
    let drawn: [u8; 2] = bowline_device::random_bytes().map_err(|_| Errno::IO)?;
    Ok(32_768 + u16::from_le_bytes(drawn) % 28_000)
}

/// The other end's address, as the QP needs it.
pub(super) fn peer_of(inner: &Id) -> Result<IpAddr, Errno> {
    inner.state().dst.map(|dst| dst.ip()).ok_or(Errno::INVAL)
}

/// `rdma_create_id`.
///
/// # Safety
/// `channel` must be null or come from `rdma_create_event_channel`; `id` must point to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    guard(-1, || {
        minus_one((|| {
            if id.is_null() {
                return Err(Errno::INVAL);
            }
            let made = create(channel, context, ps)?;
            // SAFETY: not null, so a place for a pointer by the caller's word.
            unsafe { *id = made };
            Ok(())
        })())
    })
}

/// Destroys an identifier: the peer is told, undelivered events are dropped.
pub(super) fn destroy(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    let (port, comm, listens) = {
        let mut state = inner.state();
        (state.port.clone(), state.comm.take(), core::mem::take(&mut state.listens))
    };
    for (port, service) in listens {
        let _ = port.connections.unlisten(service);
        port.tables().listeners.remove(&service);
    }
    if let (Some(port), Some(comm)) = (port, comm) {
        let mut tables = port.tables();
        tables.ids.remove(&comm);
        let _ = port.connections.call(|cm, now| cm.forget(now, comm));
        port.unwatch(comm, inner.state().qpn);
    }
    let channel = Arc::clone(&inner.state().channel);
    let mut children = Vec::new();
    channel.take_about(id, |event| {
        if event.listen_id == id {
            children.push(event.id);
        }
    });
    // Requests that the program has not seen end with their listener.
    for child in children {
        let _ = destroy(child);
    }
    acknowledge_last(id);
    inner.wait_for_acknowledgements();
    qp::free_queues(id, &inner);
    let (sync, resolved) = {
        let mut state = inner.state();
        (state.sync.take(), state.resolved.take())
    };
    if let Some(Name(resolved)) = resolved {
        // SAFETY: it came from `rdma_getaddrinfo`'s own maker, and nobody has it.
        unsafe { rdma_freeaddrinfo(resolved) };
    }
    handle::destroy(id)?;
    if let Some(channel) = sync {
        let _ = handle::destroy(channel.0);
    }
    Ok(())
}

/// `rdma_destroy_id`.
///
/// # Safety
/// `id` must come from [`rdma_create_id`], or be that of a connection request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    guard(-1, || minus_one(destroy(id)))
}

/// `rdma_migrate_id`: from now on its events go to another channel.
///
/// # Safety
/// `id` must be an identifier, `channel` null or a channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    guard(-1, || minus_one(migrate(id, channel)))
}

pub(super) fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    let own = if channel.is_null() { Some(channel::create()?) } else { None };
    let used = own.unwrap_or(channel);
    let to = Arc::clone(handle::find(used)?);
    let port = inner.state().port.clone();
    // Locked, so that no event is added meanwhile.
    let tables = port.as_ref().map(|port| port.tables());
    let mut state = inner.state();
    state.channel.move_about(id, &to);
    state.channel = to;
    let before = core::mem::replace(&mut state.sync, own.map(Name));
    // SAFETY: the identifier lives; programs only read the field.
    unsafe { (*id).channel = used };
    drop((state, tables));
    if let Some(before) = before {
        let _ = handle::destroy(before.0);
    }
    Ok(())
}

/// In synchronous mode, waits for the event that a call triggers.
pub(super) fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    let (channel, is_sync) = {
        let state = inner.state();
        (Arc::clone(&state.channel), state.sync.is_some())
    };
    if !is_sync {
        return Ok(());
    }
    acknowledge_last(id);
    let event = channel.next()?;
    // SAFETY: an event that was just handed out.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    // SAFETY: as above.
    unsafe { (*id).event = event };
    match (kind, status) {
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, 0) => Ok(()),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// The program may read the event of the last synchronous call until the next one.
fn acknowledge_last(id: *mut rdma_cm_id) {
    // SAFETY: the identifier lives; the event was handed out and not acknowledged.
    unsafe {
        if !(*id).event.is_null() {
            channel::rdma_ack_cm_event((*id).event);
            (*id).event = core::ptr::null_mut();
        }
    }
}
