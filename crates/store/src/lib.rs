//! Where the processes of a job publish attributes for each other, out of band.
//!
//! A program that fails over to another NIC needs its peer's backup address, and has no channel to
//! ask for it. So each process puts `default attributes → backup attributes` into a store that the
//! whole job can reach, and reads its peers' entries from there.
//!
//! A [`Store`] is chosen by a URL ([`open`]):
//!
//! * `file:///dir`: a directory, of one host or on a shared mount;
//! * `redis://host[:port][/db]`: Redis, with `user:password@` before the host if needed;
//! * `etcd://host[:port]`: etcd.
//!
//! Calls block for about a second at most, and are meant for a background thread. If a store is
//! down, calls fail at once or after that second; the next call connects again. Entries expire
//! unless their owner renews them in time. A key that another live process holds is not overwritten
//! ([`StoreError::Taken`]): this is how two jobs with one name notice each other.
//!
//! This crate is part of libraries that are loaded into foreign programs: no threads, no signal
//! handlers, no panics, few dependencies.

#![deny(unsafe_code)]

mod entry;
mod error;
mod etcd;
mod file;
mod key;
mod location;
mod net;
mod owned;
mod owner;
mod redis;
mod sys;
#[cfg(test)]
mod testing;

use std::time::Duration;

pub use error::StoreError;
pub use key::Key;
pub use location::default_url;
pub use owner::Owner;

use etcd::EtcdBackend;
use file::FileBackend;
use key::Job;
use location::Location;
use owned::{Backend, Owned};
use redis::RedisBackend;

/// Longest value that can be put, in bytes.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// Timeout of a call.
const PATIENCE: Duration = Duration::from_secs(1);

/// Attributes by key, shared by the processes of a job.
pub trait Store: Send {
    /// Puts an entry, or replaces or refreshes this process' own, for `ttl` from now. Stores round
    /// times to their own units and may keep an entry a little longer.
    ///
    /// [`StoreError::Taken`] if another live process holds the key with another value.
    fn put(&mut self, key: &Key, value: &[u8], ttl: Duration) -> Result<(), StoreError>;

    /// The entry of a key, if there is one that has not expired.
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError>;

    /// Removes the entry of a key if this process has put it; leaves another's alone.
    fn remove(&mut self, key: &Key) -> Result<(), StoreError>;
}

/// Opens the store of a job. Connects only on the first call.
///
/// ```
/// use std::time::Duration;
/// use bowline_store::{Key, open};
///
/// # let dir = std::env::temp_dir().join(format!("bowline-store-doc-{}", std::process::id()));
/// # let url = format!("file://{}", dir.display());
/// let mut store = open(&url, "training-7")?;
/// let key = Key::new("qp/::ffff:10.0.0.1/000123")?;
/// store.put(&key, b"backup attributes", Duration::from_secs(60))?;
/// assert_eq!(store.get(&key)?.as_deref(), Some(&b"backup attributes"[..]));
/// store.remove(&key)?;
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), bowline_store::StoreError>(())
/// ```
pub fn open(url: &str, job: &str) -> Result<Box<dyn Store>, StoreError> {
    let job = Job::new(job)?;
    Ok(match url.parse()? {
        Location::Dir(dir) => owned(FileBackend::new(dir, &job), job),
        Location::Redis(server) => owned(RedisBackend::new(server, &job), job),
        Location::Etcd(server) => owned(EtcdBackend::new(server, &job), job),
    })
}

fn owned(backend: impl Backend + 'static, job: Job) -> Box<dyn Store> {
    Box::new(Owned::new(backend, job, Owner::this_process()))
}
