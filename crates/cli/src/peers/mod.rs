//! Peer authentication: `bowline key`, and how commands authenticate each other.

mod admit;
mod args;
mod connect;
pub(crate) mod discovery;
mod gate;
mod key;
mod policy;
mod ranks;
mod target;

pub(crate) use admit::{FIRST_DELAY, MAX_TRIES, admit};
pub(crate) use args::TrustArgs;
pub(crate) use connect::{Trust, connect};
pub(crate) use gate::Gate;
pub(crate) use key::{KeyArgs, run};
pub(crate) use policy::RecvPolicy;
pub(crate) use ranks::KeyGuard;
pub(crate) use target::Target;
