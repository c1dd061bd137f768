//! What an operation guarantees about its completion, and what it reports afterwards.

use std::ops::Range;
use std::time::Duration;

use crate::Rank;
use crate::encoding::Encoding;
use crate::timeout::Rule;

/// When an operation stops waiting for data that may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deadline {
    /// Never: everything arrives.
    #[default]
    Never,
    /// This long after the operation starts, at each rank.
    After(Duration),
    /// After the time that such operations usually take, by this rule. The first one waits for
    /// everything.
    Adaptive(Rule),
}

/// Whether data to be reduced is sent encoded, so that a lost packet slightly degrades all
/// elements: see [`Encoding`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recovery {
    /// Never.
    #[default]
    Never,
    /// While operations of the group end with missing bytes. All ranks decide alike, from what each
    /// of them reports after each such operation.
    Auto,
    /// Always.
    Always,
}

/// What an operation guarantees about its completion. All ranks must use the same bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// When it stops waiting for data that may be lost.
    pub deadline: Deadline,
    /// Maximum loss in parts per million, out of the bytes that a rank should receive in messages
    /// that may be lost. Losses beyond this limit are fetched after the deadline.
    pub max_loss_ppm: u32,
    /// Data that becomes the result of an allreduce on several ranks is never lost, so that all of
    /// them have the same result.
    pub equal_replicas: bool,
    /// When data to be reduced is sent encoded, where that is possible: see
    /// [`Request::recovery`](crate::Request::recovery).
    pub recovery: Recovery,
}

impl Bounds {
    /// No loss: messages use the same transport as others with bounds, and are repaired.
    pub const EXACT: Bounds = Bounds {
        deadline: Deadline::Never,
        max_loss_ppm: 0,
        equal_replicas: true,
        recovery: Recovery::Never,
    };

    /// Bounds with a deadline and the maximum share of missing bytes, e.g. 0.01 for 1 %, and
    /// [`Recovery::Auto`]. `None` if the share is not between 0 and 1.
    pub fn new(deadline: Deadline, max_loss: f64) -> Option<Bounds> {
        let valid = (0.0..=1.0).contains(&max_loss);
        let max_loss_ppm = (max_loss * 1e6) as u32;
        let recovery = Recovery::Auto;
        valid.then_some(Bounds { deadline, max_loss_ppm, recovery, ..Bounds::EXACT })
    }

    /// How many of this many bytes may be missing.
    pub fn allowed(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.max_loss_ppm) / 1_000_000) as u64
    }
}

/// A range of the output that lacks the contribution of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The rank.
    pub rank: Rank,
    /// The range, in bytes of the output.
    pub range: Range<usize>,
}

/// How an operation ended at this rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes that should have been received from other ranks.
    pub expected_bytes: u64,
    /// How many of them are missing.
    pub missing_bytes: u64,
    /// Which ones, by output range and rank. Where hosts reduce first, what is missing lacks every
    /// rank of a host, and is listed for each. Together with the inputs this is enough to compute
    /// the result again.
    pub missing: Vec<Missing>,
    /// More ranges are missing than `missing` has room for.
    pub is_cut: bool,
    /// Bytes that were lost and then retransmitted.
    pub repaired_bytes: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// The time at which it would have stopped waiting, if any.
    pub deadline_ns: Option<u64>,
    /// The tensor was sent encoded, with signs from this seed. Ranges refer to the encoded tensor.
    pub encoded: Option<(Encoding, u64)>,
}

impl Report {
    /// Maximum number of ranges in a report.
    pub const MAX_RANGES: usize = 4096;

    /// The share of bytes that are missing.
    pub fn loss(&self) -> f64 {
        self.missing_bytes as f64 / self.expected_bytes.max(1) as f64
    }

    pub(crate) fn add(&mut self, ranks: &[Rank], range: Range<usize>) {
        self.missing_bytes += range.len() as u64;
        if self.missing.len() + ranks.len() > Report::MAX_RANGES {
            self.is_cut = true;
            return;
        }
        let each = ranks.iter().map(|rank| Missing { rank: *rank, range: range.clone() });
        self.missing.extend(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_bytes_rounds_down() {
        let bounds = |loss| Bounds::new(Deadline::Never, loss).unwrap();
        assert_eq!(bounds(0.01).allowed(1_000), 10);
        assert_eq!(bounds(0.01).allowed(999), 9);
        assert_eq!(bounds(0.0).allowed(u64::MAX), 0);
        assert_eq!(bounds(1.0).allowed(u64::MAX), u64::MAX);
        for invalid in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Bounds::new(Deadline::Never, invalid), None);
        }
    }

    #[test]
    fn a_report_is_bounded_and_counts_on() {
        let mut report = Report { expected_bytes: 100_000, ..Report::default() };
        for i in 0..Report::MAX_RANGES + 1 {
            report.add(&[1], i * 8..i * 8 + 4);
        }
        assert_eq!((report.missing.len(), report.is_cut), (Report::MAX_RANGES, true));
        assert_eq!(report.missing_bytes, 4 * 4097);
    }
}
