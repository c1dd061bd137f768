//! Registered memory: protection domains, regions, and the checked port through which every
//! engine reaches them.

mod domain;
mod doors;
mod indirect;
mod live;
pub(crate) mod raw;
mod remote;
mod shared_key;
mod stream;
mod window;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use indirect::{Binding, Slots};
pub(crate) use raw::AtomicOp;
pub use raw::{Buffer, Region, RegionPart, Segment, compute_over};
pub(crate) use remote::Peer;
use shared_key::Revocation;
pub use shared_key::SharedKey;
use window::{Bound, Window};
pub use window::{WindowBinding, WindowScope};

use crate::direct::Door;
use crate::error::ControlError;
use crate::types::{Access, MrKey, PdId, Sge};

/// Why an access was refused. What is reported to the peer or the application depends on who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessDenied;

/// Most slots of an indirect region.
const MAX_SLOTS: u32 = 1 << 16;

/// All regions and protection domains of a NIC.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    /// Slot of each key.
    index: HashMap<u32, u32, BuildHasherDefault<KeyHasher>>,
    slots: Vec<Option<Mr>>,
    free: Vec<u32>,
    /// Slot of the most recent lookup: bulk transfers use the same key over and over.
    hint: Cell<u32>,
    /// Objects that refer to each domain; `None` where there is no domain.
    domains: Vec<Option<u32>>,
    /// Memory windows, by the common prefix of their keys.
    windows: BTreeMap<u32, Window>,
    keys: ChaCha12Rng,
    max_regions: u32,
    max_domains: u32,
    /// Streaming stores have been made since the last fence.
    unsettled: Cell<bool>,
    /// Doors through which peers write regions directly, by the regions' keys.
    doors: Vec<(u32, Door)>,
    /// Nothing forbids to write memory directly.
    pub(crate) is_direct: bool,
}

#[derive(Debug)]
struct Mr {
    key: u32,
    backing: Backing,
    iova: u64,
    pd: PdId,
    access: Access,
    revocation: Revocation,
}

/// What a key refers to.
#[derive(Debug)]
enum Backing {
    Memory(Region),
    /// Only peers' WRITEs may go through it.
    Indirect(Slots),
    /// A part of a region, for the peer of one QP or the peers of all QPs in its domain.
    Window(Bound),
}

impl Mr {
    /// The memory, and the offset of `addr..addr+len` in it, if it lies inside.
    #[inline]
    fn at(&self, addr: u64, len: usize) -> Result<(&Region, usize), AccessDenied> {
        let Backing::Memory(region) = &self.backing else {
            return Err(AccessDenied);
        };
        let offset = usize::try_from(addr.wrapping_sub(self.iova)).map_err(|_| AccessDenied)?;
        let size = region.len();
        if addr < self.iova || offset > size || len > size - offset {
            return Err(AccessDenied);
        }
        Ok((region, offset))
    }
}

/// Rejects contradictory rights.
fn check_access(access: Access) -> Result<(), ControlError> {
    let remote_change = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(remote_change) && !access.contains(Access::LOCAL_WRITE) {
        let why = "remote write and atomic rights need LOCAL_WRITE as well";
        return Err(ControlError::Invalid { what: "access", why });
    }
    Ok(())
}

impl MemoryTable {
    pub(crate) fn new(max_regions: u32, max_domains: u32, key_seed: [u8; 32]) -> MemoryTable {
        MemoryTable {
            index: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            hint: Cell::new(0),
            domains: Vec::new(),
            windows: BTreeMap::new(),
            keys: ChaCha12Rng::from_seed(key_seed),
            max_regions,
            max_domains,
            unsettled: Cell::new(false),
            doors: Vec::new(),
            is_direct: true,
        }
    }

    /// Random bytes from the generator of keys.
    pub(crate) fn fill_secret(&mut self, out: &mut [u8]) {
        self.keys.fill_bytes(out);
    }

    pub(crate) fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        self.register_under(None, pd, region, iova, access)
    }

    /// A key, to be registered on another NIC too.
    pub(crate) fn share(&self, key: MrKey) -> Result<SharedKey, ControlError> {
        let missing = ControlError::NotFound { what: "memory region" };
        let mr = self.find_in_index(key.0).map_err(|_| missing)?;
        if let Backing::Window(_) = mr.backing {
            return Err(missing);
        }
        Ok(SharedKey { key, revocation: mr.revocation.clone() })
    }

    /// Registers memory, under a fresh key or under the one asked for.
    pub(crate) fn register_under(
        &mut self,
        key: Option<&SharedKey>,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        check_access(access)?;
        if iova.checked_add(region.len() as u64).is_none() {
            return Err(ControlError::Invalid {
                what: "iova",
                why: "the region would wrap around",
            });
        }
        self.insert(pd, Backing::Memory(region), iova, access, key)
    }

    /// Changes the access rights of registered memory. Its key stays.
    pub(crate) fn set_access(&mut self, key: MrKey, access: Access) -> Result<(), ControlError> {
        check_access(access)?;
        let missing = ControlError::NotFound { what: "memory region" };
        let slot = *self.index.get(&key.0).ok_or(missing)?;
        match &mut self.slots[slot as usize] {
            Some(mr @ Mr { backing: Backing::Memory(_), .. }) => {
                mr.access = access;
                self.shut_doors(key.0);
                Ok(())
            }
            _ => Err(missing),
        }
    }

    /// Registers a table of `count` slots of `1 << shift` bytes of address space each, from address
    /// zero on, all of them null.
    pub(crate) fn register_indirect(
        &mut self,
        pd: PdId,
        count: u32,
        shift: u32,
    ) -> Result<MrKey, ControlError> {
        if shift > 40 || count > MAX_SLOTS || !count.is_power_of_two() {
            let why = "as many slots as a power of two, 65,536 at most, of at most 1 TiB each";
            return Err(ControlError::Invalid { what: "indirect region", why });
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        self.insert(pd, Backing::Indirect(Slots::new(count, shift)), 0, access, None)
    }

    /// Binds `len` bytes at `addr` of region `to` to a slot, or nothing.
    pub(crate) fn bind_slot(
        &mut self,
        key: MrKey,
        slot: u64,
        to: Option<(MrKey, u64, usize)>,
    ) -> Result<(), ControlError> {
        let missing = ControlError::NotFound { what: "memory region" };
        let root = *self.index.get(&key.0).ok_or(missing)?;
        let binding = match to {
            None => None,
            Some((key, addr, len)) => Some(self.binding(self.pd_of(root)?, key, addr, len)?),
        };
        let Some(Mr { backing: Backing::Indirect(slots), .. }) = self.slots[root as usize].as_mut()
        else {
            let why = "the key is not one of an indirect region";
            return Err(ControlError::Invalid { what: "key", why });
        };
        if binding.is_some_and(|b| b.len as u64 > slots.slot_bytes()) {
            let why = "it is longer than a slot";
            return Err(ControlError::Invalid { what: "binding", why });
        }
        let is_bound = slots.bind(slot, binding);
        is_bound.then_some(()).ok_or(ControlError::NotFound { what: "slot" })
    }

    /// Checks that `len` bytes at `addr` of a region may be bound to slots of its domain.
    pub(crate) fn binding(
        &self,
        pd: PdId,
        key: MrKey,
        addr: u64,
        len: usize,
    ) -> Result<Binding, ControlError> {
        let missing = ControlError::NotFound { what: "memory region" };
        let place = *self.index.get(&key.0).ok_or(missing)?;
        let mr = self.slots[place as usize].as_ref().ok_or(missing)?;
        if !mr.access.contains(Access::REMOTE_WRITE) || mr.pd != pd {
            let why = "it takes a region of the same domain that peers may write";
            return Err(ControlError::Invalid { what: "binding", why });
        }
        let why = "the bytes are not inside the region";
        let outside = ControlError::Invalid { what: "binding", why };
        let (_, offset) = mr.at(addr, len).map_err(|_| outside)?;
        Ok(Binding { place, key, offset, len })
    }

    fn pd_of(&self, place: u32) -> Result<PdId, ControlError> {
        let mr = self.slots[place as usize].as_ref();
        mr.map(|mr| mr.pd).ok_or(ControlError::NotFound { what: "memory region" })
    }

    fn insert(
        &mut self,
        pd: PdId,
        backing: Backing,
        iova: u64,
        access: Access,
        shared: Option<&SharedKey>,
    ) -> Result<MrKey, ControlError> {
        if shared.is_some_and(|SharedKey { key, .. }| self.is_taken(key.0)) {
            return Err(ControlError::Busy { what: "the key" });
        }
        if self.index.len() >= self.max_regions as usize {
            let limit = u64::from(self.max_regions);
            return Err(ControlError::Exhausted { what: "memory regions", limit });
        }
        self.hold_pd(pd)?;
        let key = shared.map_or_else(|| self.fresh_key(), |SharedKey { key, .. }| key.0);
        let slot = self.add(key, backing, iova, pd, access);
        if let (Some(SharedKey { revocation, .. }), Some(mr)) = (shared, &mut self.slots[slot]) {
            mr.revocation = revocation.clone();
        }
        Ok(MrKey(key))
    }

    /// Registers something under a key that is not taken; returns its slot.
    fn add(&mut self, key: u32, backing: Backing, iova: u64, pd: PdId, access: Access) -> usize {
        let mr = Some(Mr { key, backing, iova, pd, access, revocation: Revocation::new(access) });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = mr;
                slot
            }
            None => {
                self.slots.push(mr);
                self.slots.len() as u32 - 1
            }
        };
        self.index.insert(key, slot);
        slot as usize
    }

    /// Removes what is registered under a key.
    fn remove(&mut self, key: u32) -> Option<Mr> {
        let slot = self.index.remove(&key)?;
        self.shut_doors(key);
        self.free.push(slot);
        self.slots[slot as usize].take()
    }

    /// Whether a key is in use, or may become a window's.
    fn is_taken(&self, key: u32) -> bool {
        self.index.contains_key(&key) || self.windows.contains_key(&window::prefix(key))
    }

    /// A key that is not in use and cannot be guessed: a key names a region by lookup, not by
    /// index, so all 32 bits come from the generator. Zero stays invalid, to catch unset keys.
    fn fresh_key(&mut self) -> u32 {
        loop {
            let key = self.keys.next_u32();
            if key != 0 && !self.is_taken(key) {
                return key;
            }
        }
    }

    pub(crate) fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> {
        if self.windows.contains_key(&window::prefix(key.0)) {
            return Err(ControlError::NotFound { what: "memory region" });
        }
        if self.has_windows(key) {
            return Err(ControlError::Busy { what: "the memory region" });
        }
        let mr = self.remove(key.0).ok_or(ControlError::NotFound { what: "memory region" })?;
        self.release_pd(mr.pd);
        Ok(())
    }

    #[inline]
    fn find(&self, key: u32) -> Result<&Mr, AccessDenied> {
        match self.slots.get(self.hint.get() as usize) {
            Some(Some(mr)) if mr.key == key => Ok(mr),
            _ => self.find_in_index(key),
        }
    }

    fn find_in_index(&self, key: u32) -> Result<&Mr, AccessDenied> {
        let slot = *self.index.get(&key).ok_or(AccessDenied)?;
        self.hint.set(slot);
        self.slots[slot as usize].as_ref().ok_or(AccessDenied)
    }

    #[inline]
    fn local(&self, pd: PdId, sge: &Sge, write: bool) -> Result<&Mr, AccessDenied> {
        let mr = self.find(sge.lkey)?;
        if mr.pd != pd || (write && !mr.access.contains(Access::LOCAL_WRITE)) {
            return Err(AccessDenied);
        }
        Ok(mr)
    }

    /// Checks a whole gather or scatter list, before any of it is used.
    pub(crate) fn check_local(
        &self,
        pd: PdId,
        sges: &[Sge],
        write: bool,
    ) -> Result<(), AccessDenied> {
        sges.iter().filter(|sge| sge.len > 0).try_for_each(|sge| {
            self.local(pd, sge, write)?.at(sge.addr, sge.len as usize).map(drop)
        })
    }

    /// Appends segments for bytes `offset..offset+len` of a gather list.
    #[inline]
    pub(crate) fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        len: u32,
        out: &mut Vec<Segment>,
    ) -> Result<(), AccessDenied> {
        for_each_piece(sges, offset, len, |sge, addr, _, len| {
            let mr = self.local(pd, sge, false)?;
            let (region, at) = mr.at(addr, len)?;
            out.push(region.segment(at, len).ok_or(AccessDenied)?);
            Ok(())
        })
    }

    /// Writes `bytes` to position `offset` of a scatter list. The caller tells whether they end a
    /// message: everything before becomes visible no later than its end.
    #[inline]
    pub(crate) fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        bytes: &[u8],
        ends: bool,
    ) -> Result<(), AccessDenied> {
        for_each_piece(sges, offset, bytes.len() as u32, |sge, addr, from, len| {
            let mr = self.local(pd, sge, true)?;
            let (region, at) = mr.at(addr, len)?;
            self.store(region, at, &bytes[from..from + len], ends)
        })
    }

    /// Runs `f` over local memory: pieces to be read, and pieces to be written, which must not
    /// overlap each other or what is read.
    pub(crate) fn with_slices<R>(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R,
    ) -> Result<R, AccessDenied> {
        let find = |sge: &Sge, write| {
            let (region, at) = self.local(pd, sge, write)?.at(sge.addr, sge.len as usize)?;
            region.segment(at, sge.len as usize).ok_or(AccessDenied)
        };
        let reads = reads.iter().map(|sge| find(sge, false)).collect::<Result<Vec<_>, _>>()?;
        let writes = writes.iter().map(|sge| find(sge, true)).collect::<Result<Vec<_>, _>>()?;
        raw::with_slices(&reads, &writes, f).ok_or(AccessDenied)
    }

    /// A fence: everything written so far is visible before anything that is written from now on.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.unsettled.replace(false) {
            stream::settle();
        }
    }

    /// Writes bytes of a packet, which may end its message.
    #[inline]
    fn store(
        &self,
        region: &Region,
        at: usize,
        bytes: &[u8],
        ends: bool,
    ) -> Result<(), AccessDenied> {
        if ends {
            self.settle();
        }
        let streamed = region.write(at, bytes, !ends).ok_or(AccessDenied)?;
        if streamed {
            self.unsettled.set(true);
        }
        Ok(())
    }
}

/// Calls `f(sge, address, offset in the range, length)` for each piece of bytes
/// `offset..offset+len` of a list; fails if the list is shorter.
#[inline]
fn for_each_piece(
    sges: &[Sge],
    offset: u32,
    len: u32,
    mut f: impl FnMut(&Sge, u64, usize, usize) -> Result<(), AccessDenied>,
) -> Result<(), AccessDenied> {
    let (mut skip, mut left) = (offset, len);
    for sge in sges {
        if left == 0 {
            break;
        }
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let piece = left.min(sge.len - skip);
        f(sge, sge.addr.wrapping_add(u64::from(skip)), (len - left) as usize, piece as usize)?;
        left -= piece;
        skip = 0;
    }
    if left == 0 { Ok(()) } else { Err(AccessDenied) }
}

/// Keys are uniformly random already: hashing them again would buy nothing.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(b);
        }
    }

    #[inline]
    fn write_u32(&mut self, key: u32) {
        // The table takes its tag from the top bits and its bucket from the bottom ones.
        self.0 = u64::from(key) << 32 | u64::from(key);
    }
}

#[cfg(test)]
mod tests;
