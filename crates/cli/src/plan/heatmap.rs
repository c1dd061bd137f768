//! Figure 9 for the user's own link: where coding leads over repeating alone.

use bowline_chart::{Axis as ChartAxis, Heatmap, Unit};
use bowline_plan::{Axis, Goal, Scheme, Transfer};
use serde_json::{Value, json};

use super::advice::{is_coded, loss_kind};
use super::sweep::{range, spread};

/// Cells each way.
const SIDE: usize = 40;

/// How many times faster the best coding is than the best repeating, by size and loss.
pub(super) fn heatmap(
    transfer: &Transfer,
    candidates: &[Scheme],
    goal: Goal,
) -> Result<Heatmap, String> {
    let (coded, repeating): (Vec<Scheme>, Vec<Scheme>) =
        candidates.iter().partition(|scheme| is_coded(scheme));
    if coded.is_empty() || repeating.is_empty() {
        return Err(
            "--scheme: a heatmap compares coding with repeating: name some of both, as in \
                    `--scheme sr-rto,ec-mds`"
                .to_owned(),
        );
    }
    let xs = spread(range(Axis::Loss, transfer), SIDE);
    let ys = spread(range(Axis::Size, transfer), SIDE);
    let speedup = |bytes: f64, loss: f64| {
        let place = Axis::Size.moved(transfer, bytes).ok()?;
        let place = Axis::Loss.moved(&place, loss).ok()?;
        let best = |schemes: &[Scheme]| {
            let times = schemes.iter().filter_map(|scheme| goal.of(&place, scheme).ok());
            times.fold(f64::INFINITY, f64::min)
        };
        Some(best(&repeating) / best(&coded))
    };
    let row = |bytes: f64| -> Vec<f64> {
        xs.iter().map(|loss| speedup(bytes, *loss).unwrap_or(f64::NAN)).collect()
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = std::thread::scope(|scope| {
        let parts = ys.chunks(SIDE.div_ceil(cores));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(|| part.iter().map(|bytes| row(*bytes)).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
    });
    let names =
        |schemes: &[Scheme]| schemes.iter().map(|s| s.name()).collect::<Vec<_>>().join(" or ");
    let loss = loss_kind(&transfer.link().loss);
    Ok(Heatmap {
        title: format!("How many times faster {} is than {}", names(&coded), names(&repeating)),
        x: ChartAxis::log(loss, Unit::Probability),
        y: ChartAxis::log("message size", Unit::Bytes),
        xs,
        ys,
        rows,
        sides: ("repeating leads".to_owned(), "coding leads".to_owned()),
    })
}

pub(super) fn json(map: &Heatmap) -> Value {
    json!({"loss": map.xs, "size_bytes": map.ys, "coding_speedup": map.rows})
}
