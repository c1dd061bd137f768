//! Figure 9 for the user's own link: where coding beats plain retransmission.

use bowline_chart::{Axis as ChartAxis, Heatmap, Unit};
use bowline_plan::{Axis, Group, PlanError, Scheme, Spread, Transfer};
use serde_json::{Value, json};

use crate::advice::{is_coded, loss_kind};
use crate::question::Question;
use crate::sweep::{range, spread};

/// How many times faster the best coding scheme is than the best retransmitting one, by size and
/// loss: row by row, for callers that cannot wait for all of them.
pub struct Grid {
    question: Question,
    transfer: Transfer,
    coded: Vec<Scheme>,
    repeating: Vec<Scheme>,
    xs: Vec<f64>,
    ys: Vec<f64>,
}

impl Grid {
    /// With `side` cells in each dimension.
    ///
    /// # Errors
    /// Schemes of which none codes, or all do.
    pub fn new(question: &Question, side: usize) -> Result<Grid, PlanError> {
        let transfer = question.transfer()?;
        let (coded, repeating): (Vec<Scheme>, Vec<Scheme>) =
            question.candidates()?.iter().partition(|scheme| is_coded(scheme));
        if coded.is_empty() || repeating.is_empty() {
            let why = "a heatmap compares coding with repeating; name some of both".to_owned();
            return Err(PlanError { what: "scheme", why, example: "sr-rto,ec-mds" });
        }
        let xs = spread(range(Axis::Loss, &transfer), side);
        let ys = spread(range(Axis::Size, &transfer), side);
        Ok(Grid { question: question.clone(), transfer, coded, repeating, xs, ys })
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.ys.len()
    }

    /// One row, counted from the smallest message; a point without a plan is NaN.
    pub fn row(&self, row: usize) -> Vec<f64> {
        let cell = |loss: &f64| self.speedup(*self.ys.get(row)?, *loss);
        self.xs.iter().map(|loss| cell(loss).unwrap_or(f64::NAN)).collect()
    }

    fn speedup(&self, bytes: f64, loss: f64) -> Option<f64> {
        let place = Axis::Size.moved(&self.transfer, bytes).ok()?;
        let place = Axis::Loss.moved(&place, loss).ok()?;
        let time_s = |scheme: &Scheme| {
            let law = Group::new(&place, scheme, self.question.receivers, Spread::Group).ok()?;
            Some(law.sketch_s(self.question.goal))
        };
        let best =
            |schemes: &[Scheme]| schemes.iter().filter_map(time_s).fold(f64::INFINITY, f64::min);
        Some(best(&self.repeating) / best(&self.coded))
    }

    /// The drawing of all rows.
    pub fn heatmap(&self, rows: Vec<Vec<f64>>) -> Heatmap {
        let names =
            |schemes: &[Scheme]| schemes.iter().map(|s| s.name()).collect::<Vec<_>>().join(" or ");
        let (coded, repeating) = (names(&self.coded), names(&self.repeating));
        let loss = loss_kind(&self.transfer.link().loss);
        Heatmap {
            title: format!("How many times faster {coded} is than {repeating}"),
            x: ChartAxis::log(loss, Unit::Probability),
            y: ChartAxis::log("message size", Unit::Bytes),
            xs: self.xs.clone(),
            ys: self.ys.clone(),
            rows,
            sides: ("repeating leads".to_owned(), "coding leads".to_owned()),
            here: Some((Axis::Loss.value(&self.transfer), Axis::Size.value(&self.transfer))),
            source: String::new(),
        }
    }
}

/// Its JSON form.
pub fn heatmap_json(map: &Heatmap) -> Value {
    json!({"loss": map.xs, "size_bytes": map.ys, "coding_speedup": map.rows})
}
