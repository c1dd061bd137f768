//! How long a message takes on a lossy link under each reliability scheme, and which scheme to use.
//!
//! The mathematics are those of the SDR-RDMA paper, section 4.2 and appendices A to C; each
//! function cites its equation, and `docs/plan.md` explains how each term is interpreted. A
//! [`Transfer`] is a message on a link. Its [`Transfer::completion`] under a [`Scheme`] is a
//! distribution; mean and quantiles are computed, not sampled:
//!
//! ```
//! use bowline_plan::{Link, Loss, Message, Scheme, Transfer};
//!
//! let link = Link { bandwidth_bps: 400e9, rtt_s: 25e-3, loss: Loss::Chunk(1e-3) };
//! let transfer = Transfer::new(link, Message::new(128 << 20))?;
//! let repeat = transfer.completion(&Scheme::sr_nack())?;
//! let coded = transfer.completion(&Scheme::ec_mds(32, 8))?;
//! assert!(coded.mean_s() < 1.1 * transfer.ideal_s());
//! assert!(repeat.quantile_s(0.999) > 2.0 * coded.quantile_s(0.999));
//! # Ok::<(), bowline_plan::PlanError>(())
//! ```
//!
//! Pure: no IO, no clock, no threads, no randomness except what a caller passes to the samplers
//! (feature `sample`). One distribution costs microseconds whatever the size, so it can be computed
//! per message.

#![forbid(unsafe_code)]

mod allreduce;
mod bursts;
mod choose;
mod completion;
mod erasure;
mod error;
mod go_back;
mod group;
mod link;
mod negative_binomial;
mod numeric;
mod repeat;
#[cfg(feature = "sample")]
mod sample;
mod scheme;
mod transfer;

pub use allreduce::Allreduce;
pub use bursts::GilbertElliott;
pub use choose::{Axis, Crossover, Goal, MARGIN, choose, choose_group, crossovers};
pub use completion::Completion;
pub use error::PlanError;
pub use group::{Group, Spread};
pub use link::{Link, Loss, rtt_of_distance_s};
#[cfg(feature = "sample")]
pub use sample::Sampler;
pub use scheme::{Coding, Erasure, Scheme};
pub use transfer::{Message, Transfer};
