//! Lines over two axes.

use std::fmt::Write;

use crate::axis::Axis;
use crate::svg::{height_with, open, source};
use crate::text::escape;

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Highlighted values on the x axis.
    pub marks: Vec<Mark>,
    /// Where the numbers come from: the command and the date. May be empty.
    pub source: String,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its points, in order. A value that is not finite interrupts it.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Which of eight colours; by default its index among the lines.
    pub colour: Option<usize>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A line.
    Line,
    /// A line of dashes.
    Dashed,
    /// Dots, as for measurements beside a model's line.
    Dots,
}

/// A value on the x axis.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Where.
    pub x: f64,
    /// Its label.
    pub label: String,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 118.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 54.0;

impl Series {
    /// A line.
    pub fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), points, style: Style::Line, colour: None }
    }

    /// The same line in this style.
    pub fn styled(self, style: Style) -> Series {
        Series { style, ..self }
    }

    /// The same line in this one of eight colours.
    pub fn coloured(self, colour: usize) -> Series {
        Series { colour: Some(colour % 8), ..self }
    }
}

impl LineChart {
    /// A chart without lines.
    pub fn new(title: &str, x: Axis, y: Axis) -> LineChart {
        LineChart {
            title: title.to_owned(),
            x,
            y,
            series: Vec::new(),
            marks: Vec::new(),
            source: String::new(),
        }
    }

    pub(crate) fn spans(&self) -> ((f64, f64), (f64, f64)) {
        let points = || self.series.iter().flat_map(|s| s.points.iter());
        (self.x.span(points().map(|p| p.0)), self.y.span(points().map(|p| p.1)))
    }

    /// Index of a line's colour.
    pub(crate) fn colour(&self, series: usize) -> usize {
        self.series[series].colour.unwrap_or(series % 8)
    }

    /// As SVG.
    pub fn svg(&self) -> String {
        let (x_span, y_span) = self.spans();
        let x_at = |v: f64| self.x.place(v, x_span).map(|p| LEFT + p * (WIDTH - LEFT - RIGHT));
        let y_at =
            |v: f64| self.y.place(v, y_span).map(|p| HEIGHT - BOTTOM - p * (HEIGHT - TOP - BOTTOM));
        let height = height_with(&self.source, HEIGHT);
        let mut out = open(WIDTH, height, &self.title);
        self.draw_axes(&mut out, x_span, y_span, &x_at, &y_at);
        // Clip lines to the range. All charts have the same frame, and so the same clip path.
        let (w, h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM + 4.0);
        let _ = write!(
            out,
            "<clipPath id=\"bl-frame\"><rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{w}\" \
             height=\"{h}\"/></clipPath><g clip-path=\"url(#bl-frame)\">",
            TOP - 2.0
        );
        let mut ends = Vec::new();
        for (i, series) in self.series.iter().enumerate() {
            let colour = self.colour(i);
            let points: Vec<Option<(f64, f64)>> =
                series.points.iter().map(|(x, y)| Some((x_at(*x)?, y_at(*y)?))).collect();
            draw_series(&mut out, series, colour, &points);
            if let Some((_, y)) = points.iter().rev().flatten().next() {
                ends.push((y.clamp(TOP, HEIGHT - BOTTOM), colour, series));
            }
        }
        out.push_str("</g>");
        draw_names(&mut out, ends);
        out + &source(&self.source, height) + "</svg>"
    }

    fn draw_axes(
        &self,
        out: &mut String,
        x_span: (f64, f64),
        y_span: (f64, f64),
        x_at: &dyn Fn(f64) -> Option<f64>,
        y_at: &dyn Fn(f64) -> Option<f64>,
    ) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        // Writing to a String cannot fail, here and below.
        for tick in self.y.ticks(y_span, 6) {
            let Some(y) = y_at(tick) else { continue };
            let text = escape(&self.y.unit.text(tick));
            let _ = write!(
                out,
                "<path class=\"g\" d=\"M{LEFT} {y:.1}H{right}\"/>\
                 <text class=\"e\" x=\"{:.1}\" y=\"{:.1}\">{text}</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        for tick in self.x.ticks(x_span, 8) {
            let Some(x) = x_at(tick) else { continue };
            let text = escape(&self.x.unit.text(tick));
            let _ = write!(
                out,
                "<path class=\"g\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
                 <text class=\"c\" x=\"{x:.1}\" y=\"{:.1}\">{text}</text>",
                bottom + 18.0
            );
        }
        for mark in &self.marks {
            let Some(x) = x_at(mark.x).filter(|x| (LEFT..=right).contains(x)) else { continue };
            let _ = write!(
                out,
                "<path class=\"m\" d=\"M{x:.1} {TOP}V{bottom}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 4.0,
                TOP + 12.0,
                escape(&mark.label)
            );
        }
        let _ = write!(
            out,
            "<text class=\"c\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <text x=\"16\" y=\"42\">{}</text>",
            0.5 * (LEFT + right),
            HEIGHT - 14.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }
}

fn draw_series(out: &mut String, series: &Series, colour: usize, points: &[Option<(f64, f64)>]) {
    if series.style == Style::Dots {
        for (x, y) in points.iter().flatten() {
            let _ = write!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" style=\"fill:var(--s{colour})\"/>"
            );
        }
        return;
    }
    let mut path = String::new();
    let mut pen_down = false;
    for point in points {
        if let Some((x, y)) = point {
            let _ = write!(path, "{}{x:.1} {y:.1}", if pen_down { 'L' } else { 'M' });
        }
        pen_down = point.is_some();
    }
    let dashes = if series.style == Style::Dashed { ";stroke-dasharray:6 5" } else { "" };
    let _ = write!(
        out,
        "<path class=\"l\" d=\"{path}\" style=\"stroke:var(--s{colour}){dashes}\"><title>{}</title></path>",
        escape(&series.name)
    );
}

/// Names at the lines' ends, moved apart so that they do not overlap.
fn draw_names(out: &mut String, mut ends: Vec<(f64, usize, &Series)>) {
    const LINE: f64 = 16.0;
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut next = TOP + 4.0;
    let mut places: Vec<f64> = Vec::new();
    for (y, _, _) in &ends {
        let place = y.max(next);
        places.push(place);
        next = place + LINE;
    }
    // Push names that left the chart at the bottom back up.
    let mut limit = HEIGHT - BOTTOM + 4.0;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE;
    }
    for ((_, colour, series), y) in ends.iter().zip(places) {
        let x = WIDTH - RIGHT + 10.0;
        let _ = write!(
            out,
            "<text x=\"{x:.1}\" y=\"{:.1}\" style=\"fill:var(--s{colour});font-weight:600\">{}</text>",
            y + 4.0,
            escape(&series.name)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Unit;

    fn chart() -> LineChart {
        let x = Axis::log("loss & co", Unit::Probability);
        let mut chart = LineChart::new("a <chart>", x, Axis::linear("slowdown", Unit::Factor));
        let points = vec![(1e-6, 1.0), (1e-4, f64::NAN), (1e-3, 2.0), (1e-2, 3.0)];
        chart.series.push(Series::line("one", points.clone()));
        chart.series.push(Series::line("two", points).styled(Style::Dots));
        chart.marks.push(Mark { x: 1e-4, label: "here".to_owned() });
        chart
    }

    #[test]
    fn a_drawing_is_escaped_and_interrupted_where_there_is_nothing() {
        let svg = chart().svg();
        assert!(svg.contains("a &lt;chart&gt;") && svg.contains("loss &amp; co"));
        assert!(!svg.contains("NaN"));
        let line = svg.split("class=\"l\" d=\"").nth(1).unwrap();
        let path = line.split('"').next().unwrap();
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert_eq!(svg.matches("<circle").count(), 3);
        // The frame clips lines, not their names.
        let (inside, outside) = svg.split_once("</g>").unwrap();
        assert_eq!(inside.matches("<g ").count(), 1);
        assert!(outside.contains(">one</text>") && !outside.contains("<path"));
    }

    #[test]
    fn a_source_has_room_of_its_own() {
        let mut chart = chart();
        assert!(chart.svg().contains("viewBox=\"0 0 760 420\""));
        chart.source = "a & b".to_owned();
        let svg = chart.svg();
        assert!(svg.contains("viewBox=\"0 0 760 440\"") && svg.contains(">a &amp; b</text></svg>"));
    }

    #[test]
    fn nothing_to_draw_is_drawn() {
        let empty = LineChart::new("", Axis::log("", Unit::Bytes), Axis::log("", Unit::Seconds));
        assert!(empty.svg().ends_with("</svg>"));
        assert!(!empty.terminal(40, 10, false).is_empty());
    }
}
