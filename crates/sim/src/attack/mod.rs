//! An attacker off the path: it knows addresses, queue pair numbers and formats, reads nothing, and
//! sends whatever packets it likes in anybody's name.
//!
//! It has no secret: keys and tokens that it writes are guesses, and wrong. Packet sequence numbers
//! are guesses too. Where a storm says that a guess is wrong, it is far from the truth; where the
//! storm is about what a right one does, the connection is a hostage
//! ([`crate::storm::Role::Hostage`]), of which less is promised. `docs/security.md` says what.

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
