//! What a chart's description says, and the drawing that follows from it.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;

use bowline_chart::{
    Axis, Bar, BarChart, BarGroup, LineChart, Scale, Series, Style, Unit, scheme_colour,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum Spec {
    Bars(Bars),
    Lines(Lines),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bars {
    title: String,
    label: String,
    unit: Measure,
    scale: ScaleName,
    source: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    #[serde(default)]
    bars: Vec<BarSpec>,
    from: Option<From>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BarSpec {
    name: String,
    /// Absent where a run gave no result.
    value: Option<f64>,
    colour: Option<usize>,
}

/// Bars out of a bench's JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    file: String,
    rows: String,
    #[serde(default)]
    r#where: BTreeMap<String, Value>,
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lines {
    title: String,
    x: AxisSpec,
    y: AxisSpec,
    lines: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisSpec {
    label: String,
    unit: Measure,
    scale: ScaleName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
    colour: Option<usize>,
    /// For what shares its colour with another line.
    #[serde(default)]
    dashed: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Measure {
    Gbps,
    Ms,
    Us,
    Loss,
    Number,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScaleName {
    Linear,
    Log,
}

impl Measure {
    fn unit(self) -> Unit {
        match self {
            Measure::Gbps => Unit::BitsPerSecond,
            Measure::Ms | Measure::Us => Unit::Seconds,
            Measure::Loss => Unit::Probability,
            Measure::Number => Unit::Number,
        }
    }

    /// What one of it is in the chart's unit.
    fn factor(self) -> f64 {
        match self {
            Measure::Gbps => 1e9,
            Measure::Ms => 1e-3,
            Measure::Us => 1e-6,
            Measure::Loss | Measure::Number => 1.0,
        }
    }
}

impl ScaleName {
    fn scale(self) -> Scale {
        match self {
            ScaleName::Linear => Scale::Linear,
            ScaleName::Log => Scale::Log,
        }
    }
}

/// The drawing of a description; `read` gives a file of results.
pub(crate) fn draw(
    spec: &str,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<String, Box<dyn Error>> {
    match serde_json::from_str(spec)? {
        Spec::Bars(bars) => draw_bars(bars, read),
        Spec::Lines(lines) => Ok(draw_lines(lines)),
    }
}

fn draw_bars(
    spec: Bars,
    read: impl Fn(&str) -> io::Result<String>,
) -> Result<String, Box<dyn Error>> {
    let mut groups = Vec::new();
    for group in spec.groups {
        let mut bars = group.bars;
        if let Some(from) = group.from {
            let text = read(&from.file).map_err(|error| format!("{}: {error}", from.file))?;
            bars.extend(select(&from, &serde_json::from_str(&text)?)?);
        }
        let bars = bars.into_iter().map(|bar| Bar {
            colour: bar.colour.unwrap_or_else(|| colour(&bar.name)),
            value: bar.value.map_or(f64::NAN, |value| value * spec.unit.factor()),
            name: bar.name,
        });
        groups.push(BarGroup { name: group.name, bars: bars.collect() });
    }
    let chart = BarChart {
        title: spec.title,
        label: spec.label,
        unit: spec.unit.unit(),
        scale: spec.scale.scale(),
        groups,
        source: spec.source,
    };
    Ok(chart.svg())
}

fn draw_lines(spec: Lines) -> String {
    let (x_factor, y_factor) = (spec.x.unit.factor(), spec.y.unit.factor());
    let axis = |spec: AxisSpec| Axis {
        label: spec.label,
        scale: spec.scale.scale(),
        unit: spec.unit.unit(),
        range: None,
    };
    let mut chart = LineChart::new(&spec.title, axis(spec.x), axis(spec.y));
    for line in spec.lines {
        let points = line.points.iter().map(|(x, y)| (x * x_factor, y * y_factor)).collect();
        let colour = line.colour.unwrap_or_else(|| colour(&line.name));
        let style = if line.dashed { Style::Dashed } else { Style::Line };
        chart.series.push(Series::line(&line.name, points).coloured(colour).styled(style));
    }
    chart.svg()
}

/// The rows of a result that the description asks for. None at all is a mistake in the description.
fn select(from: &From, result: &Value) -> Result<Vec<BarSpec>, Box<dyn Error>> {
    let rows = result.pointer(&from.rows).and_then(Value::as_array);
    let rows = rows.ok_or_else(|| format!("{}: no list at `{}`", from.file, from.rows))?;
    let wanted = |row: &&Value| from.r#where.iter().all(|(key, value)| row[key] == *value);
    let bar = |row: &Value| -> Result<BarSpec, Box<dyn Error>> {
        let name = row[&from.name].as_str();
        let name = name.ok_or_else(|| format!("{}: a row without `{}`", from.file, from.name))?;
        Ok(BarSpec { name: name.to_owned(), value: row[&from.value].as_f64(), colour: None })
    };
    let bars: Vec<BarSpec> = rows.iter().filter(wanted).map(bar).collect::<Result<_, _>>()?;
    if bars.is_empty() {
        return Err(format!("{}: no row has {:?}", from.file, from.r#where).into());
    }
    Ok(bars)
}

/// The colour of a scheme by the names that benches give it.
fn colour(name: &str) -> usize {
    let name = name.strip_prefix("Bowline ").unwrap_or(name).to_lowercase();
    let scheme = match name.split(' ').next().unwrap_or_default() {
        "rc" => "gbn",
        "rc+fec" => "lowar",
        "sr" => "sr-rto",
        "ec" => "ec-mds",
        other => other,
    };
    scheme_colour(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"{"kind": "bars", "title": "t", "label": "l", "unit": "gbps", "scale": "linear",
        "source": "s", "groups": [{"name": "g", "bars": [{"name": "by hand", "value": 2}],
        "from": {"file": "f.json", "rows": "/rows", "where": {"link": "long"}, "name": "scheme",
        "value": "goodput"}}]}"#;
    const RESULT: &str = r#"{"rows": [{"link": "long", "scheme": "rc (gbn)", "goodput": 0.5},
        {"link": "short", "scheme": "other", "goodput": 9},
        {"link": "long", "scheme": "late", "goodput": null}]}"#;

    fn read(name: &str) -> io::Result<String> {
        assert_eq!(name, "f.json");
        Ok(RESULT.to_owned())
    }

    #[test]
    fn bars_come_from_the_rows_that_are_asked_for() {
        let svg = draw(SPEC, read).expect("a chart");
        assert!(svg.contains("by hand: 2 Gbit/s") && svg.contains("rc (gbn): 500 Mbit/s"));
        assert!(svg.contains("late: no result") && !svg.contains("other"));
    }

    #[test]
    fn a_description_that_matches_nothing_is_an_error() {
        let error = draw(&SPEC.replace("\"long\"", "\"far\""), read).expect_err("no such link");
        assert!(error.to_string().contains("f.json"), "{error}");
        assert!(draw(&SPEC.replace("/rows", "/lines"), read).is_err());
        assert!(draw(&SPEC.replace("\"label\"", "\"lable\""), read).is_err());
    }

    #[test]
    fn lines_are_drawn_in_the_colour_of_their_scheme() {
        let spec = r#"{"kind": "lines", "title": "t", "x": {"label": "loss", "unit": "loss", "scale": "log"},
            "y": {"label": "goodput", "unit": "gbps", "scale": "linear"},
            "lines": [{"name": "Bowline RC+FEC", "points": [[0.001, 0.7], [0.01, 0.3]]},
            {"name": "TCP", "points": [[0.001, 0.1], [0.01, 0.1]], "dashed": true}]}"#;
        let svg = draw(spec, read).expect("a chart");
        assert!(svg.contains("stroke:var(--s5)\""));
        assert!(svg.contains("stroke:var(--s6);stroke-dasharray"));
    }
}
