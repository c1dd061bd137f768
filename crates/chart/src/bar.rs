//! Horizontal bars in groups, each with its value written beside it.

use std::fmt::Write;

use crate::axis::{Scale, Unit};
use crate::svg::{open, source};
use crate::text::escape;

/// A chart of horizontal bars.
///
/// Bars of one group are compared with each other; groups share one scale. The value is written
/// beside each bar, so no axis is needed.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// What is measured and which direction is better, below the title.
    pub label: String,
    /// What values are.
    pub unit: Unit,
    /// How values map to lengths. A logarithmic scale starts a decade below the smallest value.
    pub scale: Scale,
    /// The groups, from the top.
    pub groups: Vec<BarGroup>,
    /// Where the numbers come from: the command and the date.
    pub source: String,
}

/// Bars that are compared with each other.
#[derive(Clone, Debug)]
pub struct BarGroup {
    /// What they have in common; may be empty.
    pub name: String,
    /// The bars, from the top.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is.
    pub name: String,
    /// Its length. A value that is not finite, or that the scale cannot show, has no bar.
    pub value: f64,
    /// Which of eight colours.
    pub colour: usize,
}

const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 56.0;
const ROW: f64 = 24.0;
const HEADING: f64 = 28.0;
const BOTTOM: f64 = 34.0;

impl BarChart {
    /// The range that bars span: from the left edge to the longest bar.
    fn range(&self) -> (f64, f64) {
        let values = self.groups.iter().flat_map(|g| g.bars.iter()).map(|b| b.value);
        let shown = |v: &f64| v.is_finite() && *v > 0.0;
        let (low, high) = values
            .filter(shown)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        match self.scale {
            _ if high == 0.0 => (0.0, 1.0),
            Scale::Linear => (0.0, high),
            Scale::Log => (low / 10.0, high),
        }
    }

    /// The length of a value's bar, between 0 and 1.
    fn length(&self, value: f64, (low, high): (f64, f64)) -> f64 {
        let length = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        };
        if length.is_finite() { length.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn height(&self) -> f64 {
        let rows = self.groups.iter().map(|g| {
            let heading = if g.name.is_empty() { 0.0 } else { HEADING };
            heading + ROW * g.bars.len() as f64
        });
        TOP + rows.sum::<f64>() + BOTTOM
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let height = self.height();
        let mut out = open(WIDTH, height, &self.title);
        // Writing to a String cannot fail, here and below.
        let _ = write!(out, "<text x=\"16\" y=\"44\">{}</text>", escape(&self.label));
        let range = self.range();
        let mut y = TOP;
        for group in &self.groups {
            if !group.name.is_empty() {
                let (at, name) = (y + 20.0, escape(&group.name));
                let style = "fill:var(--ink);font-weight:600";
                let _ = write!(out, "<text x=\"16\" y=\"{at:.1}\" style=\"{style}\">{name}</text>");
                y += HEADING;
            }
            for bar in &group.bars {
                self.draw(&mut out, bar, range, y);
                y += ROW;
            }
        }
        out + &source(&self.source, height) + "</svg>"
    }

    fn draw(&self, out: &mut String, bar: &Bar, range: (f64, f64), y: f64) {
        let width = self.length(bar.value, range) * (WIDTH - LEFT - RIGHT);
        let name = escape(&bar.name);
        let value =
            if bar.value.is_finite() { self.unit.text(bar.value) } else { "no result".to_owned() };
        let (baseline, value) = (y + 16.0, escape(&value));
        let _ = write!(
            out,
            "<text class=\"e\" x=\"{:.1}\" y=\"{baseline:.1}\">{name}</text>\
             <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" rx=\"3\" \
             style=\"fill:var(--s{})\"><title>{name}: {value}</title></rect>\
             <text x=\"{:.1}\" y=\"{baseline:.1}\" style=\"fill:var(--ink)\">{value}</text>",
            LEFT - 10.0,
            y + 4.0,
            ROW - 8.0,
            bar.colour % 8,
            LEFT + width + 8.0,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, values: &[f64]) -> BarChart {
        let bar = |(i, v): (usize, &f64)| Bar { name: format!("b{i} & co"), value: *v, colour: i };
        BarChart {
            title: "a <chart>".to_owned(),
            label: "higher is better".to_owned(),
            unit: Unit::Factor,
            scale,
            groups: vec![BarGroup {
                name: "group".to_owned(),
                bars: values.iter().enumerate().map(bar).collect(),
            }],
            source: "a command".to_owned(),
        }
    }

    fn widths(svg: &str) -> Vec<f64> {
        let bars = svg.split("<rect x=\"190\"").skip(1);
        let width = |b: &str| b.split("width=\"").nth(1)?.split('"').next()?.parse().ok();
        bars.map(|b| width(b).expect("a bar has a width")).collect()
    }

    #[test]
    fn lengths_are_in_proportion() {
        let widths = widths(&chart(Scale::Linear, &[1.0, 2.0, 4.0]).svg());
        assert_eq!(widths, [115.0, 230.0, 460.0]);
    }

    #[test]
    fn a_logarithmic_scale_gives_each_decade_the_same_length() {
        let widths = widths(&chart(Scale::Log, &[1.0, 10.0, 100.0]).svg());
        assert!((widths[1] - 2.0 * widths[0]).abs() < 0.2, "{widths:?}");
        assert!((widths[2] - 3.0 * widths[0]).abs() < 0.2, "{widths:?}");
    }

    #[test]
    fn what_cannot_be_drawn_has_no_length_and_no_nan() {
        let svg = chart(Scale::Log, &[0.0, f64::NAN, 3.0]).svg();
        assert_eq!(widths(&svg)[..2], [0.0, 0.0]);
        assert!(!svg.contains("NaN") && svg.contains("no result"));
        assert!(chart(Scale::Linear, &[]).svg().ends_with("</svg>"));
    }

    #[test]
    fn text_is_escaped() {
        let svg = chart(Scale::Linear, &[1.0]).svg();
        assert!(svg.contains("a &lt;chart&gt;") && svg.contains("b0 &amp; co"));
    }
}
