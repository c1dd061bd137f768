//! Registered memory for parity, pooled for reuse.

use bowline_nic::{Access, Buffer, MrKey, PdId, Region, Rnic};

use crate::error::SdrError;

/// A registered buffer.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) key: MrKey,
}

/// Buffers of one size, never more than there are messages at a time.
pub(super) struct ScratchPool {
    pd: PdId,
    bytes: usize,
    free: Vec<Scratch>,
}

impl ScratchPool {
    pub(super) fn new(pd: PdId, bytes: u64) -> ScratchPool {
        ScratchPool { pd, bytes: bytes as usize, free: Vec::new() }
    }

    pub(super) fn take(&mut self, nic: &mut dyn Rnic) -> Result<Scratch, SdrError> {
        if let Some(scratch) = self.free.pop() {
            return Ok(scratch);
        }
        let buffer = Buffer::new(self.bytes);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = nic.register(self.pd, Region::owned(buffer), 0, access)?;
        Ok(Scratch { key })
    }

    pub(super) fn give_back(&mut self, scratch: Scratch) {
        self.free.push(scratch);
    }

    pub(super) fn destroy(&mut self, nic: &mut dyn Rnic) {
        for scratch in self.free.drain(..) {
            // It may be gone already, with the device.
            let _ = nic.deregister(scratch.key);
        }
    }
}
