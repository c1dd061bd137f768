//! Protection domains, and what work requests of their queue pairs name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_nic::memory::{RegionPart, compute_over};
use bowline_nic::{Access, AddressVector, Compute, PdId, Region, Sge};
use bowline_verbs_types::{ibv_ah, ibv_mr, ibv_mw, ibv_pd};

use crate::address::ah_attr;
use crate::{Context, VerbsError};

/// A protection domain.
pub struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: *mut ibv_pd,
    id: PdId,
    named: Mutex<Named>,
}

/// Objects that work requests name by a key or an address, where verbs want a pointer.
#[derive(Default)]
struct Named {
    /// Address handles of datagrams. They live as long as the domain: a request that is under way
    /// may use one.
    destinations: HashMap<AddressVector, *mut ibv_ah>,
    /// Memory windows, by the upper 24 bits of their keys.
    windows: HashMap<u32, *mut ibv_mw>,
    /// Registered memory, by its local keys: windows may be bound to it, and protocols compute over
    /// it.
    regions: HashMap<u32, Registered>,
}

/// Memory that is registered.
pub(crate) struct Registered {
    pub(crate) raw: *mut ibv_mr,
    pub(crate) region: Region,
    /// The address of its first byte, as work requests count.
    pub(crate) iova: u64,
    pub(crate) access: Access,
}

impl Registered {
    /// Where `len` bytes at an address are in the region.
    fn part(&self, addr: u64, len: usize, access: Access) -> Option<RegionPart<'_>> {
        let offset = usize::try_from(addr.checked_sub(self.iova)?).ok()?;
        let end = offset.checked_add(len)?;
        let allowed = self.access.contains(access) && end <= self.region.len();
        allowed.then_some((&self.region, offset, len))
    }
}

// SAFETY: verbs objects may be used from any thread, and from several at once; the tables are
// locked.
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
        let id = context.watched.next_pd();
        Ok(Pd { context: Arc::clone(context), raw, id, named: Mutex::default() })
    }

    /// Its identifier, for protocols.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Computes over registered memory; `None` if a key, a range or a right does not check, or
    /// pieces overlap. No region ends meanwhile.
    pub(crate) fn compute(&self, reads: &[Sge], writes: &[Sge], f: &mut Compute<'_>) -> Option<()> {
        let named = self.lock();
        let find = |sge: &Sge, access| {
            named.regions.get(&sge.lkey)?.part(sge.addr, sge.len as usize, access)
        };
        let read = |sge| find(sge, Access::empty());
        let reads = reads.iter().map(read).collect::<Option<Vec<_>>>()?;
        let write = |sge| find(sge, Access::LOCAL_WRITE);
        let writes = writes.iter().map(write).collect::<Option<Vec<_>>>()?;
        // SAFETY: memory that was registered with the right to be written is valid for that until
        // it is deregistered, and deregistering waits for the table.
        unsafe { compute_over(&reads, &writes, f) }
    }

    /// Whether protocols may write `len` bytes of a region.
    pub(crate) fn is_writable(&self, key: u32, addr: u64, len: usize) -> bool {
        let named = self.lock();
        let region = named.regions.get(&key);
        region.is_some_and(|region| region.part(addr, len, Access::LOCAL_WRITE).is_some())
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

    pub(crate) fn add_region(&self, lkey: u32, region: Registered) {
        self.lock().regions.insert(lkey, region);
    }

    pub(crate) fn remove_region(&self, lkey: u32) -> Option<Registered> {
        self.lock().regions.remove(&lkey)
    }

    /// What a binding names. Nothing leaves the tables while the guard lives, so that it can be
    /// posted.
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
        Some(self.0.regions.get(&lkey)?.raw)
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        let destinations = std::mem::take(&mut self.lock().destinations);
        // SAFETY: everything made of the domain holds it, so that nothing is left of it but its
        // address handles, which no request uses any more.
        unsafe {
            for ah in destinations.into_values() {
                let _ = (self.context.library.ibv_destroy_ah)(ah);
            }
            let _ = (self.context.library.ibv_dealloc_pd)(self.raw);
        }
    }
}
