//! Why a link could not be made.

use std::io;

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WanError {
    /// The process is not root, and users may not have namespaces.
    #[error(
        "cannot make a user namespace: {source}; run as root, or allow them \
         (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor)"
    )]
    UserNamespace {
        /// What the kernel said.
        source: io::Error,
    },
    /// No network namespace.
    #[error("cannot make a network namespace: {source}")]
    Namespace {
        /// What the kernel said.
        source: io::Error,
    },
    /// No TUN device.
    #[error(
        "cannot make a TUN device: {source}; /dev/net/tun must be there and open to this user \
         (`modprobe tun`, or run as root)"
    )]
    Tun {
        /// What the kernel said.
        source: io::Error,
    },
    /// A step of the set-up failed.
    #[error("cannot set {what}: {source}")]
    Configure {
        /// Which.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// No thread.
    #[error("cannot start a thread: {source}")]
    Thread {
        /// What the kernel said.
        source: io::Error,
    },
    /// The thread of an end is gone: a bug.
    #[error("the thread of the {name} end is gone")]
    HostGone {
        /// Which.
        name: &'static str,
    },
}
