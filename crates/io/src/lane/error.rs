//! Errors of a lane.

use crate::port::PortError;

/// Why a lane could not be started, or has stopped working.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The operating system refused a thread or a descriptor.
    #[error("starting a lane: {0}")]
    Start(#[source] std::io::Error),
    /// The lane has ended, and nothing it held can be used any more.
    #[error("the lane has ended: {reason}")]
    Dead {
        /// What ended it.
        reason: String,
    },
}

impl LaneError {
    pub(super) fn dead(reason: impl Into<String>) -> LaneError {
        LaneError::Dead { reason: reason.into() }
    }
}

impl From<PortError> for LaneError {
    fn from(error: PortError) -> LaneError {
        LaneError::dead(error.to_string())
    }
}
