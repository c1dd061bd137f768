//! Charts for reports: lines over linear or logarithmic axes and heatmaps, as SVG and in the terminal,
//! and HTML pages that carry them.
//!
//! A [`LineChart`] or a [`Heatmap`] is filled in and drawn; an SVG looks right alone and inside a page,
//! on light and on dark. A [`Page`] is one self-contained file. [`text`] writes numbers as people do.
//!
//! ```
//! use bowline_chart::{Axis, LineChart, Series, Unit};
//!
//! let mut chart = LineChart::new("Slowdown", Axis::log("loss", Unit::Probability), Axis::linear("slowdown", Unit::Factor));
//! chart.series.push(Series::line("sr-nack", vec![(1e-6, 1.0), (1e-4, 1.2), (1e-2, 2.1)]));
//! assert!(chart.svg().starts_with("<svg"));
//! println!("{}", chart.terminal(80, 20, false));
//! ```
//!
//! No IO and no dependencies.

#![forbid(unsafe_code)]

mod axis;
mod heatmap;
mod line;
mod page;
mod svg;
mod terminal;
pub mod text;

pub use axis::{Axis, Scale, Unit};
pub use heatmap::Heatmap;
pub use line::{LineChart, Mark, Series, Style};
pub use page::Page;
