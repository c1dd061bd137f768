//! Runs the points of a plan on several threads, and stores finished ones.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::plan::{Effort, Plan, Planned};
use super::point::{Expected, Measured, Point};

/// A point with all of its results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) point: Point,
    pub(super) model: Expected,
    pub(super) simulated: Option<Measured>,
}

/// Points that are already finished, by key, and the file to which new ones are added.
pub(super) struct Kept {
    known: BTreeMap<String, Measured>,
    file: Option<Mutex<File>>,
}

#[derive(Deserialize, Serialize)]
struct Line {
    key: String,
    measured: Measured,
}

impl Kept {
    /// Starts empty and stores nothing.
    pub(super) fn nothing() -> Kept {
        Kept { known: BTreeMap::new(), file: None }
    }

    /// Opens the file for appending, and loads its points if `resume` is set.
    pub(super) fn open(path: &Path, resume: bool) -> io::Result<Kept> {
        let mut known = BTreeMap::new();
        if resume && path.exists() {
            for line in BufReader::new(File::open(path)?).lines() {
                // An interrupted run may leave half a line; that point is run again.
                if let Ok(line) = serde_json::from_str::<Line>(&line?) {
                    known.insert(line.key, line.measured);
                }
            }
        }
        let mut options = OpenOptions::new();
        let file = options.create(true).write(true).append(resume).truncate(!resume).open(path)?;
        Ok(Kept { known, file: Some(Mutex::new(file)) })
    }

    fn keep(&self, key: String, measured: Measured) -> Result<(), String> {
        let Some(file) = &self.file else { return Ok(()) };
        let line = serde_json::to_string(&Line { key, measured }).map_err(|e| e.to_string())?;
        let mut file = file.lock().map_err(|_| "another thread failed".to_owned())?;
        writeln!(file, "{line}").map_err(|e| format!("cannot keep a finished point: {e}"))
    }
}

/// The key of a measurement: the point, and how precisely it is measured.
fn key(point: &Point, effort: Effort) -> String {
    let Effort { standard_error, least, most, .. } = effort;
    let point = serde_json::to_string(point).unwrap_or_default();
    format!("{point} {standard_error} {least} {most}")
}

/// Runs the unfinished points on `jobs` threads, the longest first. Calls `progress` after each
/// point.
pub(super) fn run(
    plan: &Plan,
    planned: &[Planned],
    quick: bool,
    jobs: usize,
    kept: &Kept,
    progress: impl Fn() + Sync,
) -> Result<Vec<Row>, String> {
    let effort = plan.effort(quick);
    let mut order: Vec<usize> = (0..planned.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(planned[*i].point.stage_chunks()));
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Row)>, String> {
        let mut rows = Vec::new();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            rows.push((*index, row(plan, &planned[*index], effort, kept)?));
            progress();
        }
        Ok(rows)
    };
    let results: Vec<Result<Vec<(usize, Row)>, String>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join().expect("a worker does not panic")).collect()
    });
    let mut rows = Vec::new();
    for result in results {
        rows.extend(result?);
    }
    rows.sort_by_key(|(index, _)| *index);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn row(plan: &Plan, planned: &Planned, effort: Effort, kept: &Kept) -> Result<Row, String> {
    let point = planned.point.clone();
    let model = point.expect(plan.parameters)?;
    let simulated = if planned.simulate {
        let key = key(&point, effort);
        Some(match kept.known.get(&key) {
            Some(measured) => *measured,
            None => {
                let measured = point.measure(effort)?;
                kept.keep(key, measured)?;
                measured
            }
        })
    } else {
        None
    };
    Ok(Row { point, model, simulated })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "title = 't'\nabout = 'a'\nx = 'loss'\n[quick]\nleast = 10\nmost = 10\n\
        [[sweep]]\nschemes = ['sr-nack', 'ec-mds']\nsize-mib = 1\nchunk-loss = [1e-3, 1e-1]";

    #[test]
    fn finished_points_are_not_run_again_and_give_the_same() {
        let dir = std::env::temp_dir().join(format!("bowline-kept-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("points.jsonl");
        let plan: Plan = toml::from_str(PLAN).unwrap();
        let planned = plan.points(true).unwrap();
        let run = |resume| {
            let kept = Kept::open(&path, resume).unwrap();
            let known = kept.known.len();
            (known, run(&plan, &planned, true, 2, &kept, || ()).unwrap())
        };
        let (known, first) = run(false);
        assert_eq!((known, first.len()), (0, 4));
        let half = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &half[..half.len() - 20]).unwrap();
        let (known, second) = run(true);
        assert_eq!(known, 3);
        for (a, b) in first.iter().zip(&second) {
            let [a, b] = [a, b].map(|row| row.simulated.unwrap().mean_s);
            assert!((a / b - 1.0).abs() < 1e-12);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
