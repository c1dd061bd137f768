//! How the members' acknowledgements are merged into one.

use core::fmt;

use bowline_wire::Psn;

/// Packets that a sender may have outstanding: more than any window, and few of the circle's 2^24,
/// so that a forger who does not know the PSN rarely guesses an acceptable one.
pub(crate) const MAX_AHEAD: i32 = 1 << 14;

/// What a root knows about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Last PSN that it has acknowledged; `None` if it has not responded since the switch started.
    pub acked: Option<Psn>,
    /// Whether it is still a member.
    pub is_live: bool,
}

/// What a root knows about all members.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a> {
    records: &'a [Record],
    told: Option<Psn>,
    need: usize,
}

impl<'a> Records<'a> {
    /// A view, with the last PSN reported to the sender and the number of members that must have a
    /// packet before it is reported.
    pub(crate) fn new(records: &'a [Record], told: Option<Psn>, need: usize) -> Self {
        Records { records, told, need }
    }

    /// Last PSN that a member has acknowledged.
    pub fn of(&self, member: usize) -> Option<Psn> {
        self.records.get(member).and_then(|record| record.acked)
    }

    /// Last PSN acknowledged to the sender.
    pub fn told(&self) -> Option<Psn> {
        self.told
    }

    /// The members that count.
    pub fn live(&self) -> impl Iterator<Item = &'a Record> + use<'a> {
        self.records.iter().filter(|record| record.is_live)
    }

    /// The last PSN that all members have acknowledged, or as many as the group's policy asks for.
    /// `None` if too few have responded, or if their responses contradict each other.
    pub fn reached(&self) -> Option<Psn> {
        // The highest record that enough others have reached too. Groups are small: neither sorting
        // nor memory is needed.
        let has = |psn: Psn| self.acked().filter(|other| !other.before(psn)).count() >= self.need;
        let reached = self.acked().filter(|psn| has(*psn));
        let reached = reached.reduce(|a, b| if b.after(a) { b } else { a });
        reached.filter(|_| self.is_plausible())
    }

    /// Whether the members' responses are consistent: records are never further apart than a sender
    /// can be ahead.
    pub(crate) fn is_plausible(&self) -> bool {
        let mut acked = self.acked();
        let Some(first) = acked.next() else { return true };
        acked.all(|other| other.diff(first).abs() <= MAX_AHEAD)
    }

    fn acked(&self) -> impl Iterator<Item = Psn> + use<'a> {
        self.live().filter_map(|record| record.acked)
    }
}

/// A merge rule. Use [`Minimum`]; [`Paper`] is for comparison.
///
/// A rule sees only packets whose source, ICRC and PSN were checked.
pub trait Merge: fmt::Debug + Send + Sync {
    /// A member's record after it has acknowledged up to `acked`, by an acknowledgement or a NAK.
    fn record(&self, old: Option<Psn>, acked: Psn, is_nak: bool) -> Option<Psn>;

    /// What to acknowledge to the sender after a member's acknowledgement, if anything.
    fn acknowledge(&self, records: &Records<'_>, from: usize) -> Option<Psn>;

    /// Where the sender is to go back to after a member's NAK for `nak`, if that is known. Going
    /// back to a PSN acknowledges everything before it.
    fn go_back(&self, records: &Records<'_>, from: usize, nak: Psn) -> Option<Psn>;

    /// Whether the root suppresses redundant packets: retransmissions to a member that has them,
    /// NAKs for what the sender is about to retransmit, and RNR NAKs while other members lack more.
    fn is_sparing(&self) -> bool {
        true
    }
}

/// Acknowledges the minimum of all records to the sender whenever it rises.
#[derive(Clone, Copy, Debug, Default)]
pub struct Minimum;

impl Merge for Minimum {
    fn record(&self, old: Option<Psn>, acked: Psn, _is_nak: bool) -> Option<Psn> {
        Some(old.filter(|old| old.after(acked)).unwrap_or(acked))
    }

    fn acknowledge(&self, records: &Records<'_>, _from: usize) -> Option<Psn> {
        let told = records.told();
        records.reached().filter(|psn| told.is_none_or(|told| psn.after(told)))
    }

    fn go_back(&self, records: &Records<'_>, _from: usize, _nak: Psn) -> Option<Psn> {
        records.reached().map(Psn::next)
    }
}

/// The rules of the paper's section IV-C: an acknowledgement passes if no other record is lower,
/// records are overwritten without a comparison, and a NAK becomes `min{NAK − 1, records} + 1`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paper;

impl Merge for Paper {
    fn record(&self, old: Option<Psn>, acked: Psn, is_nak: bool) -> Option<Psn> {
        if is_nak { old } else { Some(acked) }
    }

    fn acknowledge(&self, records: &Records<'_>, from: usize) -> Option<Psn> {
        let acked = records.of(from)?;
        let mut live = records.live();
        live.all(|r| r.acked.is_some_and(|other| !other.before(acked))).then_some(acked)
    }

    fn go_back(&self, records: &Records<'_>, _from: usize, nak: Psn) -> Option<Psn> {
        let lowest = |low: Psn, record: &Record| {
            let acked = record.acked?;
            Some(if acked.before(low) { acked } else { low })
        };
        records.live().try_fold(nak.sub(1), lowest).map(Psn::next)
    }

    fn is_sparing(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(acked: &[u32]) -> Vec<Record> {
        let of = |psn: &u32| Record { acked: Some(Psn::new(*psn)), is_live: true };
        acked.iter().map(of).collect()
    }

    #[test]
    fn the_examples_of_the_paper() {
        let after = records(&[4, 4, 5]);
        let view = Records::new(&after, Some(Psn::new(2)), 3);
        assert_eq!(Paper.acknowledge(&view, 1), Some(Psn::new(4)));
        let view = records(&[1, 2, 5]);
        let view = Records::new(&view, Some(Psn::new(1)), 3);
        assert_eq!(Paper.go_back(&view, 1, Psn::new(4)), Some(Psn::new(2)));
    }

    #[test]
    fn the_minimum_is_told_where_the_paper_drops_it() {
        let after = records(&[4, 6]);
        let view = Records::new(&after, Some(Psn::new(2)), 2);
        assert_eq!(Paper.acknowledge(&view, 1), None);
        assert_eq!(Minimum.acknowledge(&view, 1), Some(Psn::new(4)));
    }

    #[test]
    fn the_minimum_is_one_of_signed_distances() {
        let after = records(&[0xff_fffe, 3, 0]);
        let view = Records::new(&after, Some(Psn::new(0xff_fff0)), 3);
        assert_eq!(view.reached(), Some(Psn::new(0xff_fffe)));
        let view = Records::new(&after, Some(Psn::new(0xff_fff0)), 2);
        assert_eq!(view.reached(), Some(Psn::new(0)), "two of three");
        assert_eq!(
            Minimum.record(Some(Psn::new(2)), Psn::new(0xff_ffff), false),
            Some(Psn::new(2))
        );
    }

    #[test]
    fn records_that_cannot_all_be_true_are_not_believed() {
        let far = records(&[7, 7 + (1 << 20)]);
        assert_eq!(Records::new(&far, None, 2).reached(), None);
        assert_eq!(Records::new(&far, None, 1).reached(), None);
    }

    #[test]
    fn nobody_speaks_for_a_member_that_has_not_spoken() {
        let mut some = records(&[7, 7]);
        some.push(Record { acked: None, is_live: true });
        let view = Records::new(&some, None, 3);
        assert_eq!(view.reached(), None);
        assert_eq!(Minimum.go_back(&view, 0, Psn::new(8)), None);
        assert_eq!(Paper.acknowledge(&view, 0), None);
        assert_eq!(Paper.go_back(&view, 0, Psn::new(8)), None);
        some[2].is_live = false;
        assert_eq!(Records::new(&some, None, 2).reached(), Some(Psn::new(7)));
    }
}
