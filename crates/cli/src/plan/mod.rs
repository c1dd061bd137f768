//! `bowline plan`: which reliability for this link, and what it will cost.

mod advice;
mod allreduce;
mod args;
mod cores;
mod heatmap;
#[cfg(test)]
mod laws;
mod needs;
mod point;
mod receivers;
mod report;
mod row;
mod sweep;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use allreduce::Ring;
pub(crate) use args::PlanArgs;
use bowline_plan::Goal;
use clap::ValueEnum;
use point::Point;
use receivers::Receivers;
use sweep::{Shown, Sweep};

use crate::output;

/// Runs `bowline plan`.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Box<dyn Error>> {
    let point = Point::new(args)?;
    let ring = args.allreduce.map(|n| Ring::new(args, n)).transpose()?;
    let mut json = point.json();
    let mut text = point.text();
    if let Some(ring) = &ring {
        json["allreduce"] = serde_json::to_value(ring)?;
        text += &ring.text();
    }
    if let Some(count) = args.receivers {
        let receivers = Receivers::new(args, count)?;
        json["receivers"] = serde_json::to_value(&receivers)?;
        text += &receivers.text();
    }
    let drawing = Drawing::new(args, &point)?;
    if let Some(drawing) = &drawing {
        json[drawing.key] = drawing.json.clone();
        text += &format!("\n{}", drawing.terminal);
        // A program that reads JSON has asked for no files unless it named one.
        if !args.json || args.svg.is_some() {
            let path = args.svg.as_deref().unwrap_or(&drawing.path);
            write(path, &drawing.svg)?;
            text += &format!("drawn in {}\n", path.display());
        }
    }
    if let Some(path) = &args.report {
        write(path, &report::html(args, &point, ring.as_ref())?)?;
        text += &format!("report in {}\n", path.display());
    }
    if args.json {
        output::say(&serde_json::to_string_pretty(&output::versioned(json))?);
    } else {
        print!("{text}");
    }
    Ok(())
}

/// What `--sweep` or `--heatmap` asked for.
struct Drawing {
    key: &'static str,
    json: serde_json::Value,
    terminal: String,
    svg: String,
    path: PathBuf,
}

impl Drawing {
    fn new(args: &PlanArgs, point: &Point) -> Result<Option<Drawing>, String> {
        let colours = output::has_colours();
        if let Some(axis) = args.sweep {
            let sweep = Sweep::new(&point.transfer, &args.schemes()?, axis);
            let shown = if args.goal() == Goal::Mean { Shown::Mean } else { Shown::Tail };
            let chart = sweep.chart(shown);
            let name = axis.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
            return Ok(Some(Drawing {
                key: "sweep",
                json: sweep.json(),
                terminal: chart.terminal(96, 26, colours),
                svg: chart.svg(),
                path: format!("plan-{name}.svg").into(),
            }));
        }
        if args.heatmap {
            let map = heatmap::heatmap(&point.transfer, &args.candidates()?, args.goal())?;
            return Ok(Some(Drawing {
                key: "heatmap",
                json: heatmap::json(&map),
                terminal: map.terminal(colours),
                svg: map.svg(),
                path: "plan-heatmap.svg".into(),
            }));
        }
        Ok(None)
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
