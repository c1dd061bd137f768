//! Turns the connection manager's events into events of the program's channels.

use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};

use bowline_cm::mad::{Rep, Req, SidrRep, SidrReq, SidrStatus};
use bowline_cm::{CommId, Ended, Event, IpAddressing, ServiceId};
use bowline_device::ConnectionEvent;
use bowline_io::spawn_background;

use super::abi::*;
use super::channel::CmEvent;
use super::id::{self, Id};
use super::port::{Name, Port, Tables};
use super::{connect, qp};
use crate::abi::*;
use crate::errno::Errno;
use crate::guard::guard;
use crate::{gid, handle, log};

/// Starts the thread that delivers a port's events to the program.
pub(super) fn start(port: &Arc<Port>) -> Result<(), Errno> {
    let port = Arc::clone(port);
    let name = format!("bowline-cm-{}", port.device.name);
    let started = spawn_background(name, move || {
        while let Ok(event) = port.connections.events().wait(None) {
            guard((), || match event {
                Some(ConnectionEvent::Cm(event)) => handle_event(&port, event),
                Some(ConnectionEvent::PeerLost(qpn)) => port.peer_lost(qpn),
                None => {}
            });
        }
    });
    started.map(drop).map_err(|_| Errno::NOMEM)
}

/// Held while an event is handled: no identifier of the port is created or destroyed meanwhile.
type Held<'a> = MutexGuard<'a, Tables>;

fn handle_event(port: &Arc<Port>, event: Event) {
    let mut tables = port.tables();
    let comm = event.id();
    match event {
        Event::Request { req, .. } => {
            on_request(port, &mut tables, comm, req.service_id, Asked::Connection(req));
        }
        Event::SidrRequest { req, .. } => {
            on_request(port, &mut tables, comm, req.service_id, Asked::Service(req));
        }
        event => {
            // A destroyed identifier gets no more events.
            let Some(Name(id)) = tables.ids.get(&comm).copied() else { return };
            let Ok(inner) = handle::find(id) else { return };
            on_progress(id, inner, event);
        }
    }
}

fn on_progress(id: *mut rdma_cm_id, inner: &Id, event: Event) {
    let plain = |kind, status| CmEvent::new(id, kind, status);
    let event = match event {
        Event::Reply { rep, .. } => on_reply(id, inner, &rep),
        Event::Established { id: comm, private_data } => {
            inner.watch_peer(comm);
            plain(RDMA_CM_EVENT_ESTABLISHED, 0).with_data(&private_data[..])
        }
        Event::Rejected { reason, private_data, .. } => {
            fail_qp(id, inner);
            plain(RDMA_CM_EVENT_REJECTED, i32::from(reason.0)).with_data(&private_data[..])
        }
        Event::Unreachable { .. } => {
            fail_qp(id, inner);
            plain(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)
        }
        Event::Disconnected { how, .. } => {
            let silent = how == Ended::PeerSilent;
            plain(RDMA_CM_EVENT_DISCONNECTED, if silent { -libc::ETIMEDOUT } else { 0 })
        }
        Event::TimewaitExit { .. } => plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0),
        Event::SidrReply { rep, .. } => resolved(id, inner, &rep),
        Event::Request { .. } | Event::SidrRequest { .. } => return,
    };
    inner.push(event);
}

/// A connection that failed leaves its QP in error, as with the kernel's.
fn fail_qp(id: *mut rdma_cm_id, inner: &Id) {
    // SAFETY: the identifier lives.
    if !unsafe { (*id).qp }.is_null() {
        let _ = qp::modify(id, inner, IBV_QPS_ERR);
    }
}

/// With its own QP the connection is established here; otherwise the program decides.
fn on_reply(id: *mut rdma_cm_id, inner: &Id, rep: &Rep) -> Box<CmEvent> {
    {
        let mut known = inner.state();
        // Do not have more outstanding than the peer serves.
        known.initiator_depth = known.initiator_depth.min(rep.responder_resources);
        known.rnr_retry_count = rep.rnr_retry_count;
        known.rep = Some(Box::new(*rep));
    }
    // SAFETY: the identifier lives.
    let own = !unsafe { (*id).qp }.is_null();
    let ready = if own {
        qp::modify(id, inner, IBV_QPS_RTR)
            .and_then(|()| qp::modify(id, inner, IBV_QPS_RTS))
            .and_then(|()| connect::establish(id))
    } else {
        Ok(())
    };
    let mut event = match (own, ready) {
        (true, Ok(())) => CmEvent::new(id, RDMA_CM_EVENT_ESTABLISHED, 0),
        (true, Err(error)) => CmEvent::new(id, RDMA_CM_EVENT_CONNECT_ERROR, -error.0),
        (false, _) => CmEvent::new(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0),
    };
    event.public.param.conn = rdma_conn_param {
        private_data: core::ptr::null(),
        private_data_len: 0,
        // What one end initiates, the other serves.
        responder_resources: rep.initiator_depth,
        initiator_depth: rep.responder_resources,
        flow_control: u8::from(rep.flow_control),
        retry_count: 0,
        rnr_retry_count: rep.rnr_retry_count,
        srq: u8::from(rep.srq),
        qp_num: rep.local_qpn.get(),
    };
    event.with_data(&rep.private_data)
}

/// Where datagrams to the peer go.
fn ud_param(inner: &Id, qp_num: u32, qkey: u32) -> rdma_ud_param {
    let mut ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    if let Ok(peer) = id::peer_of(inner) {
        ah_attr.grh.dgid = gid::of_addr(peer);
    }
    ah_attr.grh.hop_limit = 64;
    rdma_ud_param { private_data: core::ptr::null(), private_data_len: 0, ah_attr, qp_num, qkey }
}

fn resolved(id: *mut rdma_cm_id, inner: &Id, rep: &SidrRep) -> Box<CmEvent> {
    let mut event = match rep.status {
        SidrStatus::VALID => CmEvent::new(id, RDMA_CM_EVENT_ESTABLISHED, 0),
        status => CmEvent::new(id, RDMA_CM_EVENT_UNREACHABLE, i32::from(status.0)),
    };
    event.public.param.ud = ud_param(inner, rep.qpn.get(), rep.qkey);
    event.with_data(&rep.private_data)
}

/// A peer's request.
enum Asked {
    Connection(Box<Req>),
    Service(Box<SidrReq>),
}

fn on_request(
    port: &Arc<Port>,
    tables: &mut Held<'_>,
    comm: CommId,
    service: ServiceId,
    asked: Asked,
) {
    let made = tables.listeners.get(&service).copied().ok_or(Errno::INVAL).and_then(|listener| {
        let data: &[u8] = match &asked {
            Asked::Connection(req) => &req.private_data,
            Asked::Service(req) => &req.private_data,
        };
        // Without addresses it is not for `rdma_cm`.
        let ip = IpAddressing::decode(data).ok_or(Errno::INVAL)?;
        let id = new_end(port, listener.0, service, &ip)?;
        Ok((listener.0, id))
    });
    let (listener, id) = match made {
        Ok(made) => made,
        Err(error) => {
            log::debug(|| format!("a connection request is refused: error {}", error.0));
            let _ = port.connections.call(|cm, now| cm.forget(now, comm));
            return;
        }
    };
    let Ok(inner) = handle::find(id) else { return };
    let most = port.ctx.peek().config().max_rd_atomic;
    let mut event = CmEvent::new(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    event.public.listen_id = listener;
    let event = {
        let mut state = inner.state();
        state.comm = Some(comm);
        match asked {
            Asked::Connection(req) => {
                event.public.param.conn = conn_param(&req);
                let event = event.with_data(&req.private_data[IpAddressing::LEN..]);
                // For programs that bring up their own QP before they accept.
                state.responder_resources = req.initiator_depth.min(most);
                state.initiator_depth = req.responder_resources.min(most);
                state.retry_count = req.retry_count;
                state.rnr_retry_count = req.rnr_retry_count;
                state.req = Some(req);
                event
            }
            Asked::Service(req) => {
                state.is_sidr = true;
                event.with_data(&req.private_data[IpAddressing::LEN..])
            }
        }
    };
    tables.ids.insert(comm, Name(id));
    inner.push(event);
}

/// An identifier for a request, with the listener's channel and context.
fn new_end(
    port: &Arc<Port>,
    listener: *mut rdma_cm_id,
    service: ServiceId,
    ip: &IpAddressing,
) -> Result<*mut rdma_cm_id, Errno> {
    handle::find(listener)?;
    // SAFETY: the listener lives: it is in the port's table, which is locked.
    let (channel, context, ps) =
        unsafe { ((*listener).channel, (*listener).context, (*listener).ps) };
    let id = id::create(channel, context, ps)?;
    let inner = handle::find(id)?;
    id::attach(id, inner, Arc::clone(port));
    let src = SocketAddr::new(ip.dst, service.port());
    let dst = SocketAddr::new(ip.src, ip.src_port);
    id::set_addresses(id, inner, Some(src), Some(dst));
    Ok(id)
}

/// A request's parameters, from the passive end's view.
fn conn_param(req: &Req) -> rdma_conn_param {
    rdma_conn_param {
        private_data: core::ptr::null(),
        private_data_len: 0,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: u8::from(req.flow_control),
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: u8::from(req.srq),
        qp_num: req.local_qpn.get(),
    }
}
