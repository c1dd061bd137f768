//! The user's cache directory, for files that can be recreated.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/bowline`, or `~/.cache/bowline`. The directory may not exist yet.
pub(crate) fn dir() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let dir = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    dir.map(|dir| dir.join("bowline"))
}
