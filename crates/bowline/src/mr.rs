//! Memory regions.

use std::ops::{Deref, Range};
use std::sync::Arc;

use bowline_nic::{Access, Buffer, MrKey, Region, Sge};

use crate::pd::PdInner;
use crate::{Error, Pd, RemoteMr};

/// Memory that the device may read and write, and that peers may if its rights say so.
///
/// It stays registered until the last clone is dropped; what peers do with its key after that is
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
    key: MrKey,
    buffer: Arc<Buffer>,
    access: Access,
    pd: Arc<PdInner>,
}

impl Mr {
    pub(crate) fn new(pd: &Pd, buffer: Arc<Buffer>, access: Access) -> Result<Mr, Error> {
        let region = Region::owned(Arc::clone(&buffer));
        let iova = region.addr();
        let pd = Arc::clone(&pd.inner);
        let key = match pd.device.rails() {
            Some(rails) => {
                let region = || Some(Region::owned(Arc::clone(&buffer)));
                rails.register(pd.id, region, iova, access)?
            }
            None => pd.device.control(|nic, _| nic.register(pd.id, region, iova, access))?,
        };
        Ok(Mr { inner: Arc::new(MrInner { key, buffer, access, pd }) })
    }

    /// Its key: locally the lkey, and to peers the rkey.
    pub fn key(&self) -> MrKey {
        self.inner.key
    }

    /// What may be done to it.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The memory itself, which outlives the registration as long as somebody holds it.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.inner.buffer
    }

    /// What a peer needs to know to use the whole region.
    pub fn remote(&self) -> RemoteMr {
        let buffer = &self.inner.buffer;
        RemoteMr { addr: buffer.addr(), len: buffer.len() as u64, rkey: self.inner.key.0 }
    }

    /// An entry of a gather or scatter list for a part of the region.
    pub fn sge(&self, range: Range<usize>) -> Result<Sge, Error> {
        let Range { start, end } = range;
        let len = self.inner.buffer.len();
        let fits = start <= end && end <= len;
        match u32::try_from(end.wrapping_sub(start)) {
            Ok(bytes) if fits => {
                Ok(Sge::new(self.inner.key, self.inner.buffer.addr() + start as u64, bytes))
            }
            _ => Err(Error::OutOfRange { start, end, len }),
        }
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
        let MrInner { key, buffer, access, .. } = &*self.inner;
        write!(f, "Mr(key {key}, {} bytes at {:#x}, {access:?})", buffer.len(), buffer.addr())
    }
}

impl Drop for MrInner {
    fn drop(&mut self) {
        // The key is ours and nobody else removes it, so this cannot fail; and `drop` could not
        // report it.
        let _ = match self.pd.device.rails() {
            Some(rails) => rails.deregister(self.key).map_err(Error::from),
            None => self.pd.device.control(|nic, _| nic.deregister(self.key)),
        };
    }
}
