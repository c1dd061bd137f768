//! Shared receive queues: one queue that every engine takes from.

use bowline_nic::{ControlError, PostError, RecvWr, SharedSrq, SrqId};

use super::users::Users;
use super::{Engines, Layout, MirrorError, Pd, Place, end_everywhere, everywhere, pd};

/// A shared receive queue of a device.
#[derive(Debug)]
pub struct Srq {
    queue: SharedSrq,
    ids: Box<[SrqId]>,
    layout: Layout,
    pub(super) users: Users,
}

pub(super) const WHAT: &str = "shared receive queue";

impl Srq {
    /// Makes a queue for `max_wr` receives.
    pub fn create<E: Engines>(
        engines: &E,
        pd: &Pd,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<Srq, MirrorError<E::Error>> {
        pd.users.hold(pd::WHAT)?;
        Srq::make(engines, pd, max_wr, max_sge).inspect_err(|_| pd.users.release())
    }

    fn make<E: Engines>(
        engines: &E,
        pd: &Pd,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<Srq, MirrorError<E::Error>> {
        // The first engine checks the sizes before memory is taken for them.
        let first = Place::lane(0);
        let queue = engines.with(first, |nic, _| {
            let srq = nic.create_srq(pd.id(first), max_wr, max_sge)?;
            let queue = nic.share_srq(srq);
            nic.destroy_srq(srq)?;
            queue
        });
        let queue = queue.map_err(MirrorError::Engine)??;
        let undo = |nic: &mut bowline_nic::Nic, id: &SrqId| _ = nic.destroy_srq(*id);
        let adopt = |nic: &mut bowline_nic::Nic, at| nic.adopt_srq(pd.id_at(at), &queue);
        let ids = everywhere(engines, adopt, undo)?;
        Ok(Srq { queue, ids, layout: engines.layout(), users: Users::default() })
    }

    /// What an engine calls it.
    pub fn id(&self, at: Place) -> SrqId {
        self.ids[self.layout.index(at)]
    }

    /// What every engine calls it, in the order of the layout's places.
    pub fn ids(&self) -> &[SrqId] {
        &self.ids
    }

    /// Posts a receive. No engine is called for it.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.queue.post(wr)
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), ControlError> {
        self.queue.set_limit(limit)
    }

    /// Receives that wait.
    pub fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Whether no receive waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Destroys the queue, if no queue pair uses it.
    pub fn destroy<E: Engines>(&self, engines: &E, pd: &Pd) -> Result<(), MirrorError<E::Error>> {
        self.users.end(WHAT)?;
        end_everywhere(engines, &self.ids, |nic, id| nic.destroy_srq(id))?;
        pd.users.release();
        Ok(())
    }
}
