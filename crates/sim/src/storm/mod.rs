//! One seed draws a whole scenario: hosts, QPs, traffic, faults. A fault phase, then a healed phase
//! in which everything must become quiescent, and checkers throughout.

mod app;
mod arena;
mod attack;
mod complete;
mod crime;
mod draw;
mod draw_ops;
mod end;
mod failover;
mod fec;
mod finish;
mod hostage;
mod lifecycle;
mod many;
mod memory;
mod on_path;
mod post;
mod receive;
mod report;
mod run;
mod scenario;
mod setup;

pub use crime::Crime;
pub(crate) use draw::{
    Severity, draw_coalescing, draw_end, draw_faults, draw_host, draw_lanes, draw_link,
};
pub(crate) use draw_ops::{OpMix, draw_ops};
pub(crate) use fec::draw as draw_fec;
pub use many::{Failure, Outcome, Totals, run_many};
pub use report::{Coverage, FaultCount, OpCount};
pub(crate) use run::run_scenario;

pub use run::{SeedReport, run_seed, run_seed_traced};
pub use scenario::{
    ConnPlan, EndPlan, HostPlan, NicPlan, OpKind, OpPlan, Role, Scenario, Shape, SrqPlan, Target,
};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
