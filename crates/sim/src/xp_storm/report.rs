//! What the storm over XP exercised.

use bowline_nic::EndMark;

macro_rules! coverage {
    ($($(#[doc = $doc:literal])+ $field:ident: $name:literal,)*) => {
        /// What was exercised, as the applications counted it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct XpCoverage {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl XpCoverage {
            /// Names and numbers.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &XpCoverage) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

coverage! {
    /// Receives of which all came.
    whole: "receives whole",
    /// Receives that their last fragment ended.
    last: "receives ended by the last fragment",
    /// Receives that ended at their deadline, with something.
    deadline: "receives ended by their deadline",
    /// Receives that ended at their deadline or by preemption, with nothing.
    empty: "receives without a byte",
    /// Receives that later messages ended.
    preempted: "receives preempted",
    /// Receives that their message did not fit.
    too_long: "receives too short",
    /// Bytes that receives reported.
    bytes: "bytes received",
    /// READs of which all came.
    reads_whole: "READs whole",
    /// READs of which something came.
    reads_partial: "READs in part",
    /// READs of which nothing came.
    reads_empty: "READs without a byte",
    /// Requests that were sent whole.
    sent: "requests sent",
    /// Requests that their deadline ended.
    unsent: "requests cut short",
    /// WRITEs that could not change any more, and did not.
    closed_writes: "WRITEs closed",
}

impl XpCoverage {
    pub(super) fn count_receive(&mut self, end: EndMark, bytes: u32, empty: bool) {
        self.bytes += u64::from(bytes);
        self.empty += u64::from(empty);
        match end {
            EndMark::Whole => self.whole += 1,
            EndMark::Last => self.last += 1,
            EndMark::Deadline => self.deadline += u64::from(!empty),
            EndMark::Preempted => self.preempted += 1,
        }
    }
}
