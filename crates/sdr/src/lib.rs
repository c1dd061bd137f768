//! SDR: messages that complete chunk by chunk, and reliability as software over them.
//!
//! [`SdrQp`] moves messages over unreliable connections, one WRITE per packet, or, where a NIC has none,
//! over unreliable datagrams, and shows in a bitmap which chunks of a message have arrived. It
//! retransmits nothing. What to do about chunks that are
//! missing is a [`Scheme`], of which there are several and to which anybody can add:
//! [`ReliableQp`] runs them. Like the NIC it stands on, nothing in here reads a clock, opens a
//! socket or starts a thread.

mod config;
mod congestion;
mod control;
mod error;
pub mod express;
mod imm;
mod info;
mod path;
mod qp;
mod recv;
mod reliable;
pub mod scheme;
mod send;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod token;
mod ud;

pub use config::{SdrConfig, Transport};
pub use control::MAX_CONTROL;
pub use error::SdrError;
pub use imm::ImmLayout;
pub use info::SdrInfo;
pub use path::PathStats;
pub use qp::SdrQp;
pub use recv::RecvHandle;
pub use reliable::{
    Failure, Join, MAX_TELL, RecvCx, RecvId, ReliableConfig, ReliableEvent, ReliableInfo,
    ReliableQp, ReliableStats, SendCx, Shape, Stripe, WriteId, WriteOptions,
};
pub use scheme::{
    Auto, Choice, ChoiceCx, Chooser, Decision, ErasureCoding, KnownPath, Part, Scheme,
    SchemeReceiver, SchemeSender, SelectiveRepeat, Why,
};
pub use send::{Injected, SendHandle, Source};
pub use table::{ChunkBitmap, Landed, LandingCounters, LandingStats, RecvTable};
