//! The results of a sweep: as a table, as JSON, and the thresholds that do not hold.

use bowline_chart::text;
use serde_json::{Value, json};

use super::plan::{Axis, Metric, Plan, Statistic};
use super::sweep::Row;

/// The results of an experiment.
pub(super) struct Report<'a> {
    pub(super) name: &'a str,
    pub(super) plan: &'a Plan,
    pub(super) quick: bool,
    pub(super) rows: Vec<Row>,
}

/// A row's values in the plan's metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub(super) model: f64,
    pub(super) simulated: Option<f64>,
}

impl Report<'_> {
    /// A row's values, if it has any. For a speedup, the first scheme's rows have none.
    pub(super) fn values(&self, row: &Row) -> Option<Values> {
        let model_s = |row: &Row| match self.plan.statistic {
            Statistic::Mean => row.model.mean_s,
            Statistic::P999 => row.model.p999_s,
        };
        let simulated_s = |row: &Row| {
            let measured = row.simulated?;
            match self.plan.statistic {
                Statistic::Mean => Some(measured.mean_s),
                Statistic::P999 => measured.p999_s,
            }
        };
        let values = match self.plan.metric {
            Metric::Slowdown => Values {
                model: model_s(row) / row.model.ideal_s,
                simulated: simulated_s(row).map(|time| time / row.model.ideal_s),
            },
            Metric::Speedup => {
                let base = self.base_of(row)?;
                let simulated =
                    simulated_s(base).zip(simulated_s(row)).map(|(base, own)| base / own);
                Values { model: model_s(base) / model_s(row), simulated }
            }
            Metric::ChunkLoss => Values {
                model: row.point.chunk_loss,
                simulated: row.simulated.map(|measured| measured.chunk_loss),
            },
        };
        Some(values)
    }

    /// The first scheme's row at the same point.
    fn base_of(&self, row: &Row) -> Option<&Row> {
        let first = &self.rows.first()?.point;
        if row.point.scheme_text() == first.scheme_text() {
            return None;
        }
        let (scheme, k, m) = (first.scheme.clone(), first.k, first.m);
        let wanted = super::point::Point { scheme, k, m, ..row.point.clone() };
        self.rows.iter().find(|other| other.point == wanted)
    }

    /// The axes other than the plan's x that have more than one value.
    pub(super) fn others(&self) -> Vec<Axis> {
        let differs = |axis: &Axis| {
            let mut values = self.rows.iter().map(|row| axis.value(&row.point));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        let others = Axis::ALL.into_iter().filter(|axis| *axis != self.plan.x);
        // If the sweep varies packet loss, the chunk loss follows from it.
        let follows = |axis: &Axis| *axis == Axis::Loss && self.plan.metric == Metric::ChunkLoss;
        others.filter(|axis| differs(axis) && !follows(axis)).collect()
    }

    /// A row's series: everything that describes it except its x value.
    pub(super) fn series(&self, row: &Row) -> String {
        let others = self.others();
        let axes = others.iter().map(|axis| match axis {
            Axis::Datacenters => format!("{} datacenters", axis.value(&row.point)),
            _ => axis.text(axis.value(&row.point)),
        });
        std::iter::once(row.point.scheme_text()).chain(axes).collect::<Vec<_>>().join(", ")
    }

    /// The thresholds that do not hold.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for row in &self.rows {
            let Some(measured) = row.simulated else { continue };
            let at = format!("{} at {}", self.series(row), self.x_text(row));
            if measured.failed > 0 {
                broken.push(format!("{at}: a message failed"));
            }
            let off = measured.mean_s / row.model.mean_s - 1.0;
            if let Some(tolerance) = self.plan.tolerance
                && off.abs() > tolerance
            {
                let percent = tolerance * 100.0;
                broken.push(format!("{at}: {:+.1} %, more than {percent} %", off * 100.0));
            }
        }
        broken
    }

    fn x_text(&self, row: &Row) -> String {
        self.plan.x.text(self.plan.x.value(&row.point))
    }

    /// Column heads and cells of the simulated rows, or of all rows.
    pub(super) fn cells(&self, all: bool) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let what = match self.plan.metric {
            Metric::Slowdown => "slowdown, model",
            Metric::Speedup => "speedup, model",
            Metric::ChunkLoss => "chunk loss, model",
        };
        let head = vec![what, "code", "code/model", "mean, model", "code", "±", "off", "messages"];
        let rows = self.rows.iter().filter(|row| all || row.simulated.is_some());
        let cells = rows.map(|row| {
            let values = self.values(row);
            let number = |value: f64| match self.plan.metric {
                Metric::ChunkLoss => text::loss(value),
                _ => format!("{value:.3}"),
            };
            let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
            let ratio = values.and_then(|v| Some(format!("{:.3}", v.simulated? / v.model)));
            let measured = row.simulated;
            vec![
                or_dash(values.map(|v| number(v.model))),
                or_dash(values.and_then(|v| v.simulated).map(number)),
                or_dash(ratio),
                text::time(row.model.mean_s),
                or_dash(measured.map(|m| text::time(m.mean_s))),
                or_dash(
                    measured.map(|m| format!("{:.1} %", m.standard_error_s / m.mean_s * 100.0)),
                ),
                or_dash(
                    measured
                        .map(|m| format!("{:+.1} %", (m.mean_s / row.model.mean_s - 1.0) * 100.0)),
                ),
                or_dash(measured.map(|m| m.messages.to_string())),
            ]
        });
        (head, cells.collect())
    }

    /// The report as text.
    pub(super) fn table(&self) -> String {
        let (head, cells) = self.cells(false);
        let axis = self.plan.x.chart_axis().label;
        let labels: Vec<(String, String)> = self
            .rows
            .iter()
            .filter(|row| row.simulated.is_some())
            .map(|row| (self.series(row), self.x_text(row)))
            .collect();
        let wide = labels.iter().map(|(s, _)| s.chars().count()).max().unwrap_or(0).max(6);
        let mut out = format!("{}\n{:<wide$} {axis:>14}", self.plan.title, "scheme");
        head.iter().for_each(|name| out += &format!(" {name:>16}"));
        out.push('\n');
        for ((series, x), cells) in labels.iter().zip(cells) {
            out += &format!("{series:<wide$} {x:>14}");
            cells.iter().for_each(|cell| out += &format!(" {cell:>16}"));
            out.push('\n');
        }
        let only = self.rows.len() - labels.len();
        if only > 0 {
            out +=
                &format!("{only} more points have the model's value only: see --json or --out\n");
        }
        for broken in self.broken() {
            out += &format!("DOES NOT HOLD: {broken}\n");
        }
        out
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let values = self.values(row);
                let mut value = serde_json::to_value(row).unwrap_or_default();
                value["model_value"] = json!(values.map(|v| v.model));
                value["simulated_value"] = json!(values.and_then(|v| v.simulated));
                value
            })
            .collect();
        let broken = self.broken();
        json!({
            "experiment": self.name,
            "title": self.plan.title,
            "quick": self.quick,
            "rows": rows,
            "broken": broken,
            "ok": broken.is_empty(),
        })
    }
}
