//! Protection domains.

use bowline_nic::PdId;

use super::users::Users;
use super::{Engines, Layout, MirrorError, Place, end_everywhere, everywhere};

/// A protection domain on every engine of a device.
#[derive(Debug)]
pub struct Pd {
    ids: Box<[PdId]>,
    layout: Layout,
    pub(super) users: Users,
}

pub(super) const WHAT: &str = "protection domain";

impl Pd {
    /// Creates a domain.
    pub fn create<E: Engines>(engines: &E) -> Result<Pd, MirrorError<E::Error>> {
        let undo = |nic: &mut bowline_nic::Nic, id: &PdId| _ = nic.dealloc_pd(*id);
        let ids = everywhere(engines, |nic, _| nic.alloc_pd(), undo)?;
        Ok(Pd { ids, layout: engines.layout(), users: Users::default() })
    }

    /// Its identifier on an engine.
    pub fn id(&self, at: Place) -> PdId {
        self.ids[self.layout.index(at)]
    }

    pub(super) fn id_at(&self, index: usize) -> PdId {
        self.ids[index]
    }

    /// Frees the domain, if it is empty.
    pub fn destroy<E: Engines>(&self, engines: &E) -> Result<(), MirrorError<E::Error>> {
        self.users.end(WHAT)?;
        end_everywhere(engines, &self.ids, |nic, id| nic.dealloc_pd(id))
    }
}
