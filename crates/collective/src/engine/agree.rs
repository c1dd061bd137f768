//! All ranks agree on when to send encoded data ([`Recovery::Auto`](crate::Recovery::Auto)).
//!
//! After each operation that could be encoded, every rank reports to all others which share of its
//! data is missing. Whether operation n is encoded depends only on the reports of all ranks about
//! operations up to n - [`LAG`]. So all ranks decide alike, and as a rule the reports have been
//! there for a whole operation. If one has not, the operation waits for it.

use std::collections::VecDeque;

use super::message::Kind;
use super::{Cause, Engine, Failure, Op, OpId};
use crate::Rank;

/// How many operations later a report counts.
const LAG: u64 = 2;
/// How far a rank can be ahead of another, which needs its reports for as long: it cannot start
/// operation n without the other's report about n - [`LAG`].
const MAX_AHEAD: usize = 2 * LAG as usize;
/// A report of 1: everything is missing.
const WHOLE: u64 = u16::MAX as u64;
/// Bits of the smoothed loss below a report's last one.
const FRACTION_BITS: u32 = 16;
/// The weight of the newest operation: 1 in this many.
const SMOOTHING: u64 = 4;
/// Encoding starts above a loss of 1 in this many, and ends below half of that.
const ENOUGH: u64 = 1_000;

/// What all ranks have reported. Counts with integers, so that all processors get the same result.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Number of operations that have started.
    started: u64,
    /// Reports that have not been used, by rank.
    heard: Vec<VecDeque<u16>>,
    smoothed: u64,
    encodes: bool,
    /// An operation that waits for reports.
    pub(super) held: Option<OpId>,
}

impl Agreement {
    pub(super) fn new(ranks: u32) -> Agreement {
        Agreement { heard: vec![VecDeque::new(); ranks as usize], ..Agreement::default() }
    }

    /// The share of missing bytes, as reported. Rounds up: 0 means that nothing is missing.
    fn share(missing_bytes: u64, of_bytes: u64) -> u16 {
        let share = u128::from(missing_bytes) * u128::from(WHOLE);
        share.div_ceil(u128::from(of_bytes.max(1))).min(WHOLE.into()) as u16
    }

    /// Takes a rank's report about the next operation that it has not reported on. Returns `false`
    /// if no rank can be that far ahead.
    fn hear(&mut self, rank: Rank, share: u16) -> bool {
        let heard = &mut self.heard[rank as usize];
        heard.push_back(share);
        heard.len() <= MAX_AHEAD
    }

    /// Whether the next operation needs a report from this rank that is not there yet.
    fn lacks(&self, rank: Rank) -> bool {
        self.started >= LAG && self.heard.get(rank as usize).is_some_and(VecDeque::is_empty)
    }

    fn is_ready(&self) -> bool {
        (0..self.heard.len() as Rank).all(|rank| !self.lacks(rank))
    }

    /// Starts the next operation, once all reports are there. Returns whether it is encoded.
    fn start(&mut self) -> bool {
        if self.started >= LAG {
            let sum: u64 =
                self.heard.iter_mut().filter_map(VecDeque::pop_front).map(u64::from).sum();
            let mean = (sum << FRACTION_BITS) / self.heard.len().max(1) as u64;
            self.smoothed = (self.smoothed * (SMOOTHING - 1) + mean) / SMOOTHING;
            let enough = (WHOLE << FRACTION_BITS) / ENOUGH;
            self.encodes = self.smoothed > if self.encodes { enough / 2 } else { enough };
        }
        self.started += 1;
        self.encodes
    }
}

impl Engine {
    /// Whether an operation that is about to begin has to wait for reports.
    pub(super) fn is_held(&self, op: &Op) -> bool {
        op.is_agreed && !self.agreement.is_ready()
    }

    /// An operation waits for reports.
    pub(super) fn hold(&mut self, id: OpId) {
        self.agreement.held = Some(id);
        let left =
            self.others().find(|rank| self.holds_up(*rank) && self.who_left(*rank).is_some());
        if let Some(rank) = left {
            self.fail(Failure { rank, cause: Cause::Left });
        }
    }

    /// Whether an operation waits for a report of this rank.
    pub(super) fn holds_up(&self, rank: Rank) -> bool {
        self.agreement.held.is_some() && self.agreement.lacks(rank)
    }

    /// Chooses the form of an operation that begins now.
    pub(super) fn choose_form(&mut self, id: OpId) {
        let Some(op) = self.op(id).filter(|op| op.is_agreed) else { return };
        let encoded = op.schedule.encoded().cloned();
        if self.agreement.start()
            && let Some((op, encoded)) = self.op_mut(id).zip(encoded)
        {
            op.set_schedule(encoded);
        }
    }

    /// Reports how much is missing at the end of an operation that could have been encoded.
    pub(super) fn report_loss(&mut self, missing_bytes: u64, of_bytes: u64) {
        let share = Agreement::share(missing_bytes, of_bytes);
        self.agreement.hear(self.config.rank, share);
        self.report_to_all(Kind::Loss, share);
    }

    /// Takes such a report.
    pub(super) fn take_loss(&mut self, from: Rank, share: u16) {
        if !self.agreement.hear(from, share) {
            return self.fail(Failure { rank: from, cause: Cause::Protocol });
        }
        if self.agreement.is_ready()
            && let Some(id) = self.agreement.held.take()
        {
            self.begin(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an operation of two ranks that report these losses.
    fn operate(agreement: &mut Agreement, losses: [f64; 2]) -> bool {
        let encodes = agreement.start();
        for (rank, loss) in losses.into_iter().enumerate() {
            let share = Agreement::share((loss * 1e6) as u64, 1_000_000);
            assert!(agreement.hear(rank as Rank, share));
        }
        encodes
    }

    #[test]
    fn encoding_begins_with_losses_and_ends_after_them() {
        let mut agreement = Agreement::new(2);
        for _ in 0..20 {
            assert!(!operate(&mut agreement, [0.0, 0.0009]), "the mean is half of that");
        }
        let on: Vec<bool> = (0..6).map(|_| operate(&mut agreement, [0.0, 0.02])).collect();
        assert_eq!(on, [false, false, true, true, true, true], "two operations later");
        let on = (0..40).map(|_| operate(&mut agreement, [0.0, 0.0]));
        let on = on.collect::<Vec<_>>().into_iter().take_while(|on| *on).count();
        assert!((5..20).contains(&on), "encoded for {on} operations more");
        assert!(!operate(&mut agreement, [0.0, 0.0]));
    }

    #[test]
    fn a_loss_between_the_thresholds_changes_nothing() {
        for before in [0.02, 0.0] {
            let mut agreement = Agreement::new(2);
            for _ in 0..50 {
                operate(&mut agreement, [before; 2]);
            }
            let last = (0..200).map(|_| operate(&mut agreement, [0.0007; 2])).last();
            assert_eq!(last, Some(before > 0.0));
        }
    }

    #[test]
    fn an_operation_waits_for_the_reports_that_it_needs() {
        let mut agreement = Agreement::new(3);
        for _ in 0..LAG {
            assert!(agreement.is_ready(), "no report is needed");
            agreement.start();
        }
        assert!(agreement.hear(0, 5) && agreement.hear(2, 5));
        assert!(!agreement.is_ready() && agreement.lacks(1) && !agreement.lacks(2));
        assert!(agreement.hear(1, 0));
        assert!(agreement.is_ready());
        agreement.start();
        assert!(!agreement.is_ready(), "the next one needs other reports");
        assert!(!agreement.lacks(7), "not a rank");
    }

    #[test]
    fn a_rank_cannot_be_far_ahead() {
        let mut agreement = Agreement::new(2);
        assert!((0..MAX_AHEAD).all(|_| agreement.hear(1, 0)));
        assert!(!agreement.hear(1, 0));
    }

    #[test]
    fn a_share_is_rounded_up() {
        assert_eq!(Agreement::share(0, 1 << 40), 0);
        assert_eq!(Agreement::share(1, 1 << 40), 1);
        assert_eq!(Agreement::share(1 << 40, 1 << 40), u16::MAX);
        assert_eq!(Agreement::share(u64::MAX, 1), u16::MAX);
        assert_eq!(Agreement::share(0, 0), 0);
    }
}
