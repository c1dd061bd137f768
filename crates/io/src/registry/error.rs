//! Why a process could not join the others on its address.

use std::io;
use std::path::{Path, PathBuf};

/// Why a process could not join the others on its address. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// The directory or a file in it cannot be used.
    #[error(
        "the registry of processes at {path}: {source}; set XDG_RUNTIME_DIR to a directory that \
         you can write to"
    )]
    File {
        /// Which file or directory.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The directory belongs to somebody else, or others may write to it.
    #[error(
        "{path} is not private to user {uid}: remove it, or set XDG_RUNTIME_DIR to a directory of \
         your own"
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Who it should belong to.
        uid: u32,
    },
    /// A process keeps the registry locked.
    #[error(
        "the registry {path} stays locked: a process that uses it is stopped or hangs (`lslocks` \
         names it); continue or end that process"
    )]
    Locked {
        /// The registry's file.
        path: PathBuf,
    },
    /// The file is no registry of this version, and processes use it.
    #[error(
        "{path} is in use but not a registry of this version: end the programs that use it \
         (`lslocks` names them) and try again"
    )]
    Damaged {
        /// The registry's file.
        path: PathBuf,
    },
    /// No prefix is left.
    #[error("253 processes share the address already: use another address, or fewer processes")]
    Full,
    /// The kernel has sockets on the address that the registry does not know.
    #[error(
        "other sockets of yours share the address but are not in the registry {path}: they belong \
         to another program, or to one started with another XDG_RUNTIME_DIR (`ss -ulpn` names them)"
    )]
    Strangers {
        /// The registry's file.
        path: PathBuf,
    },
    /// The kernel did not steer a probe back.
    #[error("the kernel does not steer packets on this address: {0}")]
    Steering(#[source] io::Error),
}

impl RegistryError {
    /// Whether a process that is alone on its address can do without the registry: the fault lies
    /// with the directory or the kernel, not with other processes or with what this process lacks.
    pub(crate) fn lets_go_alone(&self) -> bool {
        match self {
            RegistryError::NotPrivate { .. } => true,
            RegistryError::File { source, .. } => !matches!(
                source.raw_os_error(),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR)
            ),
            // Sandboxes and emulators do not support the option.
            RegistryError::Steering(source) => {
                matches!(
                    source.raw_os_error(),
                    Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::EPERM)
                )
            }
            _ => false,
        }
    }

    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> RegistryError {
        move |source| RegistryError::File { path: path.to_owned(), source }
    }
}
