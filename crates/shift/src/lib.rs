//! SHIFT for third-party NICs: preloaded into an unmodified verbs program, this library sits
//! between the program and the system's libibverbs (`docs/decisions/0053-shift-over-verbs.md`).
//!
//! The program keeps its provider. The provider executes control verbs, and then this library
//! repeats them in the background on a second device (`session`). Data verbs go to the provider
//! too. What a program posts is recorded in a few bytes (`ring`), because we cannot read a
//! provider's rings. When a path dies, the agents of [`bowline_failover`] agree where to continue;
//! `rails` is their view of the two devices.
//!
//! Lock order: the session's core, a completion queue, a queue pair. Posting takes only the last
//! one, polling at most the last two.

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
