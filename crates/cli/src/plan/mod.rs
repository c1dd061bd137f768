//! `bowline plan`: which reliability scheme suits a link, and how long messages take with it.

mod allreduce;
mod args;
mod cores;
mod explorer;
#[cfg(test)]
mod laws;
mod report;
mod sampled;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use allreduce::Ring;
pub(crate) use args::PlanArgs;
use args::named;
use bowline_chart::Heatmap;
use bowline_plan::Goal;
use bowline_planner::{Grid, Point, Question, Receivers, Shown, Sweep, heatmap_json};
use clap::ValueEnum;
use cores::CodingRates;

use crate::{made, output};

/// Cells of a heatmap in each direction.
const SIDE: usize = 40;

/// Runs `bowline plan`.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Box<dyn Error>> {
    if let Some(addr) = args.serve {
        return Ok(explorer::serve(addr, &args.state())?);
    }
    if let Some(path) = &args.page {
        write(path, &explorer::html(&args.state()))?;
        output::say(&format!("explorer in {}", path.display()));
        return Ok(());
    }
    let question = args.question()?;
    let point = point(&question, args)?;
    let ring = args.allreduce.map(|n| Ring::new(&question, n, args.samples, args.seed));
    let ring = ring.transpose()?;
    let mut json = point.json();
    let mut text = point.text();
    if let Some(ring) = &ring {
        json["allreduce"] = serde_json::to_value(ring)?;
        text += &ring.text();
    }
    if args.receivers.is_some() {
        let receivers = Receivers::new(&question).map_err(named)?;
        json["receivers"] = serde_json::to_value(&receivers)?;
        text += &receivers.text();
    }
    let source = made::source();
    let drawing = Drawing::new(args, &question, &source)?;
    if let Some(drawing) = &drawing {
        json[drawing.key] = drawing.json.clone();
        text += &format!("\n{}", drawing.terminal);
        // With `--json`, write a file only if the user named one.
        if !args.json || args.svg.is_some() {
            let path = args.svg.as_deref().unwrap_or(&drawing.path);
            write(path, &drawing.svg)?;
            text += &format!("drawn in {}\n", path.display());
        }
    }
    if let Some(path) = &args.report {
        write(path, &report::html(&question, &point, ring.as_ref(), &source)?)?;
        text += &format!("report in {}\n", path.display());
    }
    if args.json {
        output::say(&serde_json::to_string_pretty(&output::versioned(json))?);
    } else {
        print!("{text}");
    }
    Ok(())
}

/// The table and the recommendation, with the cores needed on this machine, and samples if
/// requested.
fn point(question: &Question, args: &PlanArgs) -> Result<Point, String> {
    let schemes = question.schemes().map_err(named)?;
    // Report errors before measuring anything.
    let transfer = question.transfer().map_err(named)?;
    let rates = CodingRates::load(&schemes, question.message);
    let bandwidth_bps = question.link.bandwidth_bps;
    let cores = |scheme: &_| rates.cores(scheme, bandwidth_bps);
    let mut point = Point::new(question, &cores).map_err(named)?;
    if let Some(samples) = args.samples {
        for (row, scheme) in point.rows.iter_mut().zip(&schemes) {
            row.sampled = Some(sampled::times(&transfer, scheme, samples, args.seed)?);
        }
    }
    Ok(point)
}

/// The chart that `--sweep` or `--heatmap` asks for.
struct Drawing {
    key: &'static str,
    json: serde_json::Value,
    terminal: String,
    svg: String,
    path: PathBuf,
}

impl Drawing {
    fn new(args: &PlanArgs, question: &Question, source: &str) -> Result<Option<Drawing>, String> {
        let colours = output::has_colours();
        if let Some(axis) = args.sweep {
            let sweep = Sweep::new(question, axis.axis()).map_err(named)?;
            let shown = if question.goal == Goal::Mean { Shown::Mean } else { Shown::Tail };
            let mut chart = sweep.chart(shown);
            source.clone_into(&mut chart.source);
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
            let mut map = heatmap(question)?;
            source.clone_into(&mut map.source);
            return Ok(Some(Drawing {
                key: "heatmap",
                json: heatmap_json(&map),
                terminal: map.terminal(colours),
                svg: map.svg(),
                path: "plan-heatmap.svg".into(),
            }));
        }
        Ok(None)
    }
}

/// Figure 9 for the user's own link, computed on all cores.
fn heatmap(question: &Question) -> Result<Heatmap, String> {
    let grid = Grid::new(question, SIDE).map_err(named)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let numbers: Vec<usize> = (0..grid.rows()).collect();
    let compute = &|rows: &[usize]| rows.iter().map(|row| grid.row(*row)).collect::<Vec<_>>();
    let rows = std::thread::scope(|scope| {
        let parts = numbers.chunks(SIDE.div_ceil(cores));
        let workers: Vec<_> = parts.map(|rows| scope.spawn(move || compute(rows))).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
    });
    Ok(grid.heatmap(rows))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
