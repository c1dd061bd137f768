//! Ownership of entries: the rules that all kinds of stores share.

use std::time::Duration;

use crate::entry::{self, Entry};
use crate::key::Job;
use crate::{Key, MAX_VALUE_BYTES, Owner, Store, StoreError};

/// How often to start over when others change the same key meanwhile.
const MAX_ATTEMPTS: u32 = 8;
/// Longer than any job runs, and short enough for every server's arithmetic.
const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// The operations of a kind of store. Expired bytes count as absent.
pub(crate) trait Backend: Send {
    /// Its URL, without secrets.
    fn url(&self) -> &str;

    /// The bytes under a key.
    fn load(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError>;

    /// Replaces the bytes under a key, or removes them, if they are still those `seen`; returns
    /// whether they were. Atomic: nobody sees an intermediate state.
    fn replace(
        &mut self,
        key: &Key,
        seen: Option<&[u8]>,
        new: Option<(&[u8], Duration)>,
    ) -> Result<bool, StoreError>;
}

/// A store in which entries belong to processes.
pub(crate) struct Owned<B> {
    backend: B,
    job: Job,
    me: Owner,
}

impl<B: Backend> Owned<B> {
    pub(crate) fn new(backend: B, job: Job, me: Owner) -> Owned<B> {
        Owned { backend, job, me }
    }

    /// Reads a key and replaces its contents as `decide` says, until nobody interferes.
    fn update<'a>(
        &mut self,
        key: &Key,
        decide: impl Fn(&Owned<B>, Option<Entry>) -> Result<Change<'a>, StoreError>,
    ) -> Result<(), StoreError> {
        for _ in 0..MAX_ATTEMPTS {
            let seen = self.backend.load(key)?;
            let entry = seen.as_deref().and_then(entry::decode);
            let new = match decide(self, entry)? {
                Change::None => return Ok(()),
                Change::Remove => None,
                Change::Put(bytes, ttl) => Some((bytes, ttl)),
            };
            if self.backend.replace(key, seen.as_deref(), new)? {
                return Ok(());
            }
        }
        Err(StoreError::Unavailable {
            store: self.backend.url().to_owned(),
            doing: "replacing an entry",
            source: std::io::ErrorKind::ResourceBusy.into(),
            hint: "others keep changing this key: it is tried again later",
        })
    }
}

enum Change<'a> {
    None,
    Remove,
    Put(&'a [u8], Duration),
}

impl<B: Backend> Store for Owned<B> {
    fn put(&mut self, key: &Key, value: &[u8], ttl: Duration) -> Result<(), StoreError> {
        if value.len() > MAX_VALUE_BYTES {
            let why = format!("a value of {} bytes; {MAX_VALUE_BYTES} fit", value.len());
            return Err(StoreError::invalid("key", key.as_str(), why));
        }
        let (bytes, ttl) = (entry::encode(&self.me, value), ttl.min(MAX_TTL));
        self.update(key, |store, entry| match entry {
            Some(entry)
                if !entry.owner.is(&store.me)
                    && entry.value != value
                    && !entry.owner.has_ended(&store.me) =>
            {
                Err(StoreError::Taken {
                    store: store.backend.url().to_owned(),
                    job: store.job.as_str().to_owned(),
                    key: key.to_string(),
                    holder: Box::new(entry.owner),
                })
            }
            _ => Ok(Change::Put(&bytes, ttl)),
        })
    }

    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(bytes) = self.backend.load(key)? else {
            return Ok(None);
        };
        match entry::decode(&bytes) {
            Some(entry) => Ok(Some(entry.value)),
            None => Err(StoreError::Malformed {
                store: self.backend.url().to_owned(),
                why: format!("what is under {key} was not put there by this release"),
            }),
        }
    }

    fn remove(&mut self, key: &Key) -> Result<(), StoreError> {
        self.update(key, |store, entry| {
            Ok(match entry {
                Some(entry) if entry.owner.is(&store.me) => Change::Remove,
                _ => Change::None,
            })
        })
    }
}
