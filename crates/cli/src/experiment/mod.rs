//! `bowline sim run`: reproduces the papers' figures with the real protocol code in virtual time,
//! next to the planner's model.

mod congestion;
mod draw;
mod fig10;
mod lowar;
mod multicast;
mod optinic;
mod plan;
mod point;
mod report;
mod steps;
mod sweep;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use crate::output;
use plan::Plan;
use report::Report;
use steps::StepsPlan;
use sweep::Kept;

#[derive(Args)]
#[command(after_help = "Examples:\n  \
    bowline sim run list                       which experiments there are\n  \
    bowline sim run fig10 --quick              the trend, in a few seconds\n  \
    bowline sim run fig3a --out results        JSON, SVG and a page in results/\n  \
    bowline sim run model --check              the model against the code\n  \
    bowline sim run lowar-fig9                 FEC under a connection, beside what the paper says\n  \
    bowline sim run incast --check             rate controllers when many send to one\n  \
    bowline sim run optinic-fig5 --check       collectives over RC and XP, with bursts beside them\n  \
    bowline sim run mc-fig9 --check            groups, fan-out and chain replication\n  \
    bowline sim run mine.toml --out results --resume    your own plan; finished points are kept\n\n\
    Plans are TOML files: see experiments/ in the repository.")]
pub(crate) struct RunArgs {
    /// Experiment name, or a plan file
    #[arg(value_name = "EXPERIMENT")]
    name: String,
    /// Fewer and shorter messages
    #[arg(long)]
    quick: bool,
    /// Messages for each scheme and loss rate of fig10, or operations for each row of optinic-*
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
    /// Transport of the flows; incast, permutation and fairness only
    #[arg(long, value_enum, default_value_t)]
    transport: congestion::Carrier,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Exit with status 1 if a threshold does not hold
    #[arg(long)]
    check: bool,
    /// Write JSON, charts as SVG, and an HTML page into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Skip what an earlier run has finished and stored in --out
    #[arg(long, requires = "out")]
    resume: bool,
    /// Number of threads [default: one per core]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
}

/// A plan file.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Experiment {
    /// Points on a grid.
    Sweep(Plan),
    /// Links whose loss rate changes in steps.
    Steps(StepsPlan),
}

/// The experiments that come with the program.
const EXPERIMENTS: [(&str, &str); 12] = [
    ("fig3a", include_str!("../../experiments/fig3a.toml")),
    ("fig3b", include_str!("../../experiments/fig3b.toml")),
    ("fig3c", include_str!("../../experiments/fig3c.toml")),
    ("fig9", include_str!("../../experiments/fig9.toml")),
    ("fig10a", include_str!("../../experiments/fig10a.toml")),
    ("fig10b", include_str!("../../experiments/fig10b.toml")),
    ("fig10c", include_str!("../../experiments/fig10c.toml")),
    ("fig10d", include_str!("../../experiments/fig10d.toml")),
    ("fig12", include_str!("../../experiments/fig12.toml")),
    ("fig13", include_str!("../../experiments/fig13.toml")),
    ("fig15", include_str!("../../experiments/fig15.toml")),
    ("model", include_str!("../../experiments/model.toml")),
];
/// The built-in experiment that is not a sweep.
const AUTO: (&str, &str) = ("auto", include_str!("../../experiments/auto.toml"));

/// Runs `bowline sim run`.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    match args.name.as_str() {
        "fig10" => return fig10::run(args),
        "list" => {
            print!("{}", list());
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    if let Some(figure) = lowar::find(&args.name) {
        return lowar::run(figure, args);
    }
    if let Some(which) = congestion::find(&args.name) {
        return congestion::run(which, args);
    }
    if let Some(figure) = optinic::find(&args.name) {
        return optinic::run(figure, args);
    }
    if let Some(figure) = multicast::find(&args.name) {
        return multicast::run(figure, args);
    }
    let (name, text) = find(&args.name)?;
    let experiment: Experiment = toml::from_str(&text)
        .map_err(|e| format!("invalid plan {name}: {}", e.to_string().trim_end()))?;
    let broken = match experiment {
        Experiment::Sweep(plan) => run_sweep(args, &name, &plan)?,
        Experiment::Steps(plan) => run_steps(args, &name, &plan)?,
    };
    Ok(verdict(args, broken))
}

/// With `--check`, prints the verdict in one line. Returns the exit status.
fn verdict(args: &RunArgs, broken: usize) -> ExitCode {
    if !args.check {
        return ExitCode::SUCCESS;
    }
    let line = verdict_line(&args.name, broken);
    // With `--json`, stdout contains nothing else.
    if args.json {
        eprintln!("{line}")
    } else {
        output::say(&line)
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn verdict_line(name: &str, broken: usize) -> String {
    match broken {
        0 => format!("{name}: check passed"),
        1 => format!("{name}: check failed: 1 threshold does not hold"),
        _ => format!("{name}: check failed: {broken} thresholds do not hold"),
    }
}

/// Name and text of a plan: a built-in one or a file.
fn find(name: &str) -> Result<(String, String), String> {
    if let Some((name, text)) = EXPERIMENTS.iter().chain([&AUTO]).find(|(n, _)| *n == name) {
        return Ok(((*name).to_owned(), (*text).to_owned()));
    }
    let path = Path::new(name);
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("experiment");
    match fs::read_to_string(path) {
        Ok(text) => Ok((stem.to_owned(), text)),
        Err(e) => {
            let names: Vec<&str> = EXPERIMENTS.iter().chain([&AUTO]).map(|(n, _)| *n).collect();
            let names = names.join(", ");
            Err(format!("{name} is neither an experiment (fig10, {names}) nor a plan file: {e}"))
        }
    }
}

fn list() -> String {
    let mut out = "fig10    slowdown of a 128 MiB write by scheme and loss, unscaled\n".to_owned();
    for (name, text) in EXPERIMENTS.iter().chain([&AUTO]) {
        let title = match toml::from_str(text) {
            Ok(Experiment::Sweep(plan)) => plan.title,
            Ok(Experiment::Steps(plan)) => plan.title,
            Err(e) => e.to_string(),
        };
        out += &format!("{name:<8} {title}\n");
    }
    out + &lowar::list() + &congestion::list() + &optinic::list() + &multicast::list()
}

#[cfg(test)]
impl RunArgs {
    /// An experiment without options.
    fn of(name: &str) -> RunArgs {
        RunArgs {
            name: name.to_owned(),
            quick: false,
            repetitions: None,
            transport: congestion::Carrier::default(),
            json: false,
            check: false,
            out: None,
            resume: false,
            jobs: None,
        }
    }
}

fn jobs(args: &RunArgs) -> usize {
    args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn make_dir(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))
}

/// Runs a sweep. Returns the number of thresholds that do not hold.
fn run_sweep(args: &RunArgs, name: &str, plan: &Plan) -> Result<usize, Box<dyn Error>> {
    plan.check()?;
    let planned = plan.points(args.quick)?;
    let kept = match &args.out {
        None => Kept::nothing(),
        Some(dir) => {
            make_dir(dir)?;
            let path = dir.join(format!("{name}.points.jsonl"));
            Kept::open(&path, args.resume)
                .map_err(|e| format!("cannot open {}: {e}", path.display()))?
        }
    };
    let bar = output::progress(planned.len() as u64, name);
    let rows = sweep::run(plan, &planned, args.quick, jobs(args), &kept, || bar.inc(1));
    bar.finish_and_clear();
    let report = Report { name, plan, quick: args.quick, rows: rows? };
    if let Some(dir) = &args.out {
        for path in draw::write(&report, dir)? {
            eprintln!("{}", path.display());
        }
    }
    if args.json {
        output::say(&output::versioned(report.json()).to_string());
    } else {
        print!("{}", report.table());
    }
    Ok(report.broken().len())
}

/// Runs links whose loss rate changes in steps. Returns the number of thresholds that do not hold.
fn run_steps(args: &RunArgs, name: &str, plan: &StepsPlan) -> Result<usize, Box<dyn Error>> {
    let bar = output::progress(plan.runs(args.quick)? as u64, name);
    let outcomes = plan.run(args.quick, jobs(args), || bar.inc(1));
    bar.finish_and_clear();
    let outcomes = outcomes?;
    let json = output::versioned(plan.json(&outcomes)).to_string();
    if let Some(dir) = &args.out {
        make_dir(dir)?;
        fs::write(dir.join(format!("{name}.json")), &json)?;
        fs::write(dir.join(format!("{name}.html")), plan.page(name, &outcomes))?;
    }
    if args.json {
        println!("{json}");
    } else {
        print!("{}", plan.table(&outcomes));
    }
    Ok(plan.broken(&outcomes).len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_can_be_read_and_quick_ones_run_something() {
        for (name, text) in EXPERIMENTS.iter().chain([&AUTO]) {
            match toml::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}")) {
                Experiment::Sweep(plan) => {
                    plan.check().unwrap_or_else(|e| panic!("{name}: {e}"));
                    for quick in [false, true] {
                        let points = plan.points(quick).unwrap();
                        assert!(points.iter().any(|point| point.simulate), "{name} {quick}");
                    }
                }
                Experiment::Steps(plan) => assert!(plan.runs(true).unwrap() > 0, "{name}"),
            }
        }
        assert!(!list().contains("error"));
    }

    #[test]
    fn the_model_is_checked_at_forty_points_and_more() {
        let plan: Experiment = toml::from_str(&find("model").unwrap().1).unwrap();
        let Experiment::Sweep(plan) = plan else { panic!("it is a sweep") };
        let points = plan.points(false).unwrap();
        assert!(points.iter().filter(|point| point.simulate).count() >= 40);
    }

    #[test]
    fn an_unknown_experiment_is_told_which_there_are() {
        assert!(find("fig99").unwrap_err().contains("fig3a"));
    }

    #[test]
    fn a_check_ends_in_one_line_that_says_how() {
        assert_eq!(verdict_line("fig9", 0), "fig9: check passed");
        assert_eq!(verdict_line("fig9", 1), "fig9: check failed: 1 threshold does not hold");
        assert_eq!(verdict_line("fig9", 2), "fig9: check failed: 2 thresholds do not hold");
        let args = RunArgs { check: true, ..RunArgs::of("fig9") };
        assert_eq!(verdict(&args, 1), ExitCode::FAILURE);
        assert_eq!(verdict(&args, 0), ExitCode::SUCCESS);
        assert_eq!(verdict(&RunArgs::of("fig9"), 1), ExitCode::SUCCESS, "nobody asked");
    }
}
