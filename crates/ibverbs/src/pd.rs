//! Protection domains, and what work requests of their queue pairs name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_nic::AddressVector;
use bowline_verbs_types::{ibv_ah, ibv_mr, ibv_mw, ibv_pd};

use crate::address::ah_attr;
use crate::{Context, VerbsError};

/// A protection domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: *mut ibv_pd,
    named: Mutex<Named>,
}

/// Objects that work requests name by a key or an address, where verbs want a pointer.
#[derive(Default)]
struct Named {
    /// Address handles of datagrams. They live as long as the domain: a request that is under way may use one.
    destinations: HashMap<AddressVector, *mut ibv_ah>,
    /// Memory windows, by the upper 24 bits of their keys.
    windows: HashMap<u32, *mut ibv_mw>,
    /// Regions that windows may be bound to, by their local keys.
    regions: HashMap<u32, *mut ibv_mr>,
}

// SAFETY: verbs objects may be used from any thread, and from several at once; the tables are locked.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Makes a domain.
    pub fn alloc(context: &Arc<Context>) -> Result<Pd, VerbsError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw) };
        if raw.is_null() {
            return Err(VerbsError::last("allocate a protection domain"));
        }
        Ok(Pd { context: Arc::clone(context), raw, named: Mutex::default() })
    }

    /// The address handle for datagrams to `av`; `None` if the device takes no more.
    pub(crate) fn destination(&self, av: &AddressVector) -> Option<*mut ibv_ah> {
        let mut named = self.lock();
        if let Some(ah) = named.destinations.get(av) {
            return Some(*ah);
        }
        if named.destinations.len() >= self.context.caps().max_destinations as usize {
            return None;
        }
        let mut attr = ah_attr(av, self.context.port, self.context.sgid_index);
        // SAFETY: the domain lives, and the attributes are read during the call.
        let ah = unsafe { (self.context.library.ibv_create_ah)(self.raw, &raw mut attr) };
        if ah.is_null() {
            return None;
        }
        named.destinations.insert(*av, ah);
        Some(ah)
    }

    pub(crate) fn add_window(&self, key: u32, window: *mut ibv_mw) {
        self.lock().windows.insert(key >> 8, window);
    }

    pub(crate) fn remove_window(&self, key: u32) {
        self.lock().windows.remove(&(key >> 8));
    }

    pub(crate) fn add_region(&self, lkey: u32, region: *mut ibv_mr) {
        self.lock().regions.insert(lkey, region);
    }

    pub(crate) fn remove_region(&self, lkey: u32) {
        self.lock().regions.remove(&lkey);
    }

    /// What a binding names. Nothing leaves the tables while the guard lives, so that it can be posted.
    pub(crate) fn named(&self) -> NamedGuard<'_> {
        NamedGuard(self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tables of a domain, held.
pub(crate) struct NamedGuard<'a>(MutexGuard<'a, Named>);

impl NamedGuard<'_> {
    /// The window that a key is of.
    pub(crate) fn window(&self, key: u32) -> Option<*mut ibv_mw> {
        self.0.windows.get(&(key >> 8)).copied()
    }

    /// The region that a local key is of.
    pub(crate) fn region(&self, lkey: u32) -> Option<*mut ibv_mr> {
        self.0.regions.get(&lkey).copied()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        let destinations = std::mem::take(&mut self.lock().destinations);
        // SAFETY: everything made of the domain holds it, so that nothing is left of it but its address
        // handles, which no request uses any more.
        unsafe {
            for ah in destinations.into_values() {
                let _ = (self.context.library.ibv_destroy_ah)(ah);
            }
            let _ = (self.context.library.ibv_dealloc_pd)(self.raw);
        }
    }
}
