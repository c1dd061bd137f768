//! An end in this process: a device of the facade, on a UDP socket or on the system's verbs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::{
    Access, AddressVector, Completion, Cq, Device, Event, Mr, Mw, Payload, Pd, Psn, QpAttr,
    QpState, QpType, Qpn, RecvWr, Remote, SendWr, Sge, UdDest, VerbsCaps, WcStatus,
};

use super::groups::{Group, Groups};
use super::keys::Keys;
use crate::{
    Bridge, Bridged, Clock, Connection, End, Failure, Maker, MrId, Outcome, Piece, QpId, QpOptions,
    Region, Send,
};

/// The request that binds a window to memory whose key may be revoked, and how long it may take.
const BIND: u64 = u64::MAX;
/// How long a notification may take after its completion.
const NOTIFICATION_LIMIT: Duration = Duration::from_millis(50);
const BIND_LIMIT: Duration = Duration::from_secs(10);

/// A device with everything that checks create on it.
pub struct DeviceEnd {
    device: Device,
    pd: Pd,
    regions: Vec<Memory>,
    qps: Vec<Option<DeviceQp>>,
    /// Memory windows, by the keys that they were bound with.
    windows: Vec<(u32, Mw)>,
    /// Seals its connections.
    keys: Option<Keys>,
    groups: Option<Groups>,
}

struct Memory {
    buffer: Arc<bowline::Buffer>,
    /// The registration; `None` once it has ended.
    mr: Option<Mr>,
    whole: Sge,
}

struct DeviceQp {
    /// Dropped with the queue pair.
    group: Option<Group>,
    qp: bowline::Qp,
    send_cq: Cq,
    recv_cq: Cq,
}

impl DeviceEnd {
    /// An end on a device.
    pub fn new(device: Device) -> Outcome<DeviceEnd> {
        let pd = device.alloc_pd()?;
        let (regions, qps, windows) = (Vec::new(), Vec::new(), Vec::new());
        Ok(DeviceEnd { device, pd, regions, qps, windows, keys: None, groups: None })
    }

    /// The same end with sealed connections.
    #[must_use]
    pub fn sealed(self, keys: Keys) -> DeviceEnd {
        DeviceEnd { keys: Some(keys), ..self }
    }

    /// The same end, with a group between its RC queue pairs and their peers.
    #[must_use]
    pub fn with_groups(self, groups: Groups) -> DeviceEnd {
        DeviceEnd { groups: Some(groups), ..self }
    }

    fn qp(&mut self, qp: QpId) -> Outcome<&mut DeviceQp> {
        let found = self.qps.get_mut(qp.0).and_then(Option::as_mut);
        found.ok_or_else(|| Failure::new("no such queue pair"))
    }

    fn sge(&self, piece: Piece) -> Sge {
        let whole = self.regions[piece.region.0].whole;
        Sge { addr: whole.addr + piece.offset as u64, len: piece.len as u32, lkey: whole.lkey }
    }
}

impl End for DeviceEnd {
    fn addr(&self) -> IpAddr {
        self.device.addr()
    }

    fn maker(&self) -> Maker {
        match self.device.verbs_caps() {
            Some(caps) if caps.vendor_id == VerbsCaps::RXE => Maker::Rxe,
            _ => Maker::Bowline,
        }
    }

    fn register(&mut self, len: usize, access: Access) -> Outcome<Region> {
        let mr = self.pd.register(len, access)?;
        let remote = mr.remote();
        let id = MrId(self.regions.len());
        let (buffer, whole) = (mr.buffer().clone(), mr.sge(0..len)?);
        self.regions.push(Memory { buffer, mr: Some(mr), whole });
        Ok(Region { id, addr: remote.addr, len, rkey: remote.rkey })
    }

    fn register_revocable(&mut self, qp: QpId, len: usize) -> Outcome<Region> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        if self.device.verbs_caps().is_none() {
            return self.register(len, rights | Access::REMOTE_INVALIDATE);
        }
        // Verbs have no such access right: use a window, whose key can be revoked.
        let region = self.register(len, rights | Access::BIND_WINDOW)?;
        let window = self.bind_window(qp, BIND, region.piece(0, len))?;
        let bound = self.qp(qp)?.send_cq.next(BIND_LIMIT)?;
        if (bound.wr_id, bound.status) != (BIND, WcStatus::Success) {
            return Err(Failure::new(format!("binding a window: {bound:?}")));
        }
        Ok(Region { rkey: window.rkey, ..region })
    }

    fn bind_window(&mut self, qp: QpId, wr_id: u64, piece: Piece) -> Outcome<Remote> {
        let Piece { region, offset, len } = piece;
        let window = self.pd.alloc_window()?;
        let mr = self.regions[region.0].mr.as_ref();
        let mr = mr.ok_or_else(|| Failure::new("the region is not registered"))?;
        let (bind, remote) = window.bind(mr, offset..offset + len, 1, Access::REMOTE_WRITE)?;
        self.windows.push((remote.rkey, window));
        self.qp(qp)?.qp.post_send(&SendWr::new(wr_id, bind, &[]))?;
        Ok(remote)
    }

    fn free_window(&mut self, rkey: u32) -> Outcome {
        self.windows.retain(|(key, _)| *key != rkey);
        Ok(())
    }

    fn deregister(&mut self, region: MrId) -> Outcome {
        self.regions[region.0].mr = None;
        Ok(())
    }

    fn peek(&mut self, piece: Piece) -> Outcome<Vec<u8>> {
        Ok(self.regions[piece.region.0].buffer.to_vec(piece.offset, piece.len))
    }

    fn poke(&mut self, region: MrId, offset: usize, bytes: &[u8]) -> Outcome {
        self.regions[region.0].buffer.write_at(offset, bytes);
        Ok(())
    }

    fn create_qp(&mut self, options: &QpOptions) -> Outcome<(QpId, u32)> {
        let (send_cq, recv_cq) = (self.device.create_cq(1024)?, self.device.create_cq(1024)?);
        let builder = self.pd.qp(options.qp_type, &send_cq).recv_cq(&recv_cq);
        let builder = builder.max_send_wr(128).max_recv_wr(128).max_inline(64);
        let qp = builder.access(options.access).qkey(options.qkey).build()?;
        let qpn = qp.qpn().get();
        self.qps.push(Some(DeviceQp { group: None, qp, send_cq, recv_cq }));
        Ok((QpId(self.qps.len() - 1), qpn))
    }

    fn destroy_qp(&mut self, qp: QpId) -> Outcome {
        self.qps[qp.0] = None;
        Ok(())
    }

    fn bridge(&mut self, qp: QpId, bridge: &Bridge) -> Outcome<Option<Bridged>> {
        let Some(groups) = self.groups.clone() else { return Ok(None) };
        let qp = self.qp(qp)?;
        let (group, bridged) = groups.bridge(Some(&qp.qp), qp.qp.endpoint(), bridge)?;
        qp.group = Some(group);
        Ok(Some(bridged))
    }

    fn connect(&mut self, qp: QpId, connection: &Connection) -> Outcome {
        let keys = self.keys.clone();
        let qp = &self.qp(qp)?.qp;
        if let Some(keys) = keys
            && qp.qp_type().descriptor().connected
        {
            let number = keys.number(qp.qpn().get(), connection.qpn);
            qp.seal(&keys.session, number, keys.role, &keys.config)?;
        }
        qp.modify(&path_attr(qp.qp_type(), connection))?;
        Ok(qp.modify(&ready_attr(qp.qp_type(), connection))?)
    }

    fn fail(&mut self, qp: QpId) -> Outcome {
        Ok(self.qp(qp)?.qp.close()?)
    }

    fn state(&mut self, qp: QpId) -> Outcome<QpState> {
        Ok(self.qp(qp)?.qp.state())
    }

    fn post_recv(&mut self, qp: QpId, wr_id: u64, into: Piece) -> Outcome {
        let sge = [self.sge(into)];
        let sges = if into.len == 0 { &[][..] } else { &sge };
        Ok(self.qp(qp)?.qp.post_recv(&RecvWr::new(wr_id, sges))?)
    }

    fn post_send(&mut self, qp: QpId, send: &Send) -> Outcome {
        let bytes = if send.inline { self.peek(send.piece)? } else { Vec::new() };
        let sge = [self.sge(send.piece)];
        let payload = inline_or_sges(send, &bytes, &sge);
        let ud = send.to.map(|to| UdDest {
            av: AddressVector::new(to.addr),
            qpn: Qpn::new(to.qpn),
            qkey: to.qkey,
        });
        let wr = SendWr { payload, flags: send.flags, ud, ..SendWr::new(send.wr_id, send.op, &[]) };
        Ok(self.qp(qp)?.qp.post_send(&wr)?)
    }

    fn poll(&mut self, qp: QpId) -> Outcome<Vec<Completion>> {
        let qp = self.qp(qp)?;
        let mut found = Vec::new();
        for cq in [&qp.send_cq, &qp.recv_cq] {
            let mut out = [Completion::default(); 64];
            let count = cq.poll(&mut out)?;
            found.extend_from_slice(&out[..count]);
        }
        Ok(found)
    }

    fn arm_solicited(&mut self, qp: QpId) -> Outcome {
        Ok(self.qp(qp)?.recv_cq.arm_solicited()?)
    }

    fn notified(&mut self, qp: QpId) -> Outcome<bool> {
        Ok(self.qp(qp)?.recv_cq.notified(NOTIFICATION_LIMIT)?)
    }

    fn events(&mut self) -> Outcome<Vec<Event>> {
        let mut found = Vec::new();
        while let Some(event) = self.device.next_event(Duration::ZERO)? {
            found.push(event);
        }
        Ok(found)
    }
}

/// The time of this machine.
pub struct WallClock(Instant);

impl WallClock {
    /// A clock that starts now.
    pub fn start() -> WallClock {
        WallClock(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn pass(&mut self, time: Duration) -> Outcome {
        std::thread::sleep(time);
        Ok(())
    }
}

/// The attributes that make one of our queue pairs ready to receive.
pub(super) fn path_attr(qp_type: QpType, to: &Connection) -> QpAttr {
    let (connected, reliable) = (qp_type.descriptor().connected, qp_type.descriptor().reliable);
    QpAttr {
        state: Some(QpState::Rtr),
        av: connected.then_some(AddressVector::new(to.addr)),
        path_mtu: connected.then_some(to.mtu),
        dest_qpn: connected.then_some(Qpn::new(to.qpn)),
        rq_psn: connected.then_some(Psn::new(to.rq_psn)),
        max_dest_rd_atomic: reliable.then_some(to.rd_atomic),
        min_rnr_timer: reliable.then_some(to.min_rnr_timer),
        ..QpAttr::default()
    }
}

/// The attributes that make it ready to send.
pub(super) fn ready_attr(qp_type: QpType, to: &Connection) -> QpAttr {
    let reliable = qp_type.descriptor().reliable;
    QpAttr {
        state: Some(QpState::Rts),
        sq_psn: Some(Psn::new(to.sq_psn)),
        timeout: reliable.then_some(to.timeout),
        retry_count: reliable.then_some(to.retry),
        rnr_retry: reliable.then_some(to.rnr_retry),
        max_rd_atomic: reliable.then_some(to.rd_atomic),
        ..QpAttr::default()
    }
}

/// Where a request's payload is; an empty message has none to gather.
pub(super) fn inline_or_sges<'a>(send: &Send, bytes: &'a [u8], sges: &'a [Sge]) -> Payload<'a> {
    match (send.inline, send.piece.len) {
        (true, _) => Payload::Inline(bytes),
        (false, 0) => Payload::Sges(&[]),
        (false, _) => Payload::Sges(sges),
    }
}
