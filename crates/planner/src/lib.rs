//! The answers of `bowline plan` and of the planner's page about a link.
//!
//! A [`Question`] is a message on a link, and what to compare. It yields a [`Point`] (the table and
//! the recommendation), [`Receivers`], a [`Sweep`] along an axis and a heatmap ([`Grid`]).
//! [`parse`] reads values as users write them, and [`State`] reads the page's: the command line and
//! the page accept the same texts, and give the same digits.
//!
//! ```
//! use bowline_planner::{Point, State};
//!
//! let state: State = "bandwidth=400Gbps\ndistance=3750km\nloss=1e-5\nsize=128MiB".parse()?;
//! let point = Point::new(&state.question, &|_| None)?;
//! assert_eq!(point.advice.scheme, "lowar");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Pure: no IO, no clock. It also compiles to WebAssembly.

#![forbid(unsafe_code)]

mod advice;
mod answer;
mod heatmap;
mod needs;
#[cfg(feature = "page")]
pub mod page;
pub mod parse;
mod point;
mod question;
mod receivers;
mod row;
mod state;
mod sweep;

pub use advice::Advice;
pub use answer::{answer, curves, grid};
pub use heatmap::{Grid, heatmap_json};
pub use needs::Peer;
pub use point::Point;
pub use question::{Parameters, Question};
pub use receivers::Receivers;
pub use row::{Row, Times};
pub use state::{State, StateError};
pub use sweep::{Shown, Sweep, scheme_series};
