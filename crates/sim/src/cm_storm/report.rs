//! What the storm over the connection manager exercised.

macro_rules! coverage {
    ($($(#[doc = $doc:literal])+ $field:ident: $name:literal,)*) => {
        /// What was exercised, as the applications and the managers counted it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CmCoverage {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl CmCoverage {
            /// Names and numbers.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &CmCoverage) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

coverage! {
    /// Connections asked for.
    connects: "connects",
    /// Services asked for.
    resolutions: "resolutions",
    /// Services that were resolved.
    resolved: "resolved",
    /// Connections established at the active end.
    established: "established, active",
    /// Connections established at the passive end.
    accepted: "established, passive",
    /// Refusals that an end was told of.
    rejected: "rejected",
    /// Connects of queue pairs that the peer still had.
    stale: "rejected as stale",
    /// Ends whose peer did not answer.
    unreachable: "unreachable",
    /// Ends that were told of the connection's end.
    disconnected: "disconnected",
    /// Disconnects that the peer did not answer.
    silent: "disconnected, peer silent",
    /// Connections whose queue pair the peer had taken for another.
    replaced: "replaced",
    /// Ends that the application forgot before their time.
    forgotten: "forgotten early",
    /// Processes that died.
    kills: "processes killed",
    /// Connections of which one end is established and the other is gone, as the first found out.
    half_open: "half open",
    /// Messages that a forger sent.
    forged: "messages forged",
    /// Requests that a forger made.
    ghosts: "forged requests seen",
    /// Messages sent again.
    retransmitted: "messages retransmitted",
    /// Messages that repeat others.
    duplicates: "duplicates taken",
    /// Messages without a connection.
    unknown: "messages for no connection",
    /// Requests that found no place.
    backlog: "backlogs full",
}
