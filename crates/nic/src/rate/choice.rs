//! Rate controllers by name.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use bowline_link::units;

use super::{BbrParams, ControllerFactory, DcqcnParams, EqdsParams, FixedRate, SwiftParams};

/// DCQCN's default line rate: more than a software NIC sends.
const LINE_RATE_BPS: u64 = 100_000_000_000;

/// One of this module's controllers, as a value that can be compared and kept.
#[derive(Clone, Debug, PartialEq)]
pub enum RateControl {
    /// Limited by the window alone.
    Unlimited,
    /// Never faster than this.
    Fixed {
        /// Bits per second of UDP payload.
        bits_per_sec: u64,
    },
    /// DCQCN: sends ECN-capable packets and slows down on CNPs.
    Dcqcn(DcqcnParams),
    /// A model of a long, shared path.
    Bbr(BbrParams),
    /// Swift: keeps the round trip at a target.
    Swift(SwiftParams),
    /// EQDS: sends what the receiver grants.
    Eqds(EqdsParams),
}

impl RateControl {
    /// The factory of such controllers; `None` if there is nothing to control.
    pub fn factory(&self) -> Option<Arc<dyn ControllerFactory>> {
        match self {
            RateControl::Unlimited => None,
            RateControl::Fixed { bits_per_sec } => {
                Some(Arc::new(FixedRate { bits_per_sec: *bits_per_sec }))
            }
            RateControl::Dcqcn(params) => Some(Arc::new(params.clone())),
            RateControl::Bbr(params) => Some(Arc::new(params.clone())),
            RateControl::Swift(params) => Some(Arc::new(params.clone())),
            RateControl::Eqds(params) => Some(Arc::new(params.clone())),
        }
    }
}

/// The text does not name a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid congestion control `{text}`: {why}")]
pub struct ParseRateControlError {
    text: String,
    why: String,
}

impl FromStr for RateControl {
    type Err = ParseRateControlError;

    /// `none`, `fixed:1Gbps`, `dcqcn`, `dcqcn:25Gbps` (the line's rate), `swift` or `bbr`.
    fn from_str(text: &str) -> Result<RateControl, ParseRateControlError> {
        let (name, rate) = match text.split_once(':') {
            Some((name, rate)) => (name, Some(rate)),
            None => (text, None),
        };
        let error = |why: String| ParseRateControlError { text: text.to_owned(), why };
        let rate = rate.map(units::parse_rate).transpose().map_err(error)?;
        match (name, rate) {
            ("none", None) => Ok(RateControl::Unlimited),
            ("fixed", Some(bits_per_sec)) => Ok(RateControl::Fixed { bits_per_sec }),
            ("dcqcn", rate) => {
                Ok(RateControl::Dcqcn(DcqcnParams::new(rate.unwrap_or(LINE_RATE_BPS))))
            }
            ("swift", None) => Ok(RateControl::Swift(SwiftParams::default())),
            ("eqds", _) => {
                let why = "credit comes from a program at the receiver: see rate::EqdsParams";
                Err(error(format!("{why}; write none, fixed:1Gbps, dcqcn, swift or bbr")))
            }
            ("bbr", None) => Ok(RateControl::Bbr(BbrParams::default())),
            _ => {
                Err(error("write none, fixed:1Gbps, dcqcn, dcqcn:25Gbps, swift or bbr".to_owned()))
            }
        }
    }
}

impl fmt::Display for RateControl {
    /// In the format that `from_str` reads, where possible; non-default constants are not written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateControl::Unlimited => f.write_str("none"),
            RateControl::Fixed { bits_per_sec } => write!(f, "fixed:{bits_per_sec}bps"),
            RateControl::Dcqcn(params) => write!(f, "dcqcn:{}bps", params.line_rate_bps),
            RateControl::Bbr(_) => f.write_str("bbr"),
            RateControl::Swift(_) => f.write_str("swift"),
            RateControl::Eqds(params) => write!(f, "eqds:{}bps", params.line_rate_bps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["none", "fixed:1Gbps", "dcqcn", "dcqcn:25Gbps", "bbr", "swift"] {
            let control: RateControl = text.parse().unwrap();
            assert_eq!(control.to_string().parse::<RateControl>().unwrap(), control, "{text}");
        }
        for bad in ["", "BBR", "fixed", "fixed:25", "bbr:1Gbps", "cubic", "eqds"] {
            let error = bad.parse::<RateControl>().unwrap_err().to_string();
            assert!(error.contains("Gbps"), "{error}");
        }
    }
}
