//! Queue pairs.

use std::sync::Arc;

use bowline_failover::mirror::{self, Engines, QpParts};
use bowline_io::LaneError;
use bowline_nic::{ModifyError, Nic, QpAttr, QpInfo, QpInit, QpState, QpType, Time};
use bowline_wire::Qpn;

use crate::{Cq, Device, DeviceError, Pd, Srq, turn};

/// What a queue pair is to be.
pub struct QpRequest {
    /// Its transport.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: Arc<Pd>,
    /// Where its sends complete.
    pub send_cq: Arc<Cq>,
    /// Where its receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where its receives come from, if not from a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// Pieces of memory that one send gathers.
    pub max_send_sge: u8,
    /// Pieces of memory that one receive scatters to.
    pub max_recv_sge: u8,
    /// Bytes that a send can carry in the work request itself.
    pub max_inline: u32,
    /// Every send has a completion, whatever its flags say.
    pub signal_all: bool,
    /// The lane to put it on, modulo their number; the one with the fewest queue pairs if `None`.
    pub lane: Option<usize>,
}

/// A queue pair on one lane of a device.
pub struct Qp {
    mirror: mirror::Qp,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
}

impl Qp {
    /// Makes a queue pair, in the reset state.
    pub fn create(request: QpRequest) -> Result<Qp, DeviceError> {
        let QpRequest { pd, send_cq, recv_cq, srq, .. } = &request;
        let device = pd.device();
        let foreign = |other: &Arc<Device>| !Arc::ptr_eq(device, other);
        if foreign(send_cq.device()) || foreign(recv_cq.device()) {
            return Err(DeviceError::Foreign { what: "the completion queue" });
        }
        if srq.as_ref().is_some_and(|srq| foreign(srq.pd().device())) {
            return Err(DeviceError::Foreign { what: "the shared receive queue" });
        }
        let init = QpInit {
            max_send_wr: request.max_send_wr,
            max_recv_wr: request.max_recv_wr,
            max_send_sge: request.max_send_sge,
            max_recv_sge: request.max_recv_sge,
            max_inline: request.max_inline,
            signal_all: request.signal_all,
            ..QpInit::new(request.qp_type, pd.id_on(0), send_cq.id())
        };
        let moves = request.qp_type.descriptor().movable;
        let parts = QpParts {
            pd: &pd.mirror,
            send_cq: &send_cq.mirror,
            recv_cq: &recv_cq.mirror,
            srq: srq.as_ref().map(|srq| &srq.mirror),
        };
        let lane = device.take_lane(request.lane);
        let made = mirror::Qp::create(device.engines(), lane, &parts, &init, moves);
        let mirror = made.inspect_err(|_| device.release_lane(lane))?;
        let qp = Qp {
            mirror,
            pd: request.pd,
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            srq: request.srq,
        };
        if let Some(failover) = qp.device().failover() {
            failover.begin(&qp.mirror);
        }
        Ok(qp)
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        self.pd.device()
    }

    /// Its number.
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.mirror.qpn()
    }

    /// Its lane.
    pub fn lane(&self) -> usize {
        self.mirror.lane()
    }

    /// Posts through `post`, which gets the number to post to, and gives `None` for
    /// [`PostError::Away`](bowline_nic::PostError::Away): it is called again then, where the connection
    /// went. What is posted may leave together with what is posted next.
    ///
    /// `None` if the connection is nowhere, which only a lane that has ended can bring about.
    #[inline]
    pub fn post<R>(
        &self,
        post: impl FnMut(&mut Nic, Time, Qpn) -> Option<R>,
    ) -> Result<Option<R>, LaneError> {
        let engines = self.device().engines();
        if engines.layout().lanes > 1 {
            turn::posted(self.mirror.lane());
        }
        self.mirror.post(engines, post)
    }

    /// Calls the engine that has its queues, with its number there.
    pub fn control<R>(&self, verb: impl FnOnce(&mut Nic, Time, Qpn) -> R) -> Result<R, LaneError> {
        let device = self.device();
        // Meanwhile it does not move.
        let _held = device.failover().map(|failover| failover.hold());
        self.mirror.control(device.engines(), verb)
    }

    /// Changes attributes or the state.
    pub fn modify(&self, attr: &QpAttr) -> Result<Result<(), ModifyError>, LaneError> {
        if let Some(failover) = self.device().failover() {
            // One that ends is at home first.
            match attr.state {
                Some(QpState::Reset) => failover.reset(&self.mirror),
                Some(QpState::Err) => failover.end(&self.mirror),
                _ => {}
            }
        }
        let done = self.control(|nic, now, qpn| nic.modify_qp(now, qpn, attr))?;
        if let (Ok(()), Some(failover), Some(QpState::Rtr), Some(av), Some(dest_qpn)) =
            (done, self.device().failover(), attr.state, attr.av, attr.dest_qpn)
        {
            failover.connected(&self.mirror, av.dst, dest_qpn);
        }
        Ok(done)
    }

    /// State and attributes: where the peer is, and PSNs, as the program set them; the rest as it is where
    /// the connection is. `None` if there is no such queue pair any more.
    pub fn info(&self) -> Result<Option<QpInfo>, LaneError> {
        let (home, qpn) = self.mirror.on(bowline_failover::Rail::Default);
        let set = self.device().engines().lane(home).with(|nic, _| nic.query_qp(qpn))?;
        if self.mirror.spare().is_none() {
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

    /// Destroys the queue pair. What it had outstanding vanishes without completions.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        let device = self.device();
        if let Some(failover) = device.failover() {
            failover.end(&self.mirror);
        }
        let parts = QpParts {
            pd: &self.pd.mirror,
            send_cq: &self.send_cq.mirror,
            recv_cq: &self.recv_cq.mirror,
            srq: self.srq.as_ref().map(|srq| &srq.mirror),
        };
        self.mirror.destroy(device.engines(), &parts)?;
        device.release_lane(self.lane());
        Ok(())
    }
}
