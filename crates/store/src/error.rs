//! Errors of a store.

use std::io;

use crate::Owner;

/// Why an operation on a store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A URL, a job's name, a key or a value is invalid. The caller's fault.
    #[error("{what} {text:?}: {why}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// Its text, or the beginning of it.
        text: String,
        /// What is wrong with it, and what a right one looks like.
        why: String,
    },
    /// The store cannot be reached, or does not answer in time. The next call tries again.
    #[error("the store {store} does not answer ({doing}: {source}); {hint}")]
    Unavailable {
        /// The store's URL.
        store: String,
        /// What was being done.
        doing: &'static str,
        /// How it failed.
        source: io::Error,
        /// What to do about it.
        hint: &'static str,
    },
    /// The store answers with an error.
    #[error("the store {store} refuses: {why}")]
    Refused {
        /// The store's URL.
        store: String,
        /// In its own words.
        why: String,
    },
    /// The answer cannot be understood.
    #[error("the store {store} gives what makes no sense: {why}")]
    Malformed {
        /// The store's URL.
        store: String,
        /// What it was.
        why: String,
    },
    /// Another live process holds the key with another value.
    #[error(
        "key {key} of job {job:?} is held by {holder}, with other attributes: two jobs seem to have \
         this name in {store}; give each a name of its own"
    )]
    Taken {
        /// The store's URL.
        store: String,
        /// The job's name.
        job: String,
        /// The key.
        key: String,
        /// Who holds it.
        holder: Box<Owner>,
    },
}

impl StoreError {
    /// Whether the same call may succeed later without any change in this process: the store was
    /// down, or busy.
    pub fn is_transient(&self) -> bool {
        matches!(self, StoreError::Unavailable { .. })
    }

    /// `text` is cut where it is long.
    pub(crate) fn invalid(what: &'static str, text: &str, why: impl Into<String>) -> StoreError {
        const SHOWN: usize = 100;
        let text = match text.char_indices().nth(SHOWN) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text.to_owned(),
        };
        StoreError::Invalid { what, text, why: why.into() }
    }
}
