//! SHIFT for other people's NICs: preloaded into an unmodified verbs program, this library stands
//! between it and the system's libibverbs (`docs/decisions/0053-shift-over-verbs.md`).
//!
//! The program keeps its provider. Control verbs are carried out by it, and then once more, in the
//! background, on a second device (`session`). Data verbs go to the provider too; what a program
//! posts is remembered in a few bytes (`ring`), because a provider's rings are not ours to read.
//! When a path dies, the agents of [`bowline_failover`] agree where to continue; `rails` is what
//! they see of the two devices.
//!
//! Locks, in the order in which they are taken: the session's core, a completion queue, a queue
//! pair. Posting takes the last alone, polling the last two at most.

mod aside;
mod cq;
mod events;
mod gate;
mod log;
mod qp;
mod rails;
mod report;
mod ring;
mod session;
mod shadow;
mod table;
mod unseen;
pub mod verbs;
