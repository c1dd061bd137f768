//! Memory windows.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bowline_device as device;
use bowline_nic::{Access, Remote, SendOp, WindowBinding, WindowScope};

use crate::pd::PdInner;
use crate::{Error, Mr, Pd};

/// A type 2 memory window: a key to a part of a region, for the peer of one queue pair, that can be
/// revoked at once.
///
/// It is bound by a work request ([`Mw::bind`]), and revoked by one ([`SendOp::LocalInvalidate`]),
/// by the peer's SEND with invalidate, or by being dropped. The program chooses the last byte of
/// its key at each bind. The region must allow it ([`Access::BIND_WINDOW`]), and stays registered
/// until the window is bound to another or dropped.
///
/// ```
/// use bowline::{Access, Device, SendOp};
///
/// let pd = Device::open("127.9.1.2")?.alloc_pd()?;
/// let mr = pd.register(4096, Access::LOCAL_WRITE | Access::BIND_WINDOW)?;
/// let window = pd.alloc_window()?;
/// let (bind, remote) = window.bind(&mr, 1024..2048, 1, Access::REMOTE_WRITE)?;
/// // Post `bind`, tell the peer `remote`, and in the end:
/// let revoke = SendOp::LocalInvalidate(remote.rkey);
/// # let _ = (bind, revoke);
/// # Ok::<(), bowline::Error>(())
/// ```
pub struct Mw {
    core: device::Mw,
    pd: Arc<PdInner>,
    /// The region it was last bound to, which stays registered as long.
    region: Mutex<Option<Mr>>,
}

impl Mw {
    pub(crate) fn new(pd: &Pd) -> Result<Mw, Error> {
        let core = device::Mw::alloc(&pd.inner.core)?;
        Ok(Mw { core, pd: Arc::clone(&pd.inner), region: Mutex::default() })
    }

    /// The request that binds it to a part of a region, and what the peer needs to know once that
    /// request has completed.
    pub fn bind(
        &self,
        mr: &Mr,
        range: Range<usize>,
        tag: u8,
        access: Access,
    ) -> Result<(SendOp, Remote), Error> {
        let sge = mr.sge(range)?;
        let key = self.core.key().0 | u32::from(tag);
        let (region, addr, len) = (mr.key(), sge.addr, u64::from(sge.len));
        *self.region.lock().unwrap_or_else(PoisonError::into_inner) = Some(mr.clone());
        let binding = WindowBinding { key, region, addr, len, access, scope: WindowScope::Qp };
        Ok((SendOp::BindWindow(binding), Remote { addr, rkey: key }))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // A device that has ended has nothing left to free.
        let _ = self.core.dealloc();
    }
}

impl std::fmt::Debug for Mw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mw(of {})", self.pd.device().addr())
    }
}
