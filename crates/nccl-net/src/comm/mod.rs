//! Connections: NCCL's requests on one side, a transport on the other.

mod peer;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bowline::Pd;

use crate::abi::{MAX_NET_SIZE, MAX_REQUESTS};
use crate::log;
use crate::memory::Registered;
use crate::status::Trouble;

pub(crate) use peer::Peer;
pub(crate) use receiver::{Arrival, Receiver, Wish};
pub(crate) use sender::Sender;

/// Maximum number of receives in one request.
pub(crate) const MAX_GROUP: usize = 8;
/// Maximum number of offers whose messages have not arrived.
pub(crate) const MAX_OFFERS: usize = MAX_REQUESTS * MAX_GROUP;
/// Maximum length of a message in bytes.
pub(crate) const MAX_BYTES: usize = MAX_NET_SIZE;

/// The registered memory of a connection, by the number that NCCL has for it.
struct Memories {
    pd: Pd,
    next: usize,
    known: BTreeMap<usize, Registered>,
}

impl Memories {
    fn new(pd: Pd) -> Memories {
        Memories { pd, next: 1, known: BTreeMap::new() }
    }

    /// Registers memory and returns its number.
    ///
    /// # Safety
    /// As for [`Registered::new`], until it is deregistered.
    unsafe fn register(&mut self, addr: usize, len: usize) -> Result<usize, Trouble> {
        // SAFETY: upheld by the caller.
        let registered = unsafe { Registered::new(&self.pd, addr, len) }?;
        let number = self.next;
        self.next += 1;
        self.known.insert(number, registered);
        Ok(number)
    }

    fn get(&self, number: usize) -> Result<&Registered, Trouble> {
        let unknown = || {
            Trouble::argument(format!(
                "registration {number} belongs to another connection, or has ended"
            ))
        };
        self.known.get(&number).ok_or_else(unknown)
    }

    fn forget(&mut self, number: usize) -> Result<(), Trouble> {
        self.get(number)?;
        self.known.remove(&number);
        Ok(())
    }
}

/// Whether a connection still works.
#[derive(Debug, Default)]
struct Health(Option<Trouble>);

impl Health {
    /// Returns the error of a failed connection, for every call.
    fn check(&self) -> Result<(), Trouble> {
        self.0.as_ref().map_or(Ok(()), |trouble| Err(trouble.told()))
    }

    /// Records a failure of the connection, and logs the first one.
    fn keep<T>(&mut self, done: Result<T, Trouble>) -> Result<T, Trouble> {
        done.map_err(|trouble| {
            let first = self.0.get_or_insert_with(|| {
                log::warn(&trouble.message);
                trouble
            });
            first.told()
        })
    }

    /// Fails the connection for good.
    fn end(&mut self, trouble: Trouble) {
        self.0.get_or_insert(trouble);
    }
}
