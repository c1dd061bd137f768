//! Charts in a terminal: braille dots for lines, blocks for heatmaps.

use std::fmt::Write;

use crate::heatmap::Heatmap;
use crate::line::{LineChart, Style};
use crate::svg::TERMINAL;

/// Dots of a braille character, horizontally and vertically.
const DOTS: (usize, usize) = (2, 4);

impl LineChart {
    /// As text of about this many columns and lines, optionally in colours.
    pub fn terminal(&self, columns: usize, lines: usize, colours: bool) -> String {
        let (x_span, y_span) = self.spans();
        let y_ticks = self.y.ticks(y_span, (lines / 4).max(2));
        let y_texts: Vec<String> = y_ticks.iter().map(|t| self.y.unit.text(*t)).collect();
        let margin = y_texts.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        let width = columns.saturating_sub(margin + 2).max(16);
        let height = lines.saturating_sub(4).max(4);
        let mut canvas = Canvas::new(width, height);
        for (i, series) in self.series.iter().enumerate() {
            let points: Vec<Option<(f64, f64)>> = series
                .points
                .iter()
                .map(|(x, y)| Some((self.x.place(*x, x_span)?, self.y.place(*y, y_span)?)))
                .collect();
            let colour = self.colour(i);
            for point in points.iter().flatten() {
                canvas.dot(point.0, point.1, colour);
            }
            if series.style != Style::Dots {
                for pair in points.windows(2) {
                    if let [Some(a), Some(b)] = pair {
                        canvas.line(*a, *b, colour);
                    }
                }
            }
        }
        let label_of = |line: usize| {
            let place = |tick: f64| self.y.place(tick, y_span).unwrap_or(-1.0);
            let row = |tick: f64| ((1.0 - place(tick)) * (height - 1) as f64).round();
            y_ticks.iter().position(|tick| row(*tick) == line as f64)
        };
        let mut out = format!("{}\n{}\n", self.title, self.y.label);
        // Writing to a String cannot fail, here and below.
        for line in 0..height {
            let text = label_of(line).map_or("", |i| &y_texts[i]);
            let _ = writeln!(out, "{text:>margin$} ┤{}", canvas.row(line, colours));
        }
        out += &self.x_labels(margin, width, x_span);
        let names: Vec<String> = (0..self.series.len())
            .map(|i| paint(&format!("● {}", self.series[i].name), self.colour(i), colours))
            .collect();
        let _ = writeln!(out, "{:margin$}  {}", "", names.join("  "));
        out
    }

    fn x_labels(&self, margin: usize, width: usize, span: (f64, f64)) -> String {
        let mut line = vec![' '; margin + 2 + width + 12];
        let mut free = 0;
        for tick in self.x.ticks(span, (width / 10).max(2)) {
            let text: Vec<char> = self.x.unit.text(tick).chars().collect();
            let Some(place) = self.x.place(tick, span) else { continue };
            let middle = margin + 2 + (place * (width - 1) as f64).round() as usize;
            let start = middle.saturating_sub(text.len() / 2);
            if start >= free && start + text.len() <= line.len() {
                line[start..start + text.len()].copy_from_slice(&text);
                free = start + text.len() + 1;
            }
        }
        let ticks: String = line.into_iter().collect();
        format!("{}\n{:margin$}  {}\n", ticks.trim_end(), "", self.x.label)
    }
}

impl Heatmap {
    /// As text, two characters a cell: in colours, or by how far above (`+`) or below (`-`) 1.
    pub fn terminal(&self, colours: bool) -> String {
        let texts: Vec<String> = self.ys.iter().map(|y| self.y.unit.text(*y)).collect();
        let margin = texts.iter().map(|t| t.chars().count()).max().unwrap_or(0);
        let mut out = format!("{}\n", self.title);
        let every = self.ys.len().div_ceil(12).max(1);
        for (r, row) in self.rows.iter().enumerate().rev() {
            let text = if r % every == 0 { &texts[r] } else { "" };
            let _ = write!(out, "{text:>margin$} ");
            for value in row {
                if colours {
                    let [red, green, blue] = self.colour(*value);
                    let _ = write!(out, "\x1b[48;2;{red};{green};{blue}m  \x1b[0m");
                } else {
                    out.push_str(sign(*value));
                }
            }
            out.push('\n');
        }
        let (first, last) = (self.xs.first(), self.xs.last());
        let ends = [first, last].map(|x| x.map_or(String::new(), |x| self.x.unit.text(*x)));
        let gap = (2 * self.xs.len()).saturating_sub(ends[0].chars().count());
        let _ = writeln!(out, "{:margin$} {}{:>gap$}  {}", "", ends[0], ends[1], self.x.label);
        let (below, above) = &self.sides;
        let key = if colours { ["blue", "red"] } else { ["- and =", "+ and #"] };
        let _ = writeln!(out, "{:margin$} {}: {below}, {}: {above}", "", key[0], key[1]);
        out
    }
}

fn sign(value: f64) -> &'static str {
    match value {
        v if v > 1.5 => "##",
        v if v > 1.01 => "++",
        v if v >= 1.0 / 1.01 => "··",
        v if v >= 1.0 / 1.5 => "--",
        _ => "==",
    }
}

fn paint(text: &str, colour: usize, colours: bool) -> String {
    if colours {
        format!("\x1b[38;5;{}m{text}\x1b[0m", TERMINAL[colour % 8])
    } else {
        text.to_owned()
    }
}

/// Braille characters, each with the colour of what was drawn there last.
struct Canvas {
    width: usize,
    height: usize,
    cells: Vec<(u8, usize)>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, height, cells: vec![(0, 0); width * height] }
    }

    /// Dot coordinates of a position between 0 and 1 on each axis.
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let (w, h) = ((self.width * DOTS.0 - 1) as f64, (self.height * DOTS.1 - 1) as f64);
        (x * w, (1.0 - y) * h)
    }

    fn dot(&mut self, x: f64, y: f64, colour: usize) {
        let (x, y) = self.at(x, y);
        self.set(x, y, colour);
    }

    fn set(&mut self, x: f64, y: f64, colour: usize) {
        /// Bit of each dot, column by column.
        const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        let (x, y) = (x.round(), y.round());
        if x < 0.0 || y < 0.0 {
            return;
        }
        let (x, y) = (x as usize, y as usize);
        let (column, line) = (x / DOTS.0, y / DOTS.1);
        if column < self.width && line < self.height {
            let cell = &mut self.cells[line * self.width + column];
            *cell = (cell.0 | BITS[x % DOTS.0][y % DOTS.1], colour);
        }
    }

    fn line(&mut self, a: (f64, f64), b: (f64, f64), colour: usize) {
        let ((x0, y0), (x1, y1)) = (self.at(a.0, a.1), self.at(b.0, b.1));
        let longest = ((self.width + self.height) * 8) as f64;
        let steps = (x1 - x0).abs().max((y1 - y0).abs()).ceil().clamp(1.0, longest);
        for i in 0..=steps as usize {
            let t = i as f64 / steps;
            self.set(x0 + (x1 - x0) * t, y0 + (y1 - y0) * t, colour);
        }
    }

    fn row(&self, line: usize, colours: bool) -> String {
        let cells = &self.cells[line * self.width..(line + 1) * self.width];
        let mut out = String::new();
        for (bits, colour) in cells {
            let character = char::from_u32(0x2800 + u32::from(*bits)).unwrap_or(' ');
            match bits {
                0 => out.push(' '),
                _ => out += &paint(&character.to_string(), *colour, colours),
            }
        }
        out.trim_end().to_owned()
    }
}
