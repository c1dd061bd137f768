//! Why two lanes could not be made one.

use bowline_io::LaneError;
use bowline_nic::ControlError;
use bowline_store::StoreError;

/// Why something could not be done on both rails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// A lane has ended.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// A NIC refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The store's URL or the job's name is wrong.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The object whose counterpart is needed has none.
    #[error("the {what} has no counterpart on the backup NIC")]
    NoCounterpart {
        /// Which kind of object.
        what: &'static str,
    },
    /// The system refused a thread or a descriptor.
    #[error("cannot start what failover needs: {0}")]
    System(#[from] std::io::Error),
}
