//! Which doors lead to which regions: a region that is gone must not be written directly.

use super::{Backing, MemoryTable};
use crate::direct::Door;
use crate::error::ControlError;
use crate::types::{Access, MrKey, PdId};

impl MemoryTable {
    /// Records that a door leads to these regions. All of them must be memory of domain `pd` that
    /// peers may write, and not revoke.
    pub(crate) fn lead(
        &mut self,
        pd: PdId,
        keys: &[MrKey],
        door: &Door,
    ) -> Result<(), ControlError> {
        if !self.is_direct {
            let why = "everything has to go through packets at present";
            return Err(ControlError::Invalid { what: "door", why });
        }
        for key in keys {
            let mr =
                self.find(key.0).map_err(|_| ControlError::NotFound { what: "memory region" })?;
            let is_memory = matches!(mr.backing, Backing::Memory(_)) && mr.pd == pd;
            let may_write = mr.access.contains(Access::REMOTE_WRITE)
                && !mr.access.contains(Access::REMOTE_INVALIDATE);
            if !is_memory || !may_write {
                let why = "only memory that peers may write, and not revoke, can be shared";
                return Err(ControlError::Invalid { what: "memory region", why });
            }
        }
        self.doors.retain(|(_, other)| other.is_open());
        self.doors.extend(keys.iter().map(|key| (key.0, door.clone())));
        Ok(())
    }

    /// Says whether memory is written directly at present, in either direction. Doors that this
    /// closes are not opened again.
    #[inline]
    pub(crate) fn set_direct(&mut self, is_direct: bool) {
        if self.is_direct != is_direct {
            self.change_direct(is_direct);
        }
    }

    #[cold]
    fn change_direct(&mut self, is_direct: bool) {
        self.is_direct = is_direct;
        self.doors.drain(..).for_each(|(_, door)| door.close());
    }

    /// Closes the doors to a region.
    pub(super) fn shut_doors(&mut self, key: u32) {
        self.doors.retain(|(leads_to, door)| {
            if *leads_to == key {
                door.close();
            }
            door.is_open()
        });
    }
}
