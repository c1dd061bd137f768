//! Queue pairs.

mod builder;
mod connect;
mod ops;

use std::sync::Arc;

use bowline_nic::{QpAttr, QpCounters, QpState, QpType, RateControl};
use bowline_wire::{Psn, Qpn};

pub use builder::{DEFAULT_QKEY, QpBuilder};
pub use connect::ConnectOptions;
pub use ops::BatchError;

use crate::cq::CqInner;
use crate::pd::PdInner;
use crate::srq::SrqInner;
use crate::{Endpoint, Error};

/// A queue pair: one end of a connection, or a sender and receiver of datagrams.
///
/// Made by [`Pd::qp`](crate::Pd::qp), connected by [`Channel::connect`](crate::Channel::connect)
/// or, with what was exchanged by other means, by [`Qp::connect`]. It can be used from several
/// threads; requests of one thread keep their order.
#[derive(Clone)]
pub struct Qp {
    inner: Arc<QpInner>,
}

struct QpInner {
    qpn: Qpn,
    psn: Psn,
    qp_type: QpType,
    qkey: u32,
    pd: Arc<PdInner>,
    // Held so that they outlive the queue pair, in whatever order the handles are dropped.
    _send_cq: Arc<CqInner>,
    _recv_cq: Arc<CqInner>,
    _srq: Option<Arc<SrqInner>>,
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.inner.qpn
    }

    /// Its transport.
    pub fn qp_type(&self) -> QpType {
        self.inner.qp_type
    }

    /// What its peer needs to know.
    pub fn endpoint(&self) -> Endpoint {
        let device = &self.inner.pd.device;
        Endpoint {
            qp_type: self.inner.qp_type,
            addr: device.addr(),
            udp_port: device.udp_port(),
            qpn: self.inner.qpn,
            psn: self.inner.psn,
            mtu: device.mtu(),
            rd_atomic: device.max_rd_atomic(),
        }
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        // A queue pair that the device does not know, or a device that has ended, does nothing more.
        let info = self.device().query(|nic| nic.query_qp(self.inner.qpn));
        info.ok().flatten().map_or(QpState::Err, |info| info.state)
    }

    /// What it has done and seen.
    pub fn counters(&self) -> Result<QpCounters, Error> {
        let counters = self.device().query(|nic| nic.qp_counters(self.inner.qpn).cloned());
        Ok(counters?.unwrap_or_default())
    }

    /// Changes attributes or the state, as `ibv_modify_qp` does.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        self.device().control(|nic, now| nic.modify_qp(now, self.inner.qpn, attr))
    }

    /// Moves it to the error state, which flushes everything outstanding.
    pub fn close(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: Some(QpState::Err), ..QpAttr::default() })
    }

    /// Chooses how fast it may send.
    pub fn set_rate_control(&self, control: RateControl) -> Result<(), Error> {
        let qpn = self.inner.qpn;
        self.device().control(|nic, now| nic.set_rate_control(now, qpn, control))
    }

    /// Gives it a window of its own instead of its share of the device's towards the peer.
    ///
    /// On a long link it should hold about twice the bandwidth-delay product.
    pub fn set_window(&self, bytes: u32) -> Result<(), Error> {
        self.device().control(|nic, _| nic.set_window(self.inner.qpn, bytes))
    }

    fn device(&self) -> &crate::device::DeviceInner {
        &self.inner.pd.device
    }
}

impl std::fmt::Debug for Qp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Qp({:?} {} of {})", self.inner.qp_type, self.inner.qpn, self.device().addr())
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        // The number is ours and nobody else destroys it.
        let _ = self.pd.device.control(|nic, _| nic.destroy_qp(self.qpn));
    }
}
