//! Counterparts on the backup lane: which there are, and those of domains and regions.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_failover::Rail;
use bowline_nic::{Access, ControlError, CqId, Event, MrKey, PdId, QpInit, Region, SrqId};

use crate::cq::CqMirror;
use crate::error::RailsError;
use crate::rails::Rails;
use crate::srq::SrqMirror;

/// How often to draw another key when one is taken on the backup NIC: keys are random numbers of 32
/// bits, so that one is hardly ever taken.
const MAX_KEYS_TRIED: usize = 8;

/// Which object of the first lane has which counterpart.
#[derive(Default)]
pub(crate) struct Tables {
    pds: HashMap<PdId, PdId>,
    cqs: HashMap<CqId, Arc<CqMirror>>,
    srqs: HashMap<SrqId, Arc<SrqMirror>>,
    /// From counterparts to what the program knows.
    cq_names: HashMap<CqId, CqId>,
    srq_names: HashMap<SrqId, SrqId>,
}

impl Tables {
    pub(crate) fn insert_cq(&mut self, [cq, shadow]: [CqId; 2], mirror: Arc<CqMirror>) {
        self.cqs.insert(cq, mirror);
        self.cq_names.insert(shadow, cq);
    }

    pub(crate) fn remove_cq(&mut self, [cq, shadow]: [CqId; 2]) {
        self.cqs.remove(&cq);
        self.cq_names.remove(&shadow);
    }

    pub(crate) fn insert_srq(&mut self, [srq, shadow]: [SrqId; 2], mirror: Arc<SrqMirror>) {
        self.srqs.insert(srq, mirror);
        self.srq_names.insert(shadow, srq);
    }

    pub(crate) fn remove_srq(&mut self, [srq, shadow]: [SrqId; 2]) {
        self.srqs.remove(&srq);
        self.srq_names.remove(&shadow);
    }

    pub(crate) fn cqs(&self) -> impl Iterator<Item = &Arc<CqMirror>> {
        self.cqs.values()
    }

    pub(crate) fn srqs(&self) -> impl Iterator<Item = &Arc<SrqMirror>> {
        self.srqs.values()
    }

    /// What a spare is made with.
    pub(crate) fn spare_init(&self, init: &QpInit) -> Result<QpInit, RailsError> {
        let missing = |what| RailsError::NoCounterpart { what };
        let shadow =
            |cq| self.cqs.get(&cq).map(|m| m.id(Rail::Backup)).ok_or(missing("completion queue"));
        let srq = match init.srq {
            Some(srq) => {
                let mirror = self.srqs.get(&srq).ok_or(missing("shared receive queue"))?;
                Some(mirror.id(Rail::Backup))
            }
            None => None,
        };
        Ok(QpInit {
            pd: self.shadow_pd(init.pd)?,
            send_cq: shadow(init.send_cq)?,
            recv_cq: shadow(init.recv_cq)?,
            srq,
            ..*init
        })
    }

    pub(crate) fn shadow_pd(&self, pd: PdId) -> Result<PdId, RailsError> {
        self.pds.get(&pd).copied().ok_or(RailsError::NoCounterpart { what: "protection domain" })
    }

    /// An event of the backup lane, about the objects that the program knows; `None` for one that is
    /// not the program's. QPs keep their numbers when they move.
    pub(crate) fn translate(&self, event: Event) -> Option<Event> {
        match event {
            Event::CqOverflow(cq) => self.cq_names.get(&cq).copied().map(Event::CqOverflow),
            Event::SrqLimit(srq) => self.srq_names.get(&srq).copied().map(Event::SrqLimit),
            Event::CqNotify(_) | Event::PathFailed(_) => None,
            about_qp => Some(about_qp),
        }
    }
}

impl Rails {
    /// Makes the counterpart of a protection domain.
    pub fn shadow_pd(&self, pd: PdId) -> Result<(), RailsError> {
        let shadow = self.lane(Rail::Backup).with(|nic, _| nic.alloc_pd())??;
        self.shared.tables().pds.insert(pd, shadow);
        Ok(())
    }

    /// Frees the counterpart of a protection domain that has been freed.
    pub fn forget_pd(&self, pd: PdId) -> Result<(), RailsError> {
        match self.shared.tables().pds.remove(&pd) {
            Some(shadow) => Ok(self.lane(Rail::Backup).with(|nic, _| nic.dealloc_pd(shadow))??),
            None => Ok(()),
        }
    }

    /// Registers memory on both NICs under one key. `region` gives the memory as often as it is asked.
    /// If only the backup refuses, connections that use the region fail there, which the log says.
    pub fn register(
        &self,
        pd: PdId,
        region: impl Fn() -> Option<Region>,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, RailsError> {
        let region = || {
            let why = "it reaches beyond the address space";
            region().ok_or(ControlError::Invalid { what: "memory", why })
        };
        let default = self.lane(Rail::Default);
        let shadow = self.shared.tables().shadow_pd(pd);
        for left in (0..MAX_KEYS_TRIED).rev() {
            let ours = region()?;
            let (key, shared) = default.with(|nic, _| {
                let key = nic.register(pd, ours, iova, access)?;
                Ok::<_, ControlError>((key, nic.share_key(key)?))
            })??;
            let registered = match &shadow {
                Ok(shadow) => {
                    let theirs = region()?;
                    let backup = self.lane(Rail::Backup);
                    backup.with(|nic, _| nic.register_as(&shared, *shadow, theirs, iova, access))?
                }
                Err(_) => Err(ControlError::NotFound { what: "protection domain" }),
            };
            match registered {
                Ok(()) => return Ok(key),
                Err(ControlError::Busy { .. }) if left > 0 => {
                    default.with(|nic, _| nic.deregister(key))??;
                }
                Err(error) => {
                    self.shared.log.warn(&format!(
                        "failover: a memory region is not on the backup NIC, and connections that \
                         use it will fail there: {error}"
                    ));
                    return Ok(key);
                }
            }
        }
        Err(ControlError::Busy { what: "every key drawn" }.into())
    }

    /// Ends a registration on both NICs.
    pub fn deregister(&self, key: MrKey) -> Result<(), RailsError> {
        self.lane(Rail::Default).with(|nic, _| nic.deregister(key))??;
        match self.lane(Rail::Backup).with(|nic, _| nic.deregister(key))? {
            // It was refused there, and the log said so.
            Ok(()) | Err(ControlError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
