//! Results as a page with drawings. What is on it, `bench/peers/run` says: here it is only drawn.

use std::fs;
use std::path::{Path, PathBuf};

use bowline_chart::{Axis, LineChart, Page, Scale, Series, Unit};
use clap::Args;
use serde::Deserialize;

use crate::Result;

/// What to draw and where.
#[derive(Args)]
pub(crate) struct PageArgs {
    /// The results, with what goes on the page under `page`
    results: PathBuf,
    /// Where index.html and the drawings go
    #[arg(long)]
    out: PathBuf,
}

#[derive(Deserialize)]
struct Results {
    page: Content,
}

#[derive(Deserialize)]
struct Content {
    title: String,
    subtitle: String,
    sections: Vec<Section>,
}

#[derive(Deserialize)]
struct Section {
    heading: String,
    #[serde(default)]
    paragraphs: Vec<String>,
    #[serde(default)]
    head: Vec<String>,
    #[serde(default)]
    rows: Vec<Vec<String>>,
    #[serde(default)]
    charts: Vec<Chart>,
    #[serde(default)]
    list: Vec<String>,
}

#[derive(Deserialize)]
struct Chart {
    /// Name of its file, without the ending.
    name: String,
    title: String,
    x: AxisText,
    y: AxisText,
    series: Vec<Line>,
}

#[derive(Deserialize)]
struct AxisText {
    label: String,
    unit: UnitName,
    #[serde(default)]
    log: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum UnitName {
    Bytes,
    Seconds,
    BitsPerSecond,
    Probability,
}

#[derive(Deserialize)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl AxisText {
    fn axis(&self) -> Axis {
        let unit = match self.unit {
            UnitName::Bytes => Unit::Bytes,
            UnitName::Seconds => Unit::Seconds,
            UnitName::BitsPerSecond => Unit::BitsPerSecond,
            UnitName::Probability => Unit::Probability,
        };
        let scale = if self.log { Scale::Log } else { Scale::Linear };
        Axis { scale, ..Axis::linear(&self.label, unit) }
    }
}

impl Chart {
    fn svg(&self) -> String {
        let mut chart = LineChart::new(&self.title, self.x.axis(), self.y.axis());
        chart.series =
            self.series.iter().map(|l| Series::line(&l.name, l.points.clone())).collect();
        chart.svg()
    }
}

/// Draws everything; prints where the page is.
pub(crate) fn draw(args: &PageArgs) -> Result<()> {
    let text = fs::read_to_string(&args.results)?;
    let content = serde_json::from_str::<Results>(&text)?.page;
    fs::create_dir_all(&args.out)?;
    let mut page = Page::new(&content.title, &content.subtitle);
    for section in &content.sections {
        add(&mut page, section, &args.out)?;
    }
    let file = args.out.join("index.html");
    fs::write(&file, page.html())?;
    println!("{}", file.display());
    Ok(())
}

fn add(page: &mut Page, section: &Section, out: &Path) -> Result<()> {
    page.heading(&section.heading);
    for text in &section.paragraphs {
        page.paragraph(text);
    }
    if !section.rows.is_empty() {
        let head: Vec<&str> = section.head.iter().map(String::as_str).collect();
        page.table(&head, &section.rows, None);
    }
    let mut drawings = Vec::new();
    for chart in &section.charts {
        let svg = chart.svg();
        fs::write(out.join(format!("{}.svg", chart.name)), &svg)?;
        drawings.push(svg);
    }
    if !drawings.is_empty() {
        page.charts(&drawings);
    }
    if !section.list.is_empty() {
        page.list(&section.list);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_drawn_from_what_the_script_writes() {
        let text = r#"{"page": {"title": "t", "subtitle": "s", "sections": [{"heading": "h",
            "paragraphs": ["p"], "head": ["", "a"], "rows": [["r", "1"]], "list": ["l"],
            "charts": [{"name": "c", "title": "C", "x": {"label": "loss", "unit": "probability",
            "log": true}, "y": {"label": "rate", "unit": "bits_per_second"},
            "series": [{"name": "one", "points": [[0.001, 1e9], [0.01, 5e8]]}]}]}]}}"#;
        let section = &serde_json::from_str::<Results>(text).unwrap().page.sections[0];
        assert!(section.charts[0].svg().contains("one"));
        assert_eq!(section.rows[0][1], "1");
    }
}
