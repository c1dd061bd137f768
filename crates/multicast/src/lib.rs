//! Reliable multicast over RC (`docs/multicast.md`).
//!
//! A sender has one ordinary RC queue pair. [`Switch`]es replicate its packets to the members of a
//! group, rewrite what differs between members, and merge the members' responses. A completion at
//! the sender means that all members have the message. The endpoints do not know about the group.
//!
//! [`Switch`] is the data plane, [`plan`] the part of the control plane that decides which switch
//! replicates. [`Merge`] is the rule that merges acknowledgements: [`Minimum`], or [`Paper`] as in
//! MC-RDMA.
//!
//! No clock, socket, thread or randomness; no `unsafe`. No packet allocates state, and none can
//! make the engine panic.

#![forbid(unsafe_code)]

mod answer;
mod counters;
mod merge;
pub mod plan;
mod rewrite;
mod root;
mod switch;
mod table;

#[cfg(test)]
mod testing;

pub use answer::{Answer, Arrival, MAX_ANSWER_LEN};
pub use counters::Counters;
pub use merge::{Merge, Minimum, Paper, Record, Records};
pub use rewrite::Edit;
pub use root::{Cause, Event};
pub use switch::{
    EvictError, GroupStatus, MemberStatus, Replicas, RootStatus, Switch, SwitchLimits, Verdict,
};
pub use table::{
    Branch, GROUP_PREFIX, GroupKey, InvalidTable, Leaf, MAX_MEMBERS, MAX_REGIONS, MemberConfig,
    Origin, Place, Policy, Region, RootConfig, Table,
};
