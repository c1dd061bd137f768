//! Memory windows: keys over a part of a region that peers can use until they are revoked. Work
//! requests bind and revoke them.
//!
//! A window of type 2 serves the peer of the QP that bound it, is bound once, and is revoked by its
//! key. One of type 1 serves the peers of all QPs of its domain. It is bound anew at any time,
//! which revokes its key from before, and binding it to nothing revokes it altogether.
//! [`WindowScope`] is which.
//!
//! The upper 24 bits of a window's key are drawn when it is allocated, and nothing else gets them.
//! The last byte is its owner's, who changes it from bind to bind.

use bowline_wire::Qpn;

use super::indirect::Binding;
use super::{AccessDenied, Backing, MemoryTable, Peer};
use crate::error::ControlError;
use crate::types::{Access, MrKey, PdId};

/// What a window is bound to: see [`SendOp::BindWindow`](crate::SendOp::BindWindow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The key to be: the window's, with a last byte of the owner's choice.
    pub key: u32,
    /// The region, which must allow it ([`Access::BIND_WINDOW`]).
    pub region: MrKey,
    /// First byte, as an address within the region. Peers use the same address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What the peer may do. To change memory takes a region with [`Access::LOCAL_WRITE`].
    pub access: Access,
    /// Whose peers may use it.
    pub scope: WindowScope,
}

/// Who may use a window that is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowScope {
    /// Type 2: the peer of the QP that binds it.
    Qp,
    /// Type 1: the peers of all QPs of its domain on this NIC.
    Domain,
}

/// A window that is allocated.
#[derive(Debug)]
pub(super) struct Window {
    pd: PdId,
    /// The key that it is bound under.
    bound: Option<u32>,
}

/// A window that is bound: what is behind its key.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) to: Binding,
    /// The QP whose peer may use it; `None` for those of the whole domain.
    pub(super) qpn: Option<Qpn>,
}

impl Bound {
    /// Whether it is there for the peer of a QP of its domain.
    pub(super) fn serves(&self, qpn: Qpn) -> bool {
        self.qpn.is_none_or(|only| only == qpn)
    }
}

const TAG_BITS: u32 = 8;

/// What all keys of a window have in common.
pub(super) fn prefix(key: u32) -> u32 {
    key >> TAG_BITS
}

const MISSING: ControlError = ControlError::NotFound { what: "memory window" };

impl MemoryTable {
    /// Allocates a window that is not bound, and returns its key with a last byte of zero.
    pub(crate) fn alloc_window(&mut self, pd: PdId) -> Result<MrKey, ControlError> {
        loop {
            let mut bytes = [0; 4];
            self.fill_secret(&mut bytes[..3]);
            let key = MrKey(u32::from_be_bytes(bytes));
            match self.alloc_window_as(key, pd) {
                Err(ControlError::Busy { .. }) => {}
                result => return result.map(|()| key),
            }
        }
    }

    /// Allocates a window under a key that it has on another NIC.
    pub(crate) fn alloc_window_as(&mut self, key: MrKey, pd: PdId) -> Result<(), ControlError> {
        if self.windows.len() >= self.max_regions as usize {
            let limit = u64::from(self.max_regions);
            return Err(ControlError::Exhausted { what: "memory windows", limit });
        }
        let number = prefix(key.0);
        let mut keys = (0..1 << TAG_BITS).map(|tag| number << TAG_BITS | tag);
        let taken = self.windows.contains_key(&number)
            || keys.any(|key| key == 0 || self.index.contains_key(&key));
        if taken {
            return Err(ControlError::Busy { what: "the key" });
        }
        self.hold_pd(pd)?;
        self.windows.insert(number, Window { pd, bound: None });
        Ok(())
    }

    /// Frees a window, bound or not.
    pub(crate) fn dealloc_window(&mut self, key: MrKey) -> Result<(), ControlError> {
        let window = self.windows.remove(&prefix(key.0)).ok_or(MISSING)?;
        if let Some(key) = window.bound {
            self.remove(key);
        }
        self.release_pd(window.pd);
        Ok(())
    }

    /// A request of a QP's to bind a window.
    pub(crate) fn bind_window(
        &mut self,
        by: Peer,
        binding: &WindowBinding,
    ) -> Result<(), AccessDenied> {
        let WindowBinding { key, region, addr, len, access, scope } = *binding;
        if scope == WindowScope::Domain && len == 0 {
            return self.unbind_window(by.pd, key);
        }
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let changes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let place = *self.index.get(&region.0).ok_or(AccessDenied)?;
        let mr = self.slots[place as usize].as_ref().ok_or(AccessDenied)?;
        let allowed = mr.pd == by.pd
            && mr.access.contains(Access::BIND_WINDOW)
            && (!changes || mr.access.contains(Access::LOCAL_WRITE))
            && rights.contains(access)
            && len > 0
            && addr.checked_add(len).is_some();
        let len = usize::try_from(len).map_err(|_| AccessDenied)?;
        let (_, offset) = mr.at(addr, len)?;
        let window = self.windows.get_mut(&prefix(key)).ok_or(AccessDenied)?;
        let qpn = (scope == WindowScope::Qp).then_some(by.qpn);
        if !allowed || window.pd != by.pd || (window.bound.is_some() && qpn.is_some()) {
            return Err(AccessDenied);
        }
        if let Some(before) = window.bound.replace(key) {
            self.remove(before);
        }
        let to = Binding { place, key: region, offset, len };
        self.add(key, Backing::Window(Bound { to, qpn }), addr, by.pd, access);
        Ok(())
    }

    /// A request of a QP's in this domain to bind a window to nothing.
    fn unbind_window(&mut self, pd: PdId, key: u32) -> Result<(), AccessDenied> {
        let window = self.windows.get_mut(&prefix(key)).ok_or(AccessDenied)?;
        if window.pd != pd {
            return Err(AccessDenied);
        }
        if let Some(before) = window.bound.take() {
            self.remove(before);
        }
        Ok(())
    }

    /// A request of a QP's in this domain to revoke a window's key.
    pub(crate) fn invalidate_window(&mut self, pd: PdId, key: u32) -> Result<(), AccessDenied> {
        // Only those of type 2 are revoked by their keys.
        let mr = self.find(key)?;
        if !matches!(&mr.backing, Backing::Window(Bound { qpn: Some(_), .. })) {
            return Err(AccessDenied);
        }
        let window = self.windows.get_mut(&prefix(key)).ok_or(AccessDenied)?;
        if window.pd != pd || window.bound != Some(key) {
            return Err(AccessDenied);
        }
        window.bound = None;
        self.remove(key);
        Ok(())
    }

    /// A QP is gone: nobody may use the windows that were bound through it.
    pub(crate) fn unbind_windows_of(&mut self, qpn: Qpn) {
        for window in self.windows.values_mut() {
            let Some(key) = window.bound else { continue };
            let Some(slot) = self.index.get(&key).copied() else { continue };
            let mr = &mut self.slots[slot as usize];
            let theirs = mr.as_ref().is_some_and(
                |mr| matches!(&mr.backing, Backing::Window(bound) if bound.qpn == Some(qpn)),
            );
            if theirs {
                window.bound = None;
                *mr = None;
                self.index.remove(&key);
                self.free.push(slot);
            }
        }
    }

    /// Whether a window is bound to a region.
    pub(super) fn has_windows(&self, region: MrKey) -> bool {
        self.windows.values().filter_map(|window| window.bound).any(|key| {
            let slot = self.index.get(&key).and_then(|slot| self.slots[*slot as usize].as_ref());
            slot.is_some_and(
                |mr| matches!(&mr.backing, Backing::Window(bound) if bound.to.key == region),
            )
        })
    }
}
