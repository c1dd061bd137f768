//! Errors of opening a device, and of creating and destroying objects.

use std::io;
use std::net::IpAddr;

use bowline_failover::mirror::MirrorError;
use bowline_ibverbs::VerbsError;
use bowline_io::{LaneError, PortError};
use bowline_nic::ControlError;
use bowline_store::StoreError;

/// Why a device could not be opened, or why an object could not be created or destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The address or its socket cannot be used.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The backup cannot be opened.
    #[error("its backup at {addr} cannot be opened: {source}")]
    Backup {
        /// The backup's address.
        addr: IpAddr,
        /// The cause.
        source: PortError,
    },
    /// A lane could not start, or has ended.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// An engine refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The verbs device cannot be used, or its provider refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The operation needs one of Bowline's engines, which a verbs device does not have.
    #[error("{what} needs Bowline's soft NIC: {instead}")]
    NeedsSoftNic {
        /// The operation.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The store's URL or the job's name is invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting that cannot work.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which setting.
        what: &'static str,
        /// Why it cannot work, or what would.
        why: String,
    },
    /// Objects of two devices were mixed.
    #[error("{what} belongs to another device: create both on the same device")]
    Foreign {
        /// The object.
        what: &'static str,
    },
    /// The system refused an operation.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation, to be read after "cannot".
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl DeviceError {
    /// Whether the error is about the registry in which processes on an address find each other.
    pub(crate) fn is_registry(&self) -> bool {
        let (DeviceError::Port(port) | DeviceError::Backup { source: port, .. }) = self else {
            return false;
        };
        matches!(port, PortError::Registry(_))
    }

    /// The error for an operation that a verbs device does not support, but the soft NIC on the
    /// same interface does.
    pub(crate) fn needs_soft_nic(what: &'static str) -> DeviceError {
        let instead = "open the device by its IP address instead of verbs:NAME";
        DeviceError::NeedsSoftNic { what, instead }
    }

    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
        move |source| DeviceError::System { what, source }
    }
}

impl From<MirrorError<LaneError>> for DeviceError {
    fn from(error: MirrorError<LaneError>) -> DeviceError {
        match error {
            MirrorError::Engine(error) => DeviceError::Lane(error),
            MirrorError::Control(error) => DeviceError::Control(error),
        }
    }
}
