//! Counters of a switch.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident,)*) => {
        /// Counters of a switch, over all groups.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl Counters {
            /// Names and numbers.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &Counters) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Data packets of senders.
    data_in,
    /// Copies of them.
    copies_out,
    /// Copies not made, because the members behind a branch have the packet already.
    filtered,
    /// Acknowledgements of members.
    acks_in,
    /// Acknowledgements for senders.
    acks_out,
    /// Acknowledgements among them that answer a retransmission of what all members have.
    acks_repeated,
    /// Sequence NAKs of members.
    naks_in,
    /// Sequence NAKs for senders.
    naks_out,
    /// RNR NAKs of members.
    rnrs_in,
    /// RNR NAKs for senders.
    rnrs_out,
    /// CNPs of members.
    cnps_in,
    /// CNPs for senders.
    cnps_out,
    /// Refusals of members.
    refusals_in,
    /// Refusals for senders.
    refusals_out,
    /// Members that were evicted.
    evicted,
    /// Groups that failed.
    failed,
    /// ICRCs that match some IPv4 identification, where the actual one is unknown.
    icrc_solved,
    /// Dropped: not a packet.
    drop_malformed,
    /// Dropped: the ICRC is wrong.
    drop_icrc,
    /// Dropped: a member ID from an address that is not the member's.
    drop_source,
    /// Dropped: an operation that groups do not support.
    drop_opcode,
    /// Dropped: acknowledges what was never sent.
    drop_ahead,
    /// Dropped: behind what the member has acknowledged.
    drop_stale,
    /// Dropped: from a member that was evicted.
    drop_evicted,
    /// Dropped: a WRITE outside the group's memory, where nobody can be told.
    drop_region,
    /// Dropped: data after a refused request, or of a failed group.
    drop_refused,
    /// Dropped: responses that the driver did not fetch.
    drop_answers,
}
