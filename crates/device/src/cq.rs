//! Completion queues.

use std::sync::{Arc, PoisonError};

use bowline_failover::mirror::{self, Engines, Place};
use bowline_io::{CqNotify, EventChannel, LaneError};
use bowline_nic::{Completion, CqId, Nic, Time};

use crate::turn::turn;
use crate::{Device, DeviceError};

/// A completion queue for queue pairs of any lane.
pub struct Cq {
    device: Arc<Device>,
    pub(crate) mirror: Arc<mirror::Cq>,
    /// Whoever waits for events.
    notify: Option<CqNotify>,
}

impl Cq {
    /// Makes a queue for `depth` completions of each lane. Its events go to a channel, under a token.
    pub fn create(
        device: &Arc<Device>,
        depth: u32,
        notify: Option<(Arc<EventChannel<u64>>, u64)>,
    ) -> Result<Cq, DeviceError> {
        let mirror = Arc::new(mirror::Cq::create(device.engines(), depth)?);
        let notify = notify.map(|(channel, token)| {
            let gate = Arc::clone(&mirror);
            CqNotify::new(channel, token).gated(move || gate.notified())
        });
        let cq = Cq { device: Arc::clone(device), mirror, notify };
        device.names().write().unwrap_or_else(PoisonError::into_inner).add_cq(&cq.mirror);
        if let Err(error) = cq.listen() {
            let _ = cq.destroy();
            return Err(error.into());
        }
        Ok(cq)
    }

    /// Has every engine tell of completions.
    fn listen(&self) -> Result<(), LaneError> {
        let Some(notify) = &self.notify else { return Ok(()) };
        for at in self.device.engines().layout().places() {
            self.device.engines().lane(at).notify_cq(self.mirror.id(at), notify.clone())?;
        }
        self.device.watch_cq(&self.mirror, notify);
        Ok(())
    }

    /// Changes how many completions of each lane there is room for. What is in the queue stays, and must fit.
    pub fn resize(&self, depth: u32) -> Result<(), DeviceError> {
        Ok(self.mirror.resize(self.device.engines(), depth)?)
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its identifier, as [`Event::CqOverflow`](bowline_nic::Event::CqOverflow) names it.
    pub fn id(&self) -> CqId {
        self.mirror.id(Place::lane(0))
    }

    /// Drives a lane that has queue pairs of the queue, and polls up to `wanted` completions through
    /// `take`, which gets the queue to ask, how many there is room for, and says how many it took.
    #[inline]
    pub fn poll<X: From<LaneError>>(
        &self,
        wanted: usize,
        take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X>,
    ) -> Result<usize, X> {
        let device = &*self.device;
        self.mirror.poll(device.engines(), device.is_split(), turn, wanted, take)
    }

    /// Takes completions that are there, and drives nothing.
    pub fn take(&self, out: &mut [Completion]) -> Result<usize, DeviceError> {
        let device = &*self.device;
        self.mirror.take(device.engines(), device.is_split(), out)
    }

    /// Asks for one event at the next completion, or at the next that is solicited or failed. What is in
    /// the queue already raises nothing: poll once more after arming.
    pub fn arm(&self, solicited_only: bool) -> Result<(), LaneError> {
        let device = &*self.device;
        self.mirror.arm(device.engines(), || device.is_split(), solicited_only)
    }

    /// Destroys the queue; fails while a queue pair uses it.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        let engines = self.device.engines();
        self.mirror.destroy(engines)?;
        if self.notify.is_some() {
            self.device.unwatch_cq(&self.mirror);
            for at in engines.layout().places() {
                // An engine that has ended has nothing to forget.
                let _ = engines.lane(at).forget_cq(self.mirror.id(at));
            }
        }
        let names = self.device.names();
        names.write().unwrap_or_else(PoisonError::into_inner).remove_cq(&self.mirror);
        Ok(())
    }
}
