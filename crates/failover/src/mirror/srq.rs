//! Shared receive queues: one queue that all engines take receives from.

use bowline_nic::{ControlError, PostError, RecvWr, SharedSrq, SrqId, XrcSrq, XrcdId};

use super::users::Users;
use super::{Cq, Engines, Layout, MirrorError, Pd, Place, end_everywhere, everywhere, pd};

/// A shared receive queue of a device.
#[derive(Debug)]
pub struct Srq {
    queue: SharedSrq,
    ids: Box<[SrqId]>,
    layout: Layout,
    pub(super) users: Users,
}

pub(super) const WHAT: &str = "shared receive queue";

/// For a queue used by extended reliable connections: how peers name it, and where its receives
/// complete.
#[derive(Clone, Copy, Debug)]
pub struct Extended<'a> {
    /// Its domain.
    pub domain: XrcdId,
    /// Its number.
    pub number: u32,
    /// Where its receives complete.
    pub cq: &'a Cq,
}

impl Srq {
    /// Creates a queue for `max_wr` receives.
    pub fn create<E: Engines>(
        engines: &E,
        pd: &Pd,
        max_wr: u32,
        max_sge: u8,
    ) -> Result<Srq, MirrorError<E::Error>> {
        pd.users.hold(pd::WHAT)?;
        Srq::make(engines, pd, max_wr, max_sge, None).inspect_err(|_| pd.users.release())
    }

    /// Creates a queue for peers of extended reliable connections. Its receives complete on the
    /// lane of the queue pair on which the message arrived, which may be any.
    pub fn create_extended<E: Engines>(
        engines: &E,
        pd: &Pd,
        max_wr: u32,
        max_sge: u8,
        xrc: Extended<'_>,
    ) -> Result<Srq, MirrorError<E::Error>> {
        let lanes = 0..engines.layout().lanes;
        pd.users.hold(pd::WHAT)?;
        for lane in lanes.clone() {
            if let Err(error) = xrc.cq.hold(lane) {
                (0..lane).for_each(|held| xrc.cq.release(held));
                pd.users.release();
                return Err(error.into());
            }
        }
        let made = Srq::make(engines, pd, max_wr, max_sge, Some(xrc)).and_then(|srq| {
            let mut joined = lanes.clone().map(|lane| xrc.cq.joined(engines, lane));
            joined.try_for_each(|joined| joined).map_err(MirrorError::Engine)?;
            Ok(srq)
        });
        made.inspect_err(|_| {
            lanes.clone().for_each(|lane| xrc.cq.release(lane));
            pd.users.release();
        })
    }

    fn make<E: Engines>(
        engines: &E,
        pd: &Pd,
        max_wr: u32,
        max_sge: u8,
        xrc: Option<Extended<'_>>,
    ) -> Result<Srq, MirrorError<E::Error>> {
        // The first engine checks the sizes before memory is allocated for them.
        let first = Place::lane(0);
        let queue = engines.with(first, |nic, _| {
            let srq = nic.create_srq(pd.id(first), max_wr, max_sge)?;
            let queue = nic.share_srq(srq);
            nic.destroy_srq(srq)?;
            queue
        });
        let queue = queue.map_err(MirrorError::Engine)??;
        let undo = |nic: &mut bowline_nic::Nic, id: &SrqId| _ = nic.destroy_srq(*id);
        let adopt = |nic: &mut bowline_nic::Nic, at| match xrc {
            None => nic.adopt_srq(pd.id_at(at), &queue),
            Some(Extended { domain, number, cq }) => {
                let xrc = XrcSrq { domain, number, cq: cq.ids()[at] };
                nic.adopt_xrc_srq(pd.id_at(at), &queue, xrc)
            }
        };
        let ids = everywhere(engines, adopt, undo)?;
        Ok(Srq { queue, ids, layout: engines.layout(), users: Users::default() })
    }

    /// Its identifier on an engine.
    pub fn id(&self, at: Place) -> SrqId {
        self.ids[self.layout.index(at)]
    }

    /// Its identifiers on all engines, in the order of the layout's places.
    pub fn ids(&self) -> &[SrqId] {
        &self.ids
    }

    /// Posts a receive. This calls no engine.
    #[inline]
    pub fn post(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.queue.post(wr)
    }

    /// Asks for one event when fewer than `limit` receives are left; 0 for none.
    pub fn set_limit(&self, limit: u32) -> Result<(), ControlError> {
        self.queue.set_limit(limit)
    }

    /// Changes how many receives there is room for. Posted receives stay, so they must fit.
    pub fn resize(&self, max_wr: u32) -> Result<(), ControlError> {
        self.queue.resize(max_wr)
    }

    /// How many receives it has room for.
    pub fn max_wr(&self) -> u32 {
        self.queue.max_wr()
    }

    /// Number of posted receives.
    pub fn len(&self) -> u32 {
        self.queue.len()
    }

    /// Whether no receive is posted.
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

    /// Destroys a queue created by [`Srq::create_extended`], whose receives complete on `cq`.
    pub fn destroy_extended<E: Engines>(
        &self,
        engines: &E,
        pd: &Pd,
        cq: &Cq,
    ) -> Result<(), MirrorError<E::Error>> {
        self.destroy(engines, pd)?;
        (0..self.layout.lanes).for_each(|lane| cq.release(lane));
        Ok(())
    }
}
