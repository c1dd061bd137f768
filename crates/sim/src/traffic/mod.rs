//! Background traffic: flows between random hosts, at random times, of random sizes.

mod background;
mod poisson;
mod sizes;

pub use background::{Background, FlowRecord, WithBackground};
pub use poisson::{Flow, PoissonConfig, PoissonFlows};
pub use sizes::{ParseCdfError, SizeCdf, Sizes};
