//! LoWAR's figures: FEC under one connection.

use std::error::Error;
use std::process::ExitCode;

use bowline_sim::experiment::{Figure, FigureBar, LowarFigure, lowar};
use serde_json::{Map, Value, json};

use super::{RunArgs, make_dir, verdict};
use crate::output::{say, versioned};

/// Seed of all losses.
const SEED: u64 = 1;

/// The figures: name, figure and subject.
const FIGURES: [(&str, LowarFigure, &str); 5] = [
    ("lowar-fig9", LowarFigure::Goodput, "goodput against loss at 40 and 80 ms"),
    ("lowar-fig10", LowarFigure::Completion, "completion of 1 MB messages, mean and p99"),
    ("lowar-fig11", LowarFigure::Bursts, "bursts of losses under FEC(64,8)"),
    ("lowar-fig12", LowarFigure::Small, "small messages"),
    ("lowar-fig13", LowarFigure::Latency, "latency that FEC adds"),
];

/// The figure of this name.
pub(super) fn find(name: &str) -> Option<LowarFigure> {
    FIGURES.iter().find(|(known, ..)| *known == name).map(|(_, figure, _)| *figure)
}

pub(super) fn list() -> String {
    FIGURES.iter().map(|(name, _, title)| format!("{name:<12} LoWAR: {title}\n")).collect()
}

pub(super) fn run(figure: LowarFigure, args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    let figure = lowar(figure, SEED, args.quick)?;
    if let Some(dir) = &args.out {
        make_dir(dir)?;
        std::fs::write(dir.join(format!("{}.json", args.name)), to_json(&figure).to_string())?;
    }
    if args.json {
        say(&versioned(to_json(&figure)).to_string());
    } else {
        print!("{figure}");
        for bar in &figure.bars {
            let verdict = if bar.holds() { "holds" } else { "DOES NOT HOLD" };
            let FigureBar { what, value, least } = bar;
            println!("{what}: {value:.3} (bar: at least {least:.3}) {verdict}");
        }
    }
    Ok(verdict(args, figure.bars.iter().filter(|bar| !bar.holds()).count()))
}

fn to_json(figure: &Figure) -> Value {
    let rows = figure.rows.iter().map(|row| {
        let named = figure.columns.iter().zip(&row.values);
        let mut object: Map<String, Value> =
            named.map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        object.insert("paper".to_owned(), json!(row.paper));
        Value::Object(object)
    });
    let bars = figure.bars.iter().map(|bar| {
        let FigureBar { what, value, least } = bar;
        json!({ "what": what, "value": value, "least": least, "holds": bar.holds() })
    });
    json!({
        "title": figure.title,
        "rows": rows.collect::<Vec<_>>(),
        "bars": bars.collect::<Vec<_>>(),
        "ok": figure.bars.iter().all(FigureBar::holds),
    })
}
