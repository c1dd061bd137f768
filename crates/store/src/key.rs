//! Names of entries.

use std::fmt;

use crate::StoreError;

const MAX_KEY_BYTES: usize = 200;
const MAX_JOB_BYTES: usize = 64;

/// The name of an entry within its job: parts of letters, digits and `._:-`, with `/` between them,
/// such as `qp/::ffff:10.0.0.1/000123`.
///
/// No part is empty or begins with a dot, so that a key can be a path or a file's name anywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// Checks a key.
    pub fn new(text: impl Into<String>) -> Result<Key, StoreError> {
        let text = text.into();
        let fits = text.len() <= MAX_KEY_BYTES && text.split('/').all(is_name);
        if fits {
            return Ok(Key(text));
        }
        Err(StoreError::invalid(
            "key",
            &text,
            format!(
                "it takes letters, digits and ._:- in parts with / between, at most {MAX_KEY_BYTES} bytes"
            ),
        ))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A job's name: separates the keys of jobs in the same store.
#[derive(Clone, Debug)]
pub(crate) struct Job(String);

impl Job {
    pub(crate) fn new(text: &str) -> Result<Job, StoreError> {
        if text.len() <= MAX_JOB_BYTES && is_name(text) {
            return Ok(Job(text.to_owned()));
        }
        Err(StoreError::invalid(
            "job name",
            text,
            format!(
                "it takes letters, digits and ._:-, not beginning with a dot, at most {MAX_JOB_BYTES} bytes"
            ),
        ))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_name(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('.')
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_cannot_leave_its_directory_or_hide() {
        for bad in
            ["", "/", "a//b", "/a", "a/", "..", "a/../b", ".lock", "a/.b", "a b", "a\0", "ä", "a+b"]
        {
            assert!(Key::new(bad).is_err(), "{bad:?}");
            assert!(Job::new(bad).is_err(), "{bad:?}");
        }
        assert!(Key::new("x".repeat(201)).is_err());
        assert!(Job::new(&"x".repeat(65)).is_err());
        assert!(Job::new("a/b").is_err());
        assert_eq!(Key::new("mr/fe80::1/0a-b.c").unwrap().as_str(), "mr/fe80::1/0a-b.c");
        assert_eq!(Job::new("llama.7b:run-2").unwrap().as_str(), "llama.7b:run-2");
    }

    #[test]
    fn an_error_shows_the_beginning_of_what_is_wrong() {
        let error = Key::new("ü".repeat(5000)).unwrap_err().to_string();
        assert!(error.len() < 500 && error.starts_with("key \"üü"), "{error}");
    }
}
