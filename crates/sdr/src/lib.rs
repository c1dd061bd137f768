//! SDR: messages that complete chunk by chunk, with reliability in software on top.
//!
//! [`SdrQp`] moves messages over unreliable connections, one WRITE per packet, or over unreliable
//! datagrams where a NIC lacks such connections. A bitmap shows which chunks of a message have
//! arrived. It retransmits nothing. A [`Scheme`] decides what to do about missing chunks, and
//! [`ReliableQp`] runs schemes: those of this crate, and others that users add. Like the NIC below,
//! this crate reads no clock, opens no socket and starts no thread.

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
mod retired;
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
pub use qp::{GroupPath, MAX_MEMBERS, SdrQp};
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
