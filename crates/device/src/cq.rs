//! Completion queues.

use std::sync::{Arc, PoisonError};

use bowline_failover::mirror::{self, Engines, Place};
use bowline_ibverbs as ibverbs;
use bowline_io::{CqNotify, EventChannel, LaneError};
use bowline_nic::{Completion, CqId, Nic, Time};

use crate::backend::Backend;
use crate::turn::turn;
use crate::verbs::no_lane;
use crate::{Device, DeviceError};

/// A completion queue for queue pairs on any lane.
pub struct Cq {
    device: Arc<Device>,
    pub(crate) back: Backend<SoftCq, Arc<ibverbs::Cq>>,
}

/// A completion queue of the soft NIC.
pub(crate) struct SoftCq {
    pub(crate) mirror: Arc<mirror::Cq>,
    /// Receives the queue's events.
    notify: Option<CqNotify>,
}

impl Cq {
    /// Creates a queue for `depth` completions per lane. Its events go to a channel, under a token.
    pub fn create(
        device: &Arc<Device>,
        depth: u32,
        notify: Option<(Arc<EventChannel<u64>>, u64)>,
    ) -> Result<Cq, DeviceError> {
        let back = match &device.verbs {
            None => Backend::Soft(SoftCq::create(device, depth, notify)?),
            Some(verbs) => {
                Backend::Verbs(Arc::new(ibverbs::Cq::create(&verbs.context, depth, notify)?))
            }
        };
        Ok(Cq { device: Arc::clone(device), back })
    }

    /// Changes the number of completions per lane. The completions in the queue stay, and must fit.
    pub fn resize(&self, depth: u32) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(soft) => Ok(soft.mirror.resize(self.device.engines(), depth)?),
            Backend::Verbs(cq) => Ok(cq.resize(depth)?),
        }
    }

    /// The queue's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The queue's identifier, as in [`Event::CqOverflow`](bowline_nic::Event::CqOverflow).
    pub fn id(&self) -> CqId {
        match &self.back {
            Backend::Soft(soft) => soft.mirror.id(Place::lane(0)),
            Backend::Verbs(cq) => cq.id(),
        }
    }

    /// Drives a lane that has queue pairs with this queue, and polls up to `wanted` completions
    /// through `take`. `take` gets the queue to poll and the number of completions that there is
    /// room for, and returns how many it took. Fails on a verbs device, which has no lanes: see
    /// [`Cq::poll_completions`].
    #[inline]
    pub fn poll<X: From<LaneError>>(
        &self,
        wanted: usize,
        take: impl FnMut(&mut Nic, Time, CqId, usize) -> Result<usize, X>,
    ) -> Result<usize, X> {
        let Backend::Soft(soft) = &self.back else { return Err(no_lane().into()) };
        let device = &*self.device;
        soft.mirror.poll(device.engines(), device.is_split(), turn, wanted, take)
    }

    /// Takes completions, and drives a lane that has queue pairs with this queue.
    #[inline]
    pub fn poll_completions(&self, out: &mut [Completion]) -> Result<usize, DeviceError> {
        if let Backend::Verbs(cq) = &self.back {
            return Ok(cq.poll(out)?);
        }
        let mut filled = 0;
        self.poll(out.len(), |nic, _, cq, room| {
            let taken = nic.poll_cq(cq, &mut out[filled..filled + room])?;
            filled += taken;
            Ok(taken)
        })
    }

    /// Takes the completions that are available, without driving a lane.
    pub fn take(&self, out: &mut [Completion]) -> Result<usize, DeviceError> {
        let device = &*self.device;
        match &self.back {
            Backend::Soft(soft) => soft.mirror.take(device.engines(), device.is_split(), out),
            Backend::Verbs(cq) => Ok(cq.poll(out)?),
        }
    }

    /// Requests one event at the next completion, or at the next one that is solicited or failed.
    /// Completions that are already in the queue raise no event, so poll once more after arming.
    pub fn arm(&self, solicited_only: bool) -> Result<(), DeviceError> {
        let device = &*self.device;
        match &self.back {
            Backend::Soft(soft) => {
                soft.mirror.arm(device.engines(), || device.is_split(), solicited_only)?;
            }
            Backend::Verbs(cq) => cq.arm(solicited_only)?,
        }
        Ok(())
    }

    /// Destroys the queue. Fails while a queue pair uses it. On a verbs device the queue ends when
    /// it is dropped.
    pub fn destroy(&self) -> Result<(), DeviceError> {
        match &self.back {
            Backend::Soft(soft) => soft.destroy(&self.device),
            Backend::Verbs(_) => Ok(()),
        }
    }
}

impl SoftCq {
    fn create(
        device: &Device,
        depth: u32,
        notify: Option<(Arc<EventChannel<u64>>, u64)>,
    ) -> Result<SoftCq, DeviceError> {
        let mirror = Arc::new(mirror::Cq::create(device.engines(), depth)?);
        let notify = notify.map(|(channel, token)| {
            let gate = Arc::clone(&mirror);
            CqNotify::new(channel, token).gated(move || gate.notified())
        });
        let cq = SoftCq { mirror, notify };
        device.names().write().unwrap_or_else(PoisonError::into_inner).add_cq(&cq.mirror);
        if let Err(error) = cq.listen(device) {
            let _ = cq.destroy(device);
            return Err(error.into());
        }
        Ok(cq)
    }

    /// Makes every engine report completions.
    fn listen(&self, device: &Device) -> Result<(), LaneError> {
        let Some(notify) = &self.notify else { return Ok(()) };
        for at in device.engines().layout().places() {
            device.engines().lane(at).notify_cq(self.mirror.id(at), notify.clone())?;
        }
        device.watch_cq(&self.mirror, notify);
        Ok(())
    }

    fn destroy(&self, device: &Device) -> Result<(), DeviceError> {
        let engines = device.engines();
        self.mirror.destroy(engines)?;
        if self.notify.is_some() {
            device.unwatch_cq(&self.mirror);
            for at in engines.layout().places() {
                // An engine that has ended has nothing to forget.
                let _ = engines.lane(at).forget_cq(self.mirror.id(at));
            }
        }
        let names = device.names();
        names.write().unwrap_or_else(PoisonError::into_inner).remove_cq(&self.mirror);
        Ok(())
    }
}
