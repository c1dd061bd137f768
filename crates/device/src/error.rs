//! Why a device could not be opened, or an object not be made.

use std::io;
use std::net::IpAddr;

use bowline_failover::mirror::MirrorError;
use bowline_ibverbs::VerbsError;
use bowline_io::{LaneError, PortError};
use bowline_nic::ControlError;
use bowline_store::StoreError;

/// Why a device could not be opened, or an object not be made or ended.
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
        /// Why.
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
    /// A verbs device has no engine of Bowline's to do it.
    #[error("{what} needs Bowline's soft NIC: {instead}")]
    NeedsSoftNic {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The store's URL or the job's name is wrong.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A setting that cannot work.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which setting.
        what: &'static str,
        /// Why, or what would do.
        why: String,
    },
    /// Objects of two devices were mixed.
    #[error("{what} belongs to another device: make both from the same one")]
    Foreign {
        /// The object.
        what: &'static str,
    },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried, to be read after "cannot".
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl DeviceError {
    /// Whether the processes on an address could not find each other.
    pub(crate) fn is_registry(&self) -> bool {
        let (DeviceError::Port(port) | DeviceError::Backup { source: port, .. }) = self else {
            return false;
        };
        matches!(port, PortError::Registry(_))
    }

    /// What a verbs device has not, where the soft NIC on the same interface does.
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
