//! Creating a queue pair.

use std::sync::{Arc, Mutex};

use bowline_device::{self as device, QpRequest};
use bowline_nic::{Access, ControllerFactory, QpAttr, QpState, QpType, RateControl, XpOptions};
use bowline_wire::Psn;

use super::{Qp, QpInner};
use crate::{Cq, Error, Pd, Srq};

/// The default Q_Key of UD queue pairs.
pub const DEFAULT_QKEY: u32 = 0x1111_1111;

/// Settings of a new queue pair; see [`Pd::qp`].
///
/// ```
/// use bowline::{Device, QpType};
///
/// let device = Device::open("127.9.1.2")?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(128)?);
/// let qp = pd.qp(QpType::Rc, &cq).max_send_wr(16).max_inline(64).build()?;
/// println!("tell your peer: {:?}", qp.endpoint());
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct QpBuilder {
    pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    qp_type: QpType,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u8,
    max_recv_sge: u8,
    max_inline: u32,
    signal_all: bool,
    access: Access,
    qkey: u32,
    lane: Option<usize>,
    /// `Some` if chosen; the inner `None` means no rate control.
    controllers: Option<Option<Arc<dyn ControllerFactory>>>,
    xp: Option<XpOptions>,
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd, qp_type: QpType, cq: &Cq) -> QpBuilder {
        QpBuilder {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            qp_type,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
            signal_all: false,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: DEFAULT_QKEY,
            lane: None,
            controllers: None,
            xp: None,
        }
    }

    /// Lets receives complete on another queue than sends.
    pub fn recv_cq(mut self, cq: &Cq) -> Self {
        self.recv_cq = cq.clone();
        self
    }

    /// Takes receives from a shared queue.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sends that can be outstanding; 64 by default.
    pub fn max_send_wr(mut self, count: u32) -> Self {
        self.max_send_wr = count;
        self
    }

    /// Receives that can be outstanding; 64 by default.
    pub fn max_recv_wr(mut self, count: u32) -> Self {
        self.max_recv_wr = count;
        self
    }

    /// Most gather entries of a send and scatter entries of a receive; 1 by default.
    pub fn max_sge(mut self, count: u8) -> Self {
        self.max_send_sge = count;
        self.max_recv_sge = count;
        self
    }

    /// Bytes that a send can carry in the work request itself; 64 by default.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.max_inline = bytes;
        self
    }

    /// Raises a completion for every send, whatever its flags say.
    pub fn signal_all(mut self, yes: bool) -> Self {
        self.signal_all = yes;
        self
    }

    /// What the peer may do through the queue pair; by default all one-sided operations. The rights
    /// of each memory region apply on top.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The key that datagrams to a UD queue pair must carry; [`DEFAULT_QKEY`] by default.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self
    }

    /// The lane to put it on, modulo their number; by default the one with the fewest queue pairs.
    /// Queue pairs of one thread belong on one lane, those of different threads on different ones.
    pub fn lane(mut self, lane: usize) -> Self {
        self.lane = Some(lane);
        self
    }

    /// Uses rate controllers from `factory`, like [`Qp::set_rate_controller`]; the device's by
    /// default.
    pub fn rate_controller(mut self, factory: Arc<dyn ControllerFactory>) -> Self {
        self.controllers = Some(Some(factory));
        self
    }

    /// Uses one of Bowline's own rate controllers, by name as in `"bbr".parse()`; the device's by
    /// default.
    pub fn congestion_control(mut self, control: &RateControl) -> Self {
        self.controllers = Some(control.factory());
        self
    }

    /// How a queue pair of type XP receives; by default one message at a time, ended by its last
    /// packet.
    pub fn xp(mut self, options: XpOptions) -> Self {
        self.xp = Some(options);
        self
    }

    /// Creates the queue pair. Receives can be posted at once; sending requires a connection.
    pub fn build(self) -> Result<Qp, Error> {
        let psn = device::random_bytes().map_err(|e| Error::system("read randomness", e))?;
        let psn = Psn::new(u32::from_ne_bytes(psn));
        let core = device::Qp::create(QpRequest {
            qp_type: self.qp_type,
            pd: Arc::clone(&self.pd.inner.core),
            send_cq: Arc::clone(&self.send_cq.inner.core),
            recv_cq: Arc::clone(&self.recv_cq.inner.core),
            srq: self.srq.as_ref().map(|srq| Arc::clone(&srq.inner.core)),
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline: self.max_inline,
            signal_all: self.signal_all,
            xrcd: None,
            lane: self.lane,
        })?;
        // From here on dropping `qp` destroys the queue pair, even if the next step fails.
        let qp = Qp {
            inner: Arc::new(QpInner {
                core,
                psn,
                qp_type: self.qp_type,
                qkey: self.qkey,
                pd: self.pd.inner,
                _send_cq: self.send_cq.inner,
                _recv_cq: self.recv_cq.inner,
                _srq: self.srq.map(|s| s.inner),
                door: Mutex::default(),
            }),
        };
        if let Some(factory) = self.controllers {
            qp.choose_controller(factory)?;
        }
        if let Some(options) = self.xp {
            qp.device().needs_soft_nic("XP")?;
            qp.control(|nic, _, qpn| nic.set_xp(qpn, &options))??;
        }
        let connected = self.qp_type.descriptor().connected;
        qp.modify(&QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: connected.then_some(self.access),
            qkey: (!connected).then_some(self.qkey),
            ..QpAttr::default()
        })?;
        Ok(qp)
    }
}
