//! Queue pairs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_failover::mirror::{self, Engines, QpParts};
use bowline_ibverbs as ibverbs;
use bowline_io::LaneError;
use bowline_nic::{ModifyError, Nic, QpAttr, QpInfo, QpInit, QpState, QpType, Time};
use bowline_wire::Qpn;

use crate::backend::Backend;
use crate::verbs::no_lane;
use crate::{Cq, Device, DeviceError, Pd, Srq, Xrcd, turn};

/// The name of the operation in errors, if only an engine supports it.
const ENGINE: &str = "this queue pair operation";

/// The attributes of a new queue pair.
pub struct QpRequest {
    /// Its transport.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: Arc<Pd>,
    /// The completion queue of its sends.
    pub send_cq: Arc<Cq>,
    /// The completion queue of its receives.
    pub recv_cq: Arc<Cq>,
    /// The shared receive queue, if it does not have its own receive queue.
    pub srq: Option<Arc<Srq>>,
    /// Maximum number of outstanding sends.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receives.
    pub max_recv_wr: u32,
    /// Maximum number of memory segments that one send gathers.
    pub max_send_sge: u8,
    /// Maximum number of memory segments that one receive scatters to.
    pub max_recv_sge: u8,
    /// Maximum number of bytes that a work request can carry inline.
    pub max_inline: u32,
    /// Every send generates a completion, whatever its flags are.
    pub signal_all: bool,
    /// The domain of the shared receive queues that its peer may name; for extended reliable
    /// connections.
    pub xrcd: Option<Arc<Xrcd>>,
    /// The lane for the queue pair, modulo the number of lanes; the one with the fewest queue pairs
    /// if `None`.
    pub lane: Option<usize>,
}

/// A queue pair on one lane of a device, or on a verbs device.
pub struct Qp {
    back: Backend<mirror::Qp, ibverbs::Qp>,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    xrcd: Option<Arc<Xrcd>>,
}

impl Qp {
    /// Creates a queue pair, in the reset state.
    pub fn create(request: QpRequest) -> Result<Qp, DeviceError> {
        let QpRequest { pd, send_cq, recv_cq, srq, xrcd, .. } = &request;
        let device = pd.device();
        let foreign = |other: &Arc<Device>| !Arc::ptr_eq(device, other);
        if foreign(send_cq.device()) || foreign(recv_cq.device()) {
            return Err(DeviceError::Foreign { what: "the completion queue" });
        }
        if srq.as_ref().is_some_and(|srq| foreign(srq.pd().device())) {
            return Err(DeviceError::Foreign { what: "the shared receive queue" });
        }
        if xrcd.as_ref().is_some_and(|xrcd| foreign(xrcd.device())) {
            return Err(DeviceError::Foreign { what: "the XRC domain" });
        }
        let back = match on_verbs(&request)? {
            Some(qp) => Backend::Verbs(qp),
            None => Backend::Soft(on_engines(&request)?),
        };
        let qp = Qp {
            back,
            pd: request.pd,
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            srq: request.srq,
            xrcd: request.xrcd,
        };
        if let Some(xrcd) = &qp.xrcd {
            xrcd.hold();
        }
        if let (Some(failover), Backend::Soft(mirror)) = (qp.device().failover(), &qp.back) {
            failover.begin(mirror);
        }
        Ok(qp)
    }

    /// The queue pair's device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// The queue pair's number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        match &self.back {
            Backend::Soft(mirror) => mirror.qpn(),
            Backend::Verbs(qp) => qp.qpn(),
        }
    }

    /// The queue pair's lane; 0 on a verbs device.
    pub fn lane(&self) -> usize {
        match &self.back {
            Backend::Soft(mirror) => mirror.lane(),
            Backend::Verbs(_) => 0,
        }
    }

    /// The provider's queue pair, on a verbs device. Requests are posted to it.
    #[inline]
    pub fn verbs(&self) -> Option<&ibverbs::Qp> {
        self.back.verbs()
    }

    /// Posts through `post`, which gets the number to post to. If `post` returns `None`, which
    /// stands for [`PostError::Away`](bowline_nic::PostError::Away), it is called again where the
    /// connection has moved to. Posted requests may leave together with the ones that are posted
    /// next. Fails on a verbs device, which has no lanes: see [`Qp::verbs`].
    ///
    /// Returns `None` if the connection is nowhere, which can only happen if a lane has ended.
    #[inline]
    pub fn post<R>(
        &self,
        post: impl FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, LaneError> {
        let Backend::Soft(mirror) = &self.back else { return Err(no_lane()) };
        let engines = self.device().engines();
        if engines.layout().lanes > 1 {
            turn::posted(mirror.lane());
        }
        mirror.post(engines, post)
    }

    /// Calls the engine that has its queues, with its number there. Fails on a verbs device.
    pub fn control<R>(
        &self,
        verb: impl FnOnce(&mut Nic, Time, Qpn) -> R,
    ) -> Result<R, DeviceError> {
        let mirror = self.back.soft(ENGINE)?;
        let device = self.device();
        // It must not move during the call.
        let _held = device.failover().map(|failover| failover.hold());
        Ok(mirror.control(device.engines(), verb)?)
    }

    /// Changes attributes or the state.
    pub fn modify(&self, attr: &QpAttr) -> Result<Result<(), ModifyError>, DeviceError> {
        let mirror = match &self.back {
            Backend::Soft(mirror) => mirror,
            Backend::Verbs(qp) => return Ok(Ok(qp.modify(attr)?)),
        };
        if let Some(failover) = self.device().failover() {
            // A queue pair that ends must first move back to the default rail.
            match attr.state {
                Some(QpState::Reset) => failover.reset(mirror),
                Some(QpState::Err) => failover.end(mirror),
                _ => {}
            }
        }
        let done = self.control(|nic, now, qpn| nic.modify_qp(now, qpn, attr))?;
        if let (Ok(()), Some(failover), Some(QpState::Rtr), Some(av), Some(dest_qpn)) =
            (done, self.device().failover(), attr.state, attr.av, attr.dest_qpn)
        {
            failover.connected(mirror, av.dst, dest_qpn);
        }
        Ok(done)
    }

    /// Starts or stops watching the peer of an idle reliable connection: see [`Nic::watch_peer`].
    /// If the peer is gone, the device's connection manager is notified
    /// ([`ConnectionEvent::PeerLost`](crate::ConnectionEvent::PeerLost)), or, without one, the
    /// device's event channel.
    pub fn watch_peer(&self, interval: Option<Duration>) -> Result<(), DeviceError> {
        let interval_ns = interval.map(|i| u64::try_from(i.as_nanos()).unwrap_or(u64::MAX));
        Ok(self.control(|nic, now, qpn| nic.watch_peer(now, qpn, interval_ns))??)
    }

    /// The queue pair's state; `None` if it no longer exists.
    pub fn state(&self) -> Result<Option<QpState>, DeviceError> {
        match &self.back {
            Backend::Soft(_) => {
                self.control(|nic, _, qpn| nic.query_qp(qpn).map(|info| info.state))
            }
            Backend::Verbs(qp) => Ok(Some(qp.state()?)),
        }
    }

    /// State and attributes. The peer's address and the PSNs are as the program set them; the rest
    /// is as on the rail where the connection is now. Returns `None` if the queue pair no longer
    /// exists. Fails on a verbs device: see [`Qp::state`].
    pub fn info(&self) -> Result<Option<QpInfo>, DeviceError> {
        let mirror = self.back.soft("asking for a queue pair's attributes")?;
        let (home, qpn) = mirror.on(bowline_failover::Rail::Default);
        let set = self.device().engines().lane(home).with(|nic, _| nic.query_qp(qpn))?;
        if mirror.spare().is_none() {
            return Ok(set);
        }
        let now = self.control(|nic, _, qpn| nic.query_qp(qpn))?;
        Ok(now.zip(set).map(|(mut info, set)| {
            info.attr.av = set.attr.av;
            info.attr.dest_qpn = set.attr.dest_qpn;
            info.attr.sq_psn = set.attr.sq_psn;
            info.attr.rq_psn = set.attr.rq_psn;
            info
        }))
    }

    /// Adds the queue pair to a multicast group, whose datagrams it then receives.
    pub fn attach_group(&self, group: IpAddr) -> Result<(), DeviceError> {
        let device = self.device();
        device.needs_soft_nic("a multicast group")?;
        device.groups.attach(&device.udp, device.lane(self.lane()), self.qpn(), group)
    }

    /// Removes the queue pair from a multicast group.
    pub fn detach_group(&self, group: IpAddr) -> Result<(), DeviceError> {
        let device = self.device();
        device.needs_soft_nic("a multicast group")?;
        device.groups.detach(device.lane(self.lane()), self.qpn(), group)
    }

    /// Destroys the queue pair. Its outstanding requests vanish without completions. On a verbs
    /// device the queue pair ends when it is dropped.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        let Backend::Soft(mirror) = &self.back else { return Ok(()) };
        let device = self.device();
        if let Some(failover) = device.failover() {
            failover.end(mirror);
        }
        let queues = [&self.send_cq, &self.recv_cq];
        mirror.destroy(device.engines(), &parts(&self.pd, queues, self.srq.as_ref())?)?;
        if let Some(xrcd) = &self.xrcd {
            xrcd.release();
        }
        device.groups.forget(self.qpn());
        device.memberships.forget(self.qpn());
        device.release_lane(self.lane());
        Ok(())
    }
}

/// The objects to which a queue pair of the soft NIC refers.
fn parts<'a>(
    pd: &'a Pd,
    [send_cq, recv_cq]: [&'a Arc<Cq>; 2],
    srq: Option<&'a Arc<Srq>>,
) -> Result<QpParts<'a>, DeviceError> {
    Ok(QpParts {
        pd: pd.back.soft(ENGINE)?,
        send_cq: &send_cq.back.soft(ENGINE)?.mirror,
        recv_cq: &recv_cq.back.soft(ENGINE)?.mirror,
        srq: srq.map(|srq| srq.back.soft(ENGINE)).transpose()?,
    })
}

fn on_engines(request: &QpRequest) -> Result<mirror::Qp, DeviceError> {
    let QpRequest { pd, send_cq, recv_cq, srq, .. } = request;
    let device = pd.device();
    let init = QpInit {
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge,
        max_recv_sge: request.max_recv_sge,
        max_inline: request.max_inline,
        signal_all: request.signal_all,
        xrcd: request.xrcd.as_ref().map(|xrcd| xrcd.id()),
        ..QpInit::new(request.qp_type, pd.id_on(0)?, send_cq.id())
    };
    let moves = request.qp_type.descriptor().movable;
    let parts = parts(pd, [send_cq, recv_cq], srq.as_ref())?;
    let lane = device.take_lane(request.lane, ENGINE)?;
    let made = mirror::Qp::create(device.engines(), lane, &parts, &init, moves);
    Ok(made.inspect_err(|_| device.release_lane(lane))?)
}

/// Creates the provider's queue pair, if the device is a verbs device.
fn on_verbs(request: &QpRequest) -> Result<Option<ibverbs::Qp>, DeviceError> {
    let QpRequest { pd, send_cq, recv_cq, srq, .. } = request;
    let (Some(pd), Some(send_cq), Some(recv_cq)) =
        (pd.back.verbs(), send_cq.back.verbs(), recv_cq.back.verbs())
    else {
        return Ok(None);
    };
    let srq = srq.as_ref().and_then(|srq| srq.back.verbs());
    let caps = ibverbs::QpCaps {
        max_send_wr: request.max_send_wr,
        max_recv_wr: request.max_recv_wr,
        max_send_sge: request.max_send_sge.into(),
        max_recv_sge: request.max_recv_sge.into(),
        max_inline: request.max_inline,
    };
    let cqs = [send_cq, recv_cq];
    let qp = ibverbs::Qp::create(request.qp_type, pd, cqs, srq, caps, request.signal_all)?;
    Ok(Some(qp))
}
