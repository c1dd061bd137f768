//! Where a store is: its URL taken apart.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::StoreError;
use crate::sys::effective_uid;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Dir(PathBuf),
}

impl FromStr for Location {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Location, StoreError> {
        let bad = |why: &str| StoreError::invalid("store", url, why);
        match url.split_once("://") {
            Some(("file", path)) if Path::new(path).is_absolute() => {
                Ok(Location::Dir(PathBuf::from(path)))
            }
            Some(("file", _)) => Err(bad("write file:///DIR with a directory from the root")),
            Some(_) | None => Err(bad("write file:///DIR")),
        }
    }
}

/// The store that needs no setting up: a directory of this user on this host, where the processes of
/// one host meet.
pub fn default_url() -> String {
    let runtime = std::env::var("XDG_RUNTIME_DIR").ok().filter(|dir| Path::new(dir).is_absolute());
    let base = match runtime {
        Some(dir) => format!("{dir}/bowline"),
        None => format!("/dev/shm/bowline-{}", effective_uid()),
    };
    format!("file://{base}/store")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_absolute() {
        assert_eq!("file:///a/b".parse::<Location>().unwrap(), Location::Dir("/a/b".into()));
        for bad in ["file://a/b", "file://", "file", "", "/a/b", "ftp://a", "file:/a"] {
            assert!(bad.parse::<Location>().is_err(), "{bad:?}");
        }
        assert!(default_url().parse::<Location>().is_ok());
    }
}
