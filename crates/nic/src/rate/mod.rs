//! Rate control.

/// How fast a QP may send.
#[derive(Clone, Debug, PartialEq)]
pub enum RateControl {
    /// As fast as the window allows.
    Unlimited,
    /// Never faster than this.
    Fixed {
        /// Wire bits per second.
        bits_per_sec: u64,
    },
    /// DCQCN: slows down on CNPs.
    Dcqcn(DcqcnParams),
}

/// DCQCN's constants.
#[derive(Clone, Debug, PartialEq)]
pub struct DcqcnParams {
    /// Line rate: where a QP starts and what it never exceeds.
    pub line_rate_bps: u64,
}
