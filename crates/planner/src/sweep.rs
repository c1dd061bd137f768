//! How completion times change along one axis.

use bowline_chart::{Axis as ChartAxis, LineChart, Mark, Series, Style, Unit};
use bowline_plan::{Axis, Goal, Group, Loss, PlanError, Scheme, Spread, Transfer};
use serde_json::{Value, json};

use crate::advice::loss_kind;
use crate::question::Question;

/// The schemes' times along an axis.
pub struct Sweep {
    axis: Axis,
    transfer: Transfer,
    receivers: u32,
    values: Vec<f64>,
    curves: Vec<Curve>,
}

struct Curve {
    scheme: &'static str,
    /// The distribution and the ideal at each point; none where there is nothing to plan.
    laws: Vec<Option<(Group, f64)>>,
}

/// Which time is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The mean.
    Mean,
    /// The 99.9th percentile.
    Tail,
}

const POINTS: usize = 61;
/// Larger slowdowns are off the chart: their line leaves it.
const MAX_SLOWDOWN: f64 = 40.0;
/// Kilometres per second of round trip: converts round trips for a chart of distances.
const KILOMETRES_PER_SECOND: f64 = 150_000.0;

/// The range of an axis: the paper's, and around the transfer's own value.
pub(crate) fn range(axis: Axis, transfer: &Transfer) -> (f64, f64) {
    let (low, high) = match axis {
        Axis::Loss => (1e-8, 1e-1),
        Axis::Size => ((128_u64 << 10) as f64, (2_u64 << 40) as f64),
        Axis::Distance => (50.0 / KILOMETRES_PER_SECOND, 20_000.0 / KILOMETRES_PER_SECOND),
        Axis::Bandwidth => (10e9, 3200e9),
    };
    let here = axis.value(transfer);
    if here <= 0.0 {
        return (low, high);
    }
    let top = if axis == Axis::Loss { 0.5 } else { f64::INFINITY };
    (low.min(here / 10.0), high.max(here * 10.0).min(top))
}

/// Values between two, evenly spaced by their logarithms.
pub(crate) fn spread((low, high): (f64, f64), points: usize) -> Vec<f64> {
    let last = (points - 1) as f64;
    (0..points).map(|i| low * libm::pow(high / low, i as f64 / last)).collect()
}

impl Shown {
    fn goal(self) -> Goal {
        match self {
            Shown::Mean => Goal::Mean,
            Shown::Tail => Goal::Quantile(0.999),
        }
    }
}

impl Sweep {
    /// Along an axis, for all of the question's receivers.
    ///
    /// # Errors
    /// What cannot be planned.
    pub fn new(question: &Question, axis: Axis) -> Result<Sweep, PlanError> {
        let transfer = question.transfer()?;
        let values = spread(range(axis, &transfer), POINTS);
        let places: Vec<Option<Transfer>> =
            values.iter().map(|value| axis.moved(&transfer, *value).ok()).collect();
        let curve = |scheme: &Scheme| {
            let law = |place: &Option<Transfer>| {
                let place = place.as_ref()?;
                let law = Group::new(place, scheme, question.receivers, Spread::Group).ok()?;
                Some((law, place.ideal_s()))
            };
            Curve { scheme: scheme.name(), laws: places.iter().map(law).collect() }
        };
        let curves =
            question.schemes()?.iter().filter(|scheme| scheme.is_reliable()).map(curve).collect();
        Ok(Sweep { axis, transfer, receivers: question.receivers, values, curves })
    }

    /// Times relative to the ideal at the same point.
    pub fn chart(&self, shown: Shown) -> LineChart {
        let (label, unit) = match self.axis {
            Axis::Size => ("message size".to_owned(), Unit::Bytes),
            Axis::Loss => (loss_kind(&self.transfer.link().loss).to_owned(), Unit::Probability),
            Axis::Distance => ("distance".to_owned(), Unit::Kilometres),
            Axis::Bandwidth => ("bandwidth".to_owned(), Unit::BitsPerSecond),
        };
        let place = |value: f64| match self.axis {
            Axis::Distance => value * KILOMETRES_PER_SECOND,
            _ => value,
        };
        let what = match shown {
            Shown::Mean => "Mean",
            Shown::Tail => "99.9th percentile",
        };
        let to = match self.receivers {
            1 => String::new(),
            many => format!(", {many} receivers"),
        };
        let title = format!("{what} completion by {label}{to}");
        let points = |curve: &Curve| -> Vec<(f64, f64)> {
            let slowdown = |law: &Option<(Group, f64)>| {
                law.as_ref().map_or(f64::NAN, |(law, ideal_s)| law.sketch_s(shown.goal()) / ideal_s)
            };
            self.values.iter().zip(&curve.laws).map(|(x, l)| (place(*x), slowdown(l))).collect()
        };
        let lines: Vec<(&'static str, Vec<(f64, f64)>)> =
            self.curves.iter().map(|curve| (curve.scheme, points(curve))).collect();
        let highest = lines
            .iter()
            .filter(|(scheme, _)| *scheme != "gbn")
            .flat_map(|(_, points)| points)
            .map(|(_, y)| *y)
            .filter(|y| y.is_finite())
            .fold(2.0, f64::max);
        let y = ChartAxis::log("times the ideal", Unit::Factor)
            .over(0.97, (highest * 1.15).min(MAX_SLOWDOWN));
        let mut chart = LineChart::new(&title, ChartAxis::log(&label, unit), y);
        chart.series =
            lines.into_iter().map(|(name, points)| scheme_series(name, points)).collect();
        let here = self.axis.value(&self.transfer);
        if here > 0.0 {
            chart.marks.push(Mark { x: place(here), label: "here".to_owned() });
        }
        chart
    }

    /// The JSON form.
    pub fn json(&self) -> Value {
        let (name, unit) = match self.axis {
            Axis::Size => ("size", "bytes"),
            Axis::Distance => ("distance", "seconds of round trip"),
            Axis::Bandwidth => ("bandwidth", "bits per second"),
            Axis::Loss => match self.transfer.link().loss {
                Loss::Chunk(_) => ("loss", "of chunks"),
                _ => ("loss", "of packets"),
            },
        };
        let times = |curve: &Curve, shown: Shown| -> Vec<Option<f64>> {
            curve
                .laws
                .iter()
                .map(|law| law.as_ref().map(|(law, _)| shown.goal().of_group(law)))
                .collect()
        };
        let curves: Vec<Value> = self
            .curves
            .iter()
            .map(|c| {
                let (mean_s, p999_s) = (times(c, Shown::Mean), times(c, Shown::Tail));
                json!({"name": c.scheme, "mean_s": mean_s, "p999_s": p999_s})
            })
            .collect();
        json!({"axis": name, "unit": unit, "values": self.values, "schemes": curves})
    }
}

/// A scheme's line, in the same colour in every chart.
pub fn scheme_series(scheme: &str, points: Vec<(f64, f64)>) -> Series {
    let colour = bowline_chart::scheme_colour(scheme);
    let style = if matches!(scheme, "gbn" | "lowar") { Style::Dashed } else { Style::Line };
    Series::line(scheme, points).coloured(colour).styled(style)
}
