//! Values over two axes, as colours around a neutral one.

use std::fmt::Write;

use crate::axis::{Axis, Unit};
use crate::svg::{height_with, open, source};
use crate::text::escape;

/// A grid of factors: red above 1, blue below, by their logarithms.
#[derive(Clone, Debug)]
pub struct Heatmap {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Centres of the columns.
    pub xs: Vec<f64>,
    /// Centres of the rows, from the bottom.
    pub ys: Vec<f64>,
    /// Rows of values, from the bottom.
    pub rows: Vec<Vec<f64>>,
    /// What values far below and far above 1 mean.
    pub sides: (String, String),
    /// A highlighted point: x and y.
    pub here: Option<(f64, f64)>,
    /// Where the numbers come from: the command and the date. May be empty.
    pub source: String,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 100.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 54.0;

impl Heatmap {
    /// The value furthest from 1, as a factor above it: the end points of the colour scale.
    fn reach(&self) -> f64 {
        let each = self.rows.iter().flatten().filter(|v| v.is_finite() && **v > 0.0);
        each.map(|v| v.ln().abs()).fold(0.0, f64::max).exp().clamp(1.5, 8.0)
    }

    /// Colour of a value, 24 bits.
    pub(crate) fn colour(&self, value: f64) -> [u8; 3] {
        const NEUTRAL: [f64; 3] = [236.0, 237.0, 240.0];
        const ABOVE: [[f64; 3]; 2] = [[244.0, 165.0, 130.0], [178.0, 24.0, 43.0]];
        const BELOW: [[f64; 3]; 2] = [[146.0, 197.0, 222.0], [33.0, 102.0, 172.0]];
        let place = (value.ln() / self.reach().ln()).clamp(-1.0, 1.0);
        if !place.is_finite() {
            return [150, 150, 150];
        }
        let [near, far] = if place >= 0.0 { ABOVE } else { BELOW };
        let strength = place.abs() * 2.0;
        let (from, to, t) =
            if strength < 1.0 { (NEUTRAL, near, strength) } else { (near, far, strength - 1.0) };
        [0, 1, 2].map(|i| (from[i] + (to[i] - from[i]) * t).round() as u8)
    }

    /// As SVG, with each value as a tooltip.
    pub fn svg(&self) -> String {
        let height = height_with(&self.source, HEIGHT);
        let mut out = open(WIDTH, height, &self.title);
        let (columns, rows) = (self.xs.len().max(1) as f64, self.ys.len().max(1) as f64);
        let (cell_w, cell_h) = ((WIDTH - LEFT - RIGHT) / columns, (HEIGHT - TOP - BOTTOM) / rows);
        // Whole pixels: no seams between cells.
        out.push_str("<g shape-rendering=\"crispEdges\">");
        for (r, row) in self.rows.iter().enumerate() {
            for (c, value) in row.iter().enumerate() {
                let [red, green, blue] = self.colour(*value);
                // Writing to a String cannot fail. Cells overlap by a hair, so that no gaps show.
                let _ = write!(
                    out,
                    "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" \
                     fill=\"#{red:02x}{green:02x}{blue:02x}\"><title>{}, {}: {}</title></rect>",
                    LEFT + c as f64 * cell_w,
                    HEIGHT - BOTTOM - (r + 1) as f64 * cell_h,
                    cell_w + 0.3,
                    cell_h + 0.3,
                    escape(&self.x.unit.text(self.xs[c])),
                    escape(&self.y.unit.text(self.ys[r])),
                    Unit::Factor.text(*value)
                );
            }
        }
        out.push_str("</g>");
        self.draw_axes(&mut out, cell_w, cell_h);
        self.draw_legend(&mut out);
        out + &source(&self.source, height) + "</svg>"
    }

    fn draw_axes(&self, out: &mut String, cell_w: f64, cell_h: f64) {
        let span = |values: &[f64]| {
            (values.first().copied().unwrap_or(1.0), values.last().copied().unwrap_or(2.0))
        };
        let (x_span, y_span) = (span(&self.xs), span(&self.ys));
        let inner_w = WIDTH - LEFT - RIGHT - cell_w;
        let inner_h = HEIGHT - TOP - BOTTOM - cell_h;
        for tick in self.x.ticks(x_span, 8) {
            let Some(place) = self.x.place(tick, x_span) else { continue };
            let x = LEFT + 0.5 * cell_w + place * inner_w;
            let text = escape(&self.x.unit.text(tick));
            let y = HEIGHT - BOTTOM + 18.0;
            let _ = write!(out, "<text class=\"c\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
        }
        for tick in self.y.ticks(y_span, 8) {
            let Some(place) = self.y.place(tick, y_span) else { continue };
            let y = HEIGHT - BOTTOM - 0.5 * cell_h - place * inner_h + 4.0;
            let text = escape(&self.y.unit.text(tick));
            let x = LEFT - 8.0;
            let _ = write!(out, "<text class=\"e\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
        }
        if let Some((x, y)) = self.here
            && let (Some(x), Some(y)) = (self.x.place(x, x_span), self.y.place(y, y_span))
            && (0.0..=1.0).contains(&x)
            && (0.0..=1.0).contains(&y)
        {
            let (x, y) = (LEFT + 0.5 * cell_w + x * inner_w, 0.5 * cell_h + y * inner_h);
            let y = HEIGHT - BOTTOM - y;
            // Two rings, of which one is visible on any colour.
            let _ = write!(
                out,
                "<g fill=\"none\" stroke-width=\"2\"><title>here</title>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\" stroke=\"#fff\"/>\
                 <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\" stroke=\"#1d2433\"/></g>"
            );
        }
        let _ = write!(
            out,
            "<text class=\"c\" x=\"{:.1}\" y=\"{:.1}\">{}</text><text x=\"16\" y=\"42\">{}</text>",
            LEFT + 0.5 * (WIDTH - LEFT - RIGHT),
            HEIGHT - 14.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }

    fn draw_legend(&self, out: &mut String) {
        const STEPS: i32 = 40;
        // Space for the meaning of the end points, above and below.
        const ROOM: f64 = 16.0;
        let (x, height) = (WIDTH - RIGHT + 18.0, HEIGHT - TOP - BOTTOM - 2.0 * ROOM);
        let reach = self.reach();
        let at = |place: f64| HEIGHT - BOTTOM - ROOM - (place + 1.0) * 0.5 * height;
        for i in 0..STEPS {
            let place = f64::from(2 * i + 1 - STEPS) / f64::from(STEPS);
            let [red, green, blue] = self.colour(reach.powf(place));
            let step = height / f64::from(STEPS);
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{:.2}\" width=\"14\" height=\"{:.2}\" \
                 fill=\"#{red:02x}{green:02x}{blue:02x}\"/>",
                at(place) - 0.5 * step,
                step + 0.3
            );
        }
        for place in [-1.0, -0.5, 0.0, 0.5, 1.0] {
            let text = Unit::Factor.text(reach.powf(place));
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                x + 20.0,
                at(place) + 4.0
            );
        }
        let (below, above) = (escape(&self.sides.0), escape(&self.sides.1));
        let _ = write!(
            out,
            "<text class=\"e\" x=\"{0:.1}\" y=\"44\">{above} ▲</text>\
             <text class=\"e\" x=\"{0:.1}\" y=\"{1:.1}\">{below} ▼</text>",
            WIDTH - 12.0,
            HEIGHT - 14.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_turn_at_one() {
        let map = Heatmap {
            title: String::new(),
            x: Axis::log("x", Unit::Probability),
            y: Axis::log("y", Unit::Bytes),
            xs: vec![1e-3, 1e-2],
            ys: vec![1024.0],
            rows: vec![vec![0.5, 4.0]],
            sides: ("less".to_owned(), "more".to_owned()),
            here: Some((2e-3, 1024.0)),
            source: "a command".to_owned(),
        };
        let [red, _, blue] = map.colour(4.0);
        assert!(red > blue);
        let [red, _, blue] = map.colour(0.5);
        assert!(blue > red);
        assert_eq!(map.colour(f64::NAN), [150, 150, 150]);
        assert!(map.svg().contains("1e-3, 1 KiB: 0.5x"));
        assert!(map.svg().ends_with(">a command</text></svg>"));
        assert!(map.terminal(false).lines().count() >= 2);
    }
}
