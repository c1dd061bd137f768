//! Protection domains: reference counts of the objects in each.

use super::MemoryTable;
use crate::error::ControlError;
use crate::types::PdId;

impl MemoryTable {
    pub(crate) fn alloc_pd(&mut self) -> Result<PdId, ControlError> {
        let id = match self.domains.iter().position(Option::is_none) {
            Some(id) => id,
            None if self.domains.len() < self.max_domains as usize => {
                self.domains.push(None);
                self.domains.len() - 1
            }
            None => {
                let limit = u64::from(self.max_domains);
                return Err(ControlError::Exhausted { what: "protection domains", limit });
            }
        };
        self.domains[id] = Some(0);
        Ok(PdId(id as u32))
    }

    pub(crate) fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        match *self.domain(pd)? {
            0 => {
                self.domains[pd.0 as usize] = None;
                Ok(())
            }
            _ => Err(ControlError::Busy { what: "the protection domain" }),
        }
    }

    /// Counts one more object in the domain.
    pub(crate) fn hold_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        *self.domain(pd)? += 1;
        Ok(())
    }

    /// Counts one object fewer.
    pub(crate) fn release_pd(&mut self, pd: PdId) {
        if let Ok(users) = self.domain(pd) {
            *users = users.saturating_sub(1);
        }
    }

    fn domain(&mut self, pd: PdId) -> Result<&mut u32, ControlError> {
        self.domains
            .get_mut(pd.0 as usize)
            .and_then(Option::as_mut)
            .ok_or(ControlError::NotFound { what: "protection domain" })
    }
}
