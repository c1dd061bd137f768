//! Protection domains, memory regions and windows.

use super::Nic;
use crate::error::ControlError;
use crate::memory::{Region, SharedKey};
use crate::types::{Access, MrKey, PdId, Sge};

impl Nic {
    /// Allocates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, ControlError> {
        self.shared.memory.alloc_pd()
    }

    /// Deallocates an empty protection domain.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), ControlError> {
        self.shared.memory.dealloc_pd(pd)
    }

    /// Registers memory, whose first byte gets the address `iova`.
    pub fn register(
        &mut self,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<MrKey, ControlError> {
        self.shared.memory.register(pd, region, iova, access)
    }

    /// A key, to be registered on another NIC as well.
    pub fn share_key(&self, key: MrKey) -> Result<SharedKey, ControlError> {
        self.shared.memory.share(key)
    }

    /// Registers memory under the key that it has on another NIC, so that requests can go through
    /// either; revoking it there revokes it here. Fails with [`ControlError::Busy`] if the key
    /// names something else here.
    pub fn register_as(
        &mut self,
        key: &SharedKey,
        pd: PdId,
        region: Region,
        iova: u64,
        access: Access,
    ) -> Result<(), ControlError> {
        self.shared.memory.register_under(Some(key), pd, region, iova, access).map(drop)
    }

    /// Unpredictable random bytes, from the stream that keys are drawn from: for protocols above
    /// that need a secret of their own.
    pub fn draw_secret<const N: usize>(&mut self) -> [u8; N] {
        let mut secret = [0; N];
        self.fill_secret(&mut secret);
        secret
    }

    /// The same for a slice.
    pub(crate) fn fill_secret(&mut self, out: &mut [u8]) {
        self.shared.memory.fill_secret(out);
    }

    /// Registers an indirect region: `slots` slots, a power of two, each spanning `1 << slot_shift`
    /// bytes of address space from address zero on, which peers may write. Writes to a slot go
    /// where [`Nic::bind_slot`] says; they are discarded until then.
    pub fn register_indirect(
        &mut self,
        pd: PdId,
        slots: u32,
        slot_shift: u32,
    ) -> Result<MrKey, ControlError> {
        self.shared.memory.register_indirect(pd, slots, slot_shift)
    }

    /// Binds `len` bytes at address `addr` of a region to a slot of an indirect one, or, with
    /// `None`, nothing: writes to the slot are then discarded, as with a null key.
    ///
    /// Slot numbers keep growing: binding one takes the place of the slot whose number is lower by
    /// the size of the table, and writes to that one are refused from then on.
    pub fn bind_slot(
        &mut self,
        root: MrKey,
        slot: u64,
        to: Option<(MrKey, u64, usize)>,
    ) -> Result<(), ControlError> {
        self.shared.memory.bind_slot(root, slot, to)
    }

    /// Checks that `len` bytes at address `addr` of a region could be bound to slots, piece by
    /// piece: for callers that must bind all or nothing.
    pub fn check_bindable(
        &self,
        pd: PdId,
        key: MrKey,
        addr: u64,
        len: usize,
    ) -> Result<(), ControlError> {
        self.shared.memory.binding(pd, key, addr, len).map(drop)
    }

    /// Computes over registered memory: `f` gets the pieces to be read and those to be written, and
    /// a written piece may not overlap any other. Fails if a key, a range or a right is not valid.
    /// If the application writes the memory meanwhile, results are as undefined as during a
    /// transfer.
    pub fn with_slices<R>(
        &self,
        pd: PdId,
        reads: &[Sge],
        writes: &[Sge],
        f: impl FnOnce(&[&[u8]], &mut [&mut [u8]]) -> R,
    ) -> Result<R, ControlError> {
        let why = "a key, range or right does not check, or pieces overlap";
        let denied = ControlError::Invalid { what: "memory", why };
        self.shared.memory.with_slices(pd, reads, writes, f).map_err(|_| denied)
    }

    /// Changes the access rights of registered memory, from the next packet on. Its key stays.
    pub fn set_access(&mut self, key: MrKey, access: Access) -> Result<(), ControlError> {
        self.shared.memory.set_access(key, access)
    }

    /// Ends a registration. Requests that still refer to it will fail.
    pub fn deregister(&mut self, key: MrKey) -> Result<(), ControlError> {
        self.shared.memory.deregister(key)
    }

    /// Allocates a memory window, and returns its key. It refers to nothing until a QP of the
    /// domain binds it ([`SendOp::BindWindow`](crate::SendOp::BindWindow)); the last byte of the
    /// key is the owner's to choose each time.
    pub fn alloc_window(&mut self, pd: PdId) -> Result<MrKey, ControlError> {
        self.shared.memory.alloc_window(pd)
    }

    /// Allocates a memory window under a key that it has on another NIC already. Fails with
    /// [`ControlError::Busy`] if the key may name something else here.
    pub fn alloc_window_as(&mut self, key: MrKey, pd: PdId) -> Result<(), ControlError> {
        self.shared.memory.alloc_window_as(key, pd)
    }

    /// Frees a memory window. If it is bound, its key is revoked.
    pub fn dealloc_window(&mut self, key: MrKey) -> Result<(), ControlError> {
        self.shared.memory.dealloc_window(key)
    }
}
