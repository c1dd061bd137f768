//! Memory windows: keys over a part of a region, which peers can use until they are revoked. Work
//! requests bind and revoke them.
//!
//! A type 2 window serves the peer of the QP that bound it, is bound once, and is revoked by its
//! key. A type 1 window serves the peers of all QPs of its domain. It can be rebound at any time,
//! which revokes its previous key, and binding it to nothing revokes it altogether. [`WindowScope`]
//! tells the two apart.
//!
//! The upper 24 bits of a window's key are drawn when it is allocated, and no other key shares
//! them. The last byte is the owner's, who changes it from bind to bind.

use bowline_wire::Qpn;

use super::indirect::Binding;
use super::{AccessDenied, Backing, MemoryTable, Peer};
use crate::error::ControlError;
use crate::types::{Access, MrKey, PdId};

/// What a window is bound to: see [`SendOp::BindWindow`](crate::SendOp::BindWindow).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The new key: the window's, with a last byte of the owner's choice.
    pub key: u32,
    /// The region, which must allow it ([`Access::BIND_WINDOW`]).
    pub region: MrKey,
    /// First byte, as an address within the region. Peers use the same address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What the peer may do. Rights to modify memory require a region with [`Access::LOCAL_WRITE`].
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

/// An allocated window.
#[derive(Debug)]
pub(super) struct Window {
    pd: PdId,
    /// The key that it is bound under.
    bound: Option<u32>,
}

/// A bound window: what its key refers to.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) to: Binding,
    /// The QP whose peer may use it; `None` for all QPs of the domain.
    pub(super) qpn: Option<Qpn>,
}

impl Bound {
    /// Whether it serves the peer of this QP, which is of its domain.
    pub(super) fn serves(&self, qpn: Qpn) -> bool {
        self.qpn.is_none_or(|only| only == qpn)
    }
}

const TAG_BITS: u32 = 8;

/// The common prefix of a window's keys.
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

    /// A QP's request to bind a window.
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

    /// A request by a QP in this domain to bind a window to nothing.
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

    /// A request by a QP in this domain to revoke a window's key.
    pub(crate) fn invalidate_window(&mut self, pd: PdId, key: u32) -> Result<(), AccessDenied> {
        // Only type 2 windows are revoked by their keys.
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

    /// A QP is gone: unbinds the windows that were bound through it.
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
