//! Connects, accepts, rejects and disconnects.

use core::ffi::{c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use bowline_cm::mad::{Path, Rej, RejectReason, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus};
use bowline_cm::{CmError, CmTimeout, IpAddressing, PortSpace, ServiceId};
use bowline_wire::Qpn;

use super::abi::*;
use super::id::{self, Id};
use super::port::{Name, Port};
use super::qp;
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::gid;
use crate::guard::guard;
use crate::handle;

impl From<CmError> for Errno {
    fn from(error: CmError) -> Errno {
        match error {
            CmError::Full(_) => Errno::NOMEM,
            CmError::InUse(_) => Errno(libc::EADDRINUSE),
            _ => Errno::INVAL,
        }
    }
}

/// Private data after a header, in a message with space for `N` bytes.
///
/// # Safety
/// `data` must point to `len` bytes, or be null.
unsafe fn private_data<const N: usize>(
    header: &[u8],
    data: *const c_void,
    len: u8,
) -> Result<[u8; N], Errno> {
    let (mut out, len) = ([0; N], usize::from(len));
    let room = out.get_mut(header.len()..header.len() + len).ok_or(Errno::INVAL)?;
    if !data.is_null() {
        // SAFETY: as many bytes by the caller's word.
        room.copy_from_slice(unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len) });
    }
    out[..header.len()].copy_from_slice(header);
    Ok(out)
}

/// The program's parameters, or the defaults.
///
/// # Safety
/// `param` must be null or point to parameters.
unsafe fn parameters(param: *const rdma_conn_param) -> rdma_conn_param {
    let defaults = rdma_conn_param {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: u8::MAX,
        initiator_depth: u8::MAX,
        flow_control: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: null, or parameters by the caller's word.
    unsafe { param.as_ref() }.copied().unwrap_or(defaults)
}

/// The QP that is connected: the identifier's, or one that the program keeps.
fn qpn(id: *mut rdma_cm_id, param: &rdma_conn_param) -> Qpn {
    // SAFETY: the identifier lives, and so does its QP.
    let own = unsafe { (*id).qp.as_ref() }.map(|qp| qp.qp_num);
    Qpn::new(own.unwrap_or(param.qp_num))
}

/// Whether that QP takes its receives from a shared queue.
fn has_srq(id: *mut rdma_cm_id, param: &rdma_conn_param) -> bool {
    // SAFETY: as above.
    let own = unsafe { (*id).qp.as_ref() }.map(|qp| !qp.srq.is_null());
    own.unwrap_or(param.srq != 0)
}

/// Stores what the QP will need, limited to what the NIC supports.
fn remember(inner: &Id, port: &Port, param: &rdma_conn_param) -> Result<(u8, u8), Errno> {
    let most = port.ctx.core()?.config().max_rd_atomic;
    let mut known = inner.state();
    known.responder_resources = param.responder_resources.min(most);
    known.initiator_depth = param.initiator_depth.min(most);
    known.retry_count = param.retry_count;
    known.rnr_retry_count = param.rnr_retry_count;
    Ok((known.responder_resources, known.initiator_depth))
}

/// The source and destination of a connection.
fn addresses(inner: &Id) -> Result<(SocketAddr, SocketAddr), Errno> {
    let known = inner.state();
    known.src.zip(known.dst).ok_or(Errno::INVAL)
}

/// The service of a port in the identifier's port space.
pub(super) fn service_of(id: *mut rdma_cm_id, port: u16) -> ServiceId {
    // SAFETY: the identifier lives.
    ServiceId::of_port(PortSpace(unsafe { (*id).ps } as u16), port)
}

fn connect(id: *mut rdma_cm_id, param: &rdma_conn_param) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    let port = inner.port()?;
    let (src, dst) = addresses(&inner)?;
    if inner.state().comm.is_some() {
        return Err(Errno::INVAL);
    }
    let header = IpAddressing { src_port: src.port(), src: src.ip(), dst: dst.ip() }.encode();
    let service_id = service_of(id, dst.port());
    // SAFETY: the identifier lives.
    let is_ud = unsafe { (*id).qp_type } == IBV_QPT_UD;
    let (data, len) = (param.private_data, param.private_data_len);
    let asked = if is_ud {
        // SAFETY: parameters of the program.
        let private_data = unsafe { private_data(&header, data, len) }?;
        let req = SidrReq { pkey: u16::MAX, service_id, private_data, ..SidrReq::default() };
        Asked::Service(Box::new(req))
    } else {
        let mut req = request(id, &inner, &port, param)?;
        req.service_id = service_id;
        // SAFETY: as above.
        req.private_data = unsafe { private_data(&header, data, len) }?;
        Asked::Connection(Box::new(req))
    };
    // Held, so that the response finds the identifier, and the identifier its ID.
    let mut tables = port.tables();
    let comm = port.connections.call(|cm, now| match &asked {
        Asked::Service(req) => cm.resolve(now, dst.ip(), req),
        Asked::Connection(req) => cm.connect(now, dst.ip(), req),
    })??;
    tables.ids.insert(comm, Name(id));
    inner.state().comm = Some(comm);
    drop(tables);
    id::complete(id)
}

/// A request to a peer.
enum Asked {
    Service(Box<SidrReq>),
    Connection(Box<Req>),
}

/// A REQ without its service and private data.
fn request(
    id: *mut rdma_cm_id,
    inner: &Id,
    port: &Port,
    param: &rdma_conn_param,
) -> Result<Req, Errno> {
    let (src, dst) = addresses(inner)?;
    let (responder_resources, initiator_depth) = remember(inner, port, param)?;
    let (traffic_class, ack_timeout) = {
        let known = inner.state();
        (known.traffic_class, known.ack_timeout)
    };
    let primary = Path {
        local_lid: u16::MAX,
        remote_lid: u16::MAX,
        local_gid: gid::of_addr(src.ip()).raw,
        remote_gid: gid::of_addr(dst.ip()).raw,
        traffic_class,
        hop_limit: 64,
        ack_timeout: CmTimeout::new(ack_timeout.saturating_add(1).min(31)),
        ..Path::default()
    };
    let local_qpn = qpn(id, param);
    inner.state().qpn = local_qpn;
    Ok(Req {
        local_qpn,
        responder_resources,
        initiator_depth,
        transport: Req::RC,
        flow_control: param.flow_control != 0,
        starting_psn: inner.state().psn,
        retry_count: param.retry_count,
        pkey: u16::MAX,
        path_mtu: qp::mtu_number(port.ctx.core()?.config().max_mtu.bytes()),
        rnr_retry_count: param.rnr_retry_count,
        srq: has_srq(id, param),
        primary,
        ..Req::default()
    })
}

/// `rdma_connect`.
///
/// # Safety
/// `id` must be an identifier with a route, `param` null or parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: null, or parameters by the caller's word.
    guard(-1, || minus_one(connect(id, &unsafe { parameters(param) })))
}

fn accept(id: *mut rdma_cm_id, param: &rdma_conn_param) -> Result<(), Errno> {
    let inner = Arc::clone(handle::find(id)?);
    let (port, comm) = (inner.port()?, inner.comm()?);
    let (data, len) = (param.private_data, param.private_data_len);
    if inner.state().is_sidr {
        let rep = SidrRep {
            status: SidrStatus::VALID,
            qpn: qpn(id, param),
            qkey: RDMA_UDP_QKEY,
            // SAFETY: parameters of the program.
            private_data: unsafe { private_data(&[], data, len) }?,
            ..SidrRep::default()
        };
        port.connections.call(|cm, now| cm.reply(now, comm, &rep))??;
        return Ok(());
    }
    let asked = inner.state().req.clone().ok_or(Errno::INVAL)?;
    let (mut param, data) = (*param, data);
    // More than the peer asks for is useless.
    param.responder_resources = param.responder_resources.min(asked.initiator_depth);
    param.initiator_depth = param.initiator_depth.min(asked.responder_resources);
    param.retry_count = asked.retry_count;
    let (responder_resources, initiator_depth) = remember(&inner, &port, &param)?;
    // The peer's values bound what this end sends.
    inner.state().rnr_retry_count = asked.rnr_retry_count;
    let local_qpn = qpn(id, &param);
    inner.state().qpn = local_qpn;
    let rep = Rep {
        local_qpn,
        starting_psn: inner.state().psn,
        responder_resources,
        initiator_depth,
        flow_control: param.flow_control != 0,
        rnr_retry_count: param.rnr_retry_count,
        srq: has_srq(id, &param),
        // SAFETY: parameters of the program.
        private_data: unsafe { private_data(&[], data, len) }?,
        ..Rep::default()
    };
    // SAFETY: the identifier lives.
    if !unsafe { (*id).qp }.is_null() {
        qp::modify(id, &inner, IBV_QPS_RTR)?;
        qp::modify(id, &inner, IBV_QPS_RTS)?;
    }
    port.connections.call(|cm, now| cm.accept(now, comm, &rep))??;
    id::complete(id)
}

/// `rdma_accept`.
///
/// # Safety
/// `id` must be that of a connection request, `param` null or parameters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: null, or parameters by the caller's word.
    guard(-1, || minus_one(accept(id, &unsafe { parameters(param) })))
}

/// Accepts the reply to a connect with a QP that the program manages or, internally, with the
/// identifier's own.
pub(super) fn establish(id: *mut rdma_cm_id) -> Result<(), Errno> {
    let inner = handle::find(id)?;
    let (port, comm) = (inner.port()?, inner.comm()?);
    port.connections.call(|cm, now| cm.establish(now, comm, &[0; Rtu::PRIVATE_LEN]))??;
    inner.watch_peer(comm);
    Ok(())
}

/// `rdma_establish`.
///
/// # Safety
/// `id` must be an identifier whose reply has come.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    guard(-1, || minus_one(establish(id)))
}

/// `rdma_reject`.
///
/// # Safety
/// `id` must be that of a connection request; `data` must point to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            let (port, comm) = (inner.port()?, inner.comm()?);
            if inner.state().is_sidr {
                // SAFETY: as many bytes by the caller's word.
                let private_data = unsafe { private_data(&[], data, len) }?;
                let rep =
                    SidrRep { status: SidrStatus::REJECT, private_data, ..SidrRep::default() };
                port.connections.call(|cm, now| cm.reply(now, comm, &rep))??;
                return Ok(());
            }
            // SAFETY: as above.
            let why: [u8; Rej::PRIVATE_LEN] = unsafe { private_data(&[], data, len) }?;
            let reason = RejectReason::CONSUMER;
            port.connections.call(|cm, now| cm.reject(now, comm, reason, &why))??;
            Ok(())
        })())
    })
}

/// `rdma_disconnect`: the QP goes into error, and the peer is told.
///
/// # Safety
/// `id` must be an identifier that is connected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    guard(-1, || {
        minus_one((|| {
            let inner = handle::find(id)?;
            let (port, comm) = (inner.port()?, inner.comm()?);
            // SAFETY: the identifier lives.
            if !unsafe { (*id).qp }.is_null() {
                qp::modify(id, inner, IBV_QPS_ERR)?;
            }
            // The peer may have disconnected first.
            let asked = port.connections.call(|cm, now| cm.disconnect(now, comm))?;
            if asked.is_ok() { id::complete(id) } else { Ok(()) }
        })())
    })
}

/// `rdma_notify`: a message has come before the peer's RTU.
///
/// # Safety
/// `id` must be an identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    guard(-1, || {
        minus_one((|| {
            if event != IBV_EVENT_COMM_EST {
                return Err(Errno::INVAL);
            }
            let inner = handle::find(id)?;
            let (port, comm) = (inner.port()?, inner.comm()?);
            port.connections.call(|cm, now| cm.notify_established(now, comm))??;
            Ok(())
        })())
    })
}
