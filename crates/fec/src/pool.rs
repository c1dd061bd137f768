//! Memory for coding units and held packets: one bounded pool for all connections of a device.

use std::sync::{Arc, Mutex, PoisonError};

use bowline_nic::Mtu;
use bowline_wire::{Bth, ICRC_LEN, REPAIR_EXT_LEN};

/// Space beside the payload: enough for a whole packet as well as for a coding unit.
const HEADERS: usize = Bth::LEN + REPAIR_EXT_LEN + ICRC_LEN + 4;

/// A piece of memory for one packet of a connection's MTU.
pub(crate) type Buffer = Box<[u8]>;

/// Memory from which connections take coding units and buffers for held packets, and to which they
/// return them.
///
/// It grows on demand up to its limit and never beyond; a connection that finds it empty sends a
/// block without protection. Returned buffers are reused, latest first, while they are still in the
/// cache.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    allocated: usize,
    /// By MTU: connections with small packets do not pin large buffers.
    free: [Vec<Buffer>; Mtu::ALL.len()],
}

impl Pool {
    /// The paper's prototype had 4.6 MB of units and buffers; memory is cheaper here.
    pub const DEFAULT_BYTES: usize = 16 << 20;

    /// A pool of at most this many bytes.
    pub fn new(limit_bytes: usize) -> Pool {
        let free = core::array::from_fn(|_| Vec::new());
        Pool(Arc::new(Mutex::new(Inner { limit: limit_bytes, allocated: 0, free })))
    }

    /// A buffer for a packet of a connection with this MTU; its contents are arbitrary.
    pub(crate) fn take(&self, mtu: Mtu) -> Option<Buffer> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = inner.free[class(mtu)].pop() {
            return Some(buffer);
        }
        let size = buffer_len(mtu);
        while inner.allocated + size > inner.limit {
            // Free buffers of connections with another MTU make space.
            let unused = inner.free.iter_mut().find_map(Vec::pop)?;
            inner.allocated -= unused.len();
        }
        inner.allocated += size;
        Some(vec![0; size].into_boxed_slice())
    }

    /// Returns a buffer.
    pub(crate) fn give(&self, mtu: Mtu, buffer: Buffer) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free[class(mtu)].push(buffer);
    }

    /// Bytes taken from the system so far.
    pub fn allocated_bytes(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allocated
    }

    /// Bytes that connections hold now.
    pub fn used_bytes(&self) -> usize {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free: usize = inner.free.iter().flatten().map(|buffer| buffer.len()).sum();
        inner.allocated - free
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool::new(Pool::DEFAULT_BYTES)
    }
}

fn class(mtu: Mtu) -> usize {
    Mtu::ALL.iter().position(|m| *m == mtu).unwrap_or(0)
}

fn buffer_len(mtu: Mtu) -> usize {
    mtu.bytes() as usize + HEADERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_unused_sizes_make_room() {
        let pool = Pool::new(3 * buffer_len(Mtu::B1024));
        let taken: Vec<Buffer> = (0..3).map(|_| pool.take(Mtu::B1024).unwrap()).collect();
        assert!(pool.take(Mtu::B1024).is_none());
        assert!(pool.take(Mtu::B256).is_none());
        for buffer in taken {
            pool.give(Mtu::B1024, buffer);
        }
        assert_eq!(pool.used_bytes(), 0);
        assert!(pool.take(Mtu::B256).is_some());
        assert!(pool.allocated_bytes() <= 3 * buffer_len(Mtu::B1024));
    }
}
