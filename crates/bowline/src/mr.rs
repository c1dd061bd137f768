//! Memory regions.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use bowline_device as device;
use bowline_nic::{Access, Buffer, MrKey, Sge};
use bowline_sdr::Source;

use crate::direct::SharedRegion;
use crate::pd::PdInner;
use crate::{Error, Pd, RemoteMr};

/// Memory that the device may read and write, and that peers may too if its rights allow it.
///
/// It stays registered until the last clone is dropped; after that, peers' use of its key is
/// refused. It dereferences to its [`Buffer`], which is read and written by copying because a peer
/// may change any byte at any time.
///
/// ```
/// use bowline::{Access, Device};
///
/// let pd = Device::open("127.9.1.1")?.alloc_pd()?;
/// let mr = pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// mr.write_at(0, b"hello");
/// assert_eq!(mr.to_vec(0, 5), b"hello");
/// # Ok::<(), bowline::Error>(())
/// ```
#[derive(Clone)]
pub struct Mr {
    inner: Arc<MrInner>,
}

struct MrInner {
    core: device::Mr,
    buffer: Arc<Buffer>,
    access: Access,
    pd: Arc<PdInner>,
    ended: AtomicBool,
    /// The memory, if peers can map it.
    shared: Option<Arc<SharedRegion>>,
}

impl Mr {
    pub(crate) fn new(pd: &Pd, buffer: Arc<Buffer>, access: Access) -> Result<Mr, Error> {
        Mr::register(pd, buffer, access, None)
    }

    /// Registers new memory that peers can map, if they ever could.
    pub(crate) fn shared(pd: &Pd, len: usize, access: Access) -> Result<Mr, Error> {
        let mut sharing = pd.inner.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        let region = if sharing.has_room() {
            SharedRegion::create(&pd.device(), len, access).map(Arc::new)
        } else {
            None
        };
        let Some(region) = region else { return Mr::new(pd, Buffer::new(len), access) };
        let mr = Mr::register(pd, Arc::clone(region.buffer()), access, Some(Arc::clone(&region)))?;
        sharing.add_region(mr.rkey(), &region);
        Ok(mr)
    }

    fn register(
        pd: &Pd,
        buffer: Arc<Buffer>,
        access: Access,
        shared: Option<Arc<SharedRegion>>,
    ) -> Result<Mr, Error> {
        let core = device::Mr::register(&pd.inner.core, &buffer, access)?;
        let (pd, ended) = (Arc::clone(&pd.inner), AtomicBool::new(false));
        Ok(Mr { inner: Arc::new(MrInner { core, buffer, access, pd, ended, shared }) })
    }

    /// Its local key in work requests: the lkey.
    pub fn key(&self) -> MrKey {
        self.inner.core.key()
    }

    /// Its key for peers. The soft NIC has one key for both; a verbs device may have two.
    pub fn rkey(&self) -> MrKey {
        self.inner.core.rkey()
    }

    /// Its access rights.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The memory itself, which outlives the registration while somebody holds it.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.inner.buffer
    }

    /// What a peer needs to know to use the whole region.
    pub fn remote(&self) -> RemoteMr {
        let buffer = &self.inner.buffer;
        RemoteMr { addr: buffer.addr(), len: buffer.len() as u64, rkey: self.rkey().0 }
    }

    /// An entry of a gather or scatter list for a part of the region.
    pub fn sge(&self, range: Range<usize>) -> Result<Sge, Error> {
        let Range { start, end } = range;
        let len = self.inner.buffer.len();
        let fits = start <= end && end <= len;
        match u32::try_from(end.wrapping_sub(start)) {
            Ok(bytes) if fits => {
                Ok(Sge::new(self.key(), self.inner.buffer.addr() + start as u64, bytes))
            }
            _ => Err(Error::OutOfRange { start, end, len }),
        }
    }

    /// Ends the registration now, even if others still hold the region: requests with its key fail,
    /// and nothing touches the memory after this. For memory whose owner cannot wait for the last
    /// clone.
    pub fn deregister(&self) -> Result<(), Error> {
        self.inner.deregister()
    }

    /// A part of the region for messages of SDR, of queue pairs of domain `pd`, and its length.
    pub(crate) fn source(
        &self,
        pd: &Arc<PdInner>,
        range: Range<usize>,
    ) -> Result<(Source, u64), Error> {
        if !Arc::ptr_eq(self.pd(), pd) {
            return Err(Error::Foreign { what: "the region", of: "protection domain" });
        }
        let (start, len) = (range.start, self.inner.buffer.len());
        if start > range.end || range.end > len {
            return Err(Error::OutOfRange { start, end: range.end, len });
        }
        let addr = self.inner.buffer.addr() + start as u64;
        Ok((Source { key: self.key(), addr }, (range.end - start) as u64))
    }

    pub(crate) fn pd(&self) -> &Arc<PdInner> {
        &self.inner.pd
    }
}

impl Deref for Mr {
    type Target = Buffer;

    fn deref(&self) -> &Buffer {
        &self.inner.buffer
    }
}

impl std::fmt::Debug for Mr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, MrInner { buffer, access, .. }) = (self.key(), &*self.inner);
        write!(f, "Mr(key {key}, {} bytes at {:#x}, {access:?})", buffer.len(), buffer.addr())
    }
}

impl MrInner {
    fn deregister(&self) -> Result<(), Error> {
        // Only once: the key may belong to another region afterwards.
        if self.ended.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(shared) = &self.shared {
            shared.shut();
        }
        Ok(self.core.deregister()?)
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        // The key is ours and nobody else removes it, so this cannot fail; and `drop` could not
        // report it.
        let _ = self.deregister();
    }
}
