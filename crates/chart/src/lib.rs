//! Charts for reports: lines, bars and heatmaps, as SVG and in the terminal, and HTML pages that
//! carry them.
//!
//! Fill in a [`LineChart`], a [`BarChart`] or a [`Heatmap`] and draw it. The SVG works on its own
//! or inside a page, and follows the reader's light or dark theme. A [`Page`] is one self-contained
//! file. [`text`] formats numbers for readers, and [`scheme_colour`] gives each reliability scheme
//! one colour in every chart.
//!
//! ```
//! use bowline_chart::{Axis, LineChart, Series, Unit};
//!
//! let loss = Axis::log("loss", Unit::Probability);
//! let slowdown = Axis::linear("slowdown", Unit::Factor);
//! let mut chart = LineChart::new("Slowdown", loss, slowdown);
//! chart.series.push(Series::line("sr-nack", vec![(1e-6, 1.0), (1e-4, 1.2), (1e-2, 2.1)]));
//! assert!(chart.svg().starts_with("<svg"));
//! println!("{}", chart.terminal(80, 20, false));
//! ```
//!
//! No IO and no dependencies.

#![forbid(unsafe_code)]

mod axis;
mod bar;
mod heatmap;
mod line;
mod page;
mod svg;
mod terminal;
pub mod text;

pub use axis::{Axis, Scale, Unit};
pub use bar::{Bar, BarChart, BarGroup};
pub use heatmap::Heatmap;
pub use line::{LineChart, Mark, Series, Style};
pub use page::Page;
pub use svg::css;

/// The colour of a reliability scheme, the same in every chart; one grey for everything else.
pub fn scheme_colour(scheme: &str) -> usize {
    const COLOURS: [&str; 6] = ["gbn", "sr-rto", "sr-nack", "ec-mds", "ec-xor", "lowar"];
    COLOURS.iter().position(|name| *name == scheme).unwrap_or(6)
}
