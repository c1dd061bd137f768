//! Why a port could not be opened, or broke.

use std::io;
use std::net::IpAddr;

/// Why a port could not be opened, or broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The address is a wildcard, which cannot name a NIC.
    #[error("{0} is no address of one NIC: name the address that peers send to")]
    Unspecified(IpAddr),
    /// No interface has the address.
    #[error("no interface of this host has the address {0}: see `ip addr` for those it has")]
    NotLocal(IpAddr),
    /// Somebody else has the address and port.
    #[error("{addr} port {udp_port} is taken: {hint}")]
    InUse {
        /// The address.
        addr: IpAddr,
        /// The UDP port.
        udp_port: u16,
        /// By whom, probably, and what to do.
        hint: &'static str,
    },
    /// The other processes on the address could not be joined.
    #[error(transparent)]
    Registry(#[from] crate::registry::RegistryError),
    /// An AF_XDP port cannot be had on the interface.
    #[error("AF_XDP on {interface}: {what}: {source}{}{hint}", if .hint.is_empty() { "" } else { "; " })]
    Xdp {
        /// The interface.
        interface: String,
        /// What was being done.
        what: &'static str,
        /// How it failed.
        source: io::Error,
        /// What to do about it.
        hint: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// How it failed.
        source: io::Error,
    },
}

impl PortError {
    /// Wraps a system call's error with what it was for.
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> PortError {
        move |source| PortError::Os { what, source }
    }
}
