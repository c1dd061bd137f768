//! An off-path attacker: it knows addresses, queue pair numbers and formats, reads nothing, and
//! sends any packets under any source address.
//!
//! It has no secrets: the keys and tokens that it writes are wrong guesses. Packet sequence numbers
//! are guesses too. Where a storm requires a wrong guess, the guess is far from the truth; where
//! the storm tests a right one, the connection is a hostage ([`crate::storm::Role::Hostage`]), for
//! which fewer guarantees hold. `docs/security.md` lists them.

mod forge;
mod forgery;
mod formats;
mod plan;
mod report;
mod xp;

pub(crate) use forge::{ForgedMessage, Forger, Target};
pub use forgery::Forgery;
pub(crate) use formats::{agent_message, control_message};
pub use plan::{AttackPlan, Attacker, Burst};
pub use report::AttackCoverage;
pub(crate) use xp::Numbers;
