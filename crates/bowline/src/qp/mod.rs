//! Queue pairs.

mod builder;
mod connect;
mod ops;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bowline_device as device;
use bowline_nic::{
    ControllerFactory, LossRecord, Nic, PostError, QpAttr, QpCounters, QpState, QpType,
    RateControl, Time,
};
use bowline_wire::{Psn, Qpn};

pub use builder::{DEFAULT_QKEY, QpBuilder};
pub use connect::ConnectOptions;
pub use ops::BatchError;

use self::ops::WentAway;
use crate::cq::CqInner;
use crate::direct::{OwnDoor, Sharing};
use crate::pd::PdInner;
use crate::srq::SrqInner;
use crate::{Endpoint, Error};

/// A queue pair: one end of a connection, or a sender and receiver of datagrams.
///
/// Created by [`Pd::qp`](crate::Pd::qp), connected by [`Channel::connect`](crate::Channel::connect)
/// or, after an exchange by other means, by [`Qp::connect`]. It can be used from several threads;
/// requests of one thread keep their order.
#[derive(Clone)]
pub struct Qp {
    inner: Arc<QpInner>,
}

struct QpInner {
    core: device::Qp,
    psn: Psn,
    qp_type: QpType,
    qkey: u32,
    pd: Arc<PdInner>,
    // Held so that they outlive the queue pair, in whatever order handles are dropped.
    _send_cq: Arc<CqInner>,
    _recv_cq: Arc<CqInner>,
    _srq: Option<Arc<SrqInner>>,
    /// Lets the peer write shared memory directly.
    door: Mutex<Option<Arc<OwnDoor>>>,
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.core.qpn()
    }

    /// The lane of the device that it is on.
    pub fn lane(&self) -> usize {
        self.inner.core.lane()
    }

    /// Its transport.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// What its peer needs to know.
    pub fn endpoint(&self) -> Endpoint {
        let config = self.device().config();
        Endpoint {
            qp_type: self.inner.qp_type,
            addr: config.addr,
            udp_port: config.udp_port,
            qpn: self.qpn(),
            psn: self.inner.psn,
            mtu: config.max_mtu,
            rd_atomic: config.max_rd_atomic,
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        // A queue pair that the device does not know, or on a device that has ended, counts as
        // failed.
        self.inner.core.state().ok().flatten().unwrap_or(QpState::Err)
    }

    /// Its counters.
    pub fn counters(&self) -> Result<QpCounters, Error> {
        self.device().needs_soft_nic("counting a queue pair's packets")?;
        let counters = self.control(|nic, _, qpn| nic.qp_counters(qpn).cloned());
        Ok(counters?.unwrap_or_default())
    }

    /// Changes attributes or the state, as `ibv_modify_qp` does.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        self.inner.core.modify(attr)??;
        if matches!(attr.state, Some(QpState::Err | QpState::Reset)) {
            self.inner.shut_door();
        }
        Ok(())
    }

    /// Moves it to the error state, which flushes everything outstanding.
    pub fn close(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() })
    }

    /// Sets its rate control.
    pub fn set_rate_control(&self, control: RateControl) -> Result<(), Error> {
        self.choose_controller(control.factory())
    }

    /// Uses rate controllers from `factory`. Each connection gets one of its own.
    pub fn set_rate_controller(&self, factory: Arc<dyn ControllerFactory>) -> Result<(), Error> {
        self.choose_controller(Some(factory))
    }

    fn choose_controller(&self, factory: Option<Arc<dyn ControllerFactory>>) -> Result<(), Error> {
        self.device().needs_soft_nic("a rate controller")?;
        Ok(self.control(|nic, now, qpn| nic.set_rate_controller(now, qpn, factory))??)
    }

    /// Gives it a window of its own instead of a share of the device's window to the peer.
    ///
    /// On a long link it should hold about twice the bandwidth-delay product.
    pub fn set_window(&self, bytes: u32) -> Result<(), Error> {
        self.device().needs_soft_nic("a window of its own")?;
        Ok(self.control(|nic, _, qpn| nic.set_window(qpn, bytes))??)
    }

    /// A deadline this far from now, for [`SendWr::deadline`](crate::SendWr::deadline) and
    /// [`RecvWr::deadline`](crate::RecvWr::deadline) of an XP queue pair.
    pub fn deadline_in(&self, timeout: Duration) -> Result<Time, Error> {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.control(|_, now, _| now.plus_nanos(nanos))
    }

    /// What was missing from the oldest partial receive or READ that an XP queue pair still has on
    /// record ([`XpOptions::loss_log`](crate::XpOptions::loss_log)).
    pub fn take_loss(&self) -> Result<Option<LossRecord>, Error> {
        self.control(|nic, _, qpn| nic.take_loss(qpn))
    }

    /// Reserves a number of the same engine: that of a queue pair that stays in reset.
    pub(crate) fn hold_number(&self) -> Result<device::Qp, Error> {
        Ok(device::Qp::create(device::QpRequest {
            qp_type: QpType::Rc,
            pd: Arc::clone(&self.inner.pd.core),
            send_cq: Arc::clone(&self.inner._send_cq.core),
            recv_cq: Arc::clone(&self.inner._recv_cq.core),
            srq: None,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
            xrcd: None,
            lane: Some(self.lane()),
        })?)
    }

    /// The device's own handle.
    pub(crate) fn core(&self) -> &device::Qp {
        &self.inner.core
    }

    pub(crate) fn device(&self) -> &device::Device {
        self.inner.pd.device()
    }

    pub(crate) fn sharing(&self) -> &Mutex<Sharing> {
        &self.inner.pd.sharing
    }

    /// Keeps a door as long as the connection lasts.
    pub(crate) fn keep_door(&self, door: Arc<OwnDoor>) {
        *self.inner.door.lock().unwrap_or_else(PoisonError::into_inner) = Some(door);
    }

    /// Calls the NIC that it is on now, with its number there.
    pub(crate) fn control<R>(
        &self,
        verb: impl FnOnce(&mut Nic, Time, Qpn) -> R,
    ) -> Result<R, Error> {
        Ok(self.inner.core.control(verb)?)
    }

    /// Posts work on its current NIC, possibly batched with what is posted next. `post` is called
    /// again if the connection has moved meanwhile.
    #[inline]
    fn post_work<E: WentAway>(
        &self,
        mut post: impl FnMut(&mut Nic, Time, Qpn) -> Result<(), E>,
    ) -> Result<(), Error>
    where
        Error: From<E>,
    {
        let posted = self.inner.core.post(|nic, now, qpn| match post(nic, now, qpn) {
            Err(error) if error.went_away() => None,
            done => Some(done),
        })?;
        match posted {
            Some(done) => Ok(done?),
            None => Err(Error::Post(PostError::Away)),
        }
    }
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Qp({:?} {} of {})", self.inner.qp_type, self.qpn(), self.device().addr())
    }
}

impl QpInner {
    /// Its peer writes nothing directly any longer.
    fn shut_door(&self) {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(door) = door {
            door.shut();
        }
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // It is ours and nobody else destroys it.
        let _ = self.core.destroy();
        self.shut_door();
    }
}
