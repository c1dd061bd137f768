//! What the storm over multicast exercised.

macro_rules! coverage {
    ($($(#[doc = $doc:literal])+ $field:ident: $name:literal,)*) => {
        /// What was exercised, as the applications counted it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MulticastCoverage {
            $($(#[doc = $doc])+ pub $field: u64,)*
            /// What the switches counted.
            pub switches: bowline_multicast::Counters,
        }

        impl MulticastCoverage {
            /// Names and numbers.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter().chain(self.switches.iter())
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &MulticastCoverage) {
                $(self.$field += other.$field;)*
                self.switches.merge(&other.switches);
            }
        }
    };
}

coverage! {
    /// Groups.
    groups: "groups",
    /// Groups with one member.
    single: "groups of one",
    /// Groups in which two members share an address.
    shared: "groups with a shared address",
    /// Members.
    members: "members",
    /// Requests that completed.
    completed: "requests completed",
    /// Messages found at a member when their request had completed.
    found: "messages found at members",
    /// Groups whose requests have all completed.
    whole: "groups without an error",
    /// Groups that ended because retries ran out: a member was gone that may not be evicted.
    timed_out_failing: "timed out: member gone, policy fail",
    /// The same: a member was gone that is evicted only after the sender's retries have run out.
    timed_out_patient: "timed out: member gone, long patience",
    /// Groups that evict in time, or whose members were all there, after a switch lost its state.
    timed_out_restarted: "timed out: switch restarted",
    /// All others: pauses and losses.
    timed_out_lost: "timed out: pauses and losses",
    /// Groups that failed by their policy.
    failed: "groups failed by policy",
    /// Requests that groups do not support, refused.
    refused: "bad requests refused",
    /// Members evicted.
    evicted: "members evicted",
    /// Members that left.
    left: "members left",
    /// Members that joined later.
    joined: "members joined",
    /// Members whose QPs vanished.
    killed: "members killed",
    /// Members that refuse requests.
    revoked: "members refusing",
    /// Switches that lost their state.
    restarts: "switch restarts",
    /// Packets to multicast addresses.
    by_ip_multicast: "packets by IP multicast",
    /// Multicast addresses that no longer reach anybody.
    lost_trunks: "multicast addresses lost",
    /// Groups whose PSNs wrapped around.
    wraps: "PSN wraps",
    /// Packets that somebody forged.
    forged: "forged packets",
}
