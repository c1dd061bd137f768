//! How completion times change along one axis.

use bowline_chart::{Axis as ChartAxis, LineChart, Mark, Series, Style, Unit};
use bowline_plan::{Axis, Loss, Scheme, Transfer};
use serde_json::{Value, json};

use super::advice::loss_kind;
use super::args::AxisArg;

/// The schemes' times along an axis.
pub(super) struct Sweep {
    axis: AxisArg,
    transfer: Transfer,
    values: Vec<f64>,
    curves: Vec<Curve>,
}

struct Curve {
    scheme: &'static str,
    /// Slowdown over the ideal of the same place; not a number where there is none.
    mean: Vec<f64>,
    p999: Vec<f64>,
    mean_s: Vec<f64>,
    p999_s: Vec<f64>,
}

/// Which time is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Mean,
    Tail,
}

const POINTS: usize = 61;
/// Slowdowns beyond this are off the chart: who is there is told so by the line that leaves it.
const MAX_SLOWDOWN: f64 = 40.0;
/// Light's way there and back: what a chart of distances shows of round trips.
const KILOMETRES_PER_SECOND: f64 = 150_000.0;

/// Where an axis is looked at: the paper's ranges, and around the transfer's own place.
pub(super) fn range(axis: Axis, transfer: &Transfer) -> (f64, f64) {
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

/// Values between two, evenly spread by their logarithms.
pub(super) fn spread((low, high): (f64, f64), points: usize) -> Vec<f64> {
    let last = (points - 1) as f64;
    (0..points).map(|i| low * (high / low).powf(i as f64 / last)).collect()
}

impl Sweep {
    pub(super) fn new(transfer: &Transfer, schemes: &[Scheme], axis: AxisArg) -> Sweep {
        let values = spread(range(axis.axis(), transfer), POINTS);
        let places: Vec<Option<Transfer>> =
            values.iter().map(|value| axis.axis().moved(transfer, *value).ok()).collect();
        let curves = schemes.iter().filter(|s| s.is_reliable()).map(|scheme| {
            let laws = || {
                places.iter().map(|place| {
                    let place = place.as_ref()?;
                    Some((place.completion(scheme).ok()?, place.ideal_s()))
                })
            };
            let each = |time_s: &dyn Fn(&bowline_plan::Completion, f64) -> f64| {
                laws().map(|l| l.map_or(f64::NAN, |(law, ideal_s)| time_s(&law, ideal_s))).collect()
            };
            Curve {
                scheme: scheme.name(),
                mean: each(&|law, ideal_s| law.mean_s() / ideal_s),
                p999: each(&|law, ideal_s| law.quantile_s(0.999) / ideal_s),
                mean_s: each(&|law, _| law.mean_s()),
                p999_s: each(&|law, _| law.quantile_s(0.999)),
            }
        });
        let curves = curves.collect();
        Sweep { axis, transfer: *transfer, values, curves }
    }

    pub(super) fn chart(&self, shown: Shown) -> LineChart {
        let (label, unit) = match self.axis {
            AxisArg::Size => ("message size".to_owned(), Unit::Bytes),
            AxisArg::Loss => (loss_kind(&self.transfer.link().loss).to_owned(), Unit::Probability),
            AxisArg::Distance => ("distance".to_owned(), Unit::Kilometres),
            AxisArg::Bandwidth => ("bandwidth".to_owned(), Unit::BitsPerSecond),
        };
        let place = |value: f64| match self.axis {
            AxisArg::Distance => value * KILOMETRES_PER_SECOND,
            _ => value,
        };
        let what = match shown {
            Shown::Mean => "Mean",
            Shown::Tail => "99.9th percentile",
        };
        let title = format!("{what} completion by {label}");
        let points = |curve: &Curve| {
            let times = if shown == Shown::Mean { &curve.mean } else { &curve.p999 };
            self.values.iter().zip(times).map(|(x, y)| (place(*x), *y)).collect::<Vec<_>>()
        };
        let highest = self
            .curves
            .iter()
            .filter(|curve| curve.scheme != "gbn")
            .flat_map(points)
            .map(|(_, y)| y)
            .filter(|y| y.is_finite())
            .fold(2.0, f64::max);
        let y = ChartAxis::log("times the ideal", Unit::Factor)
            .over(0.97, (highest * 1.15).min(MAX_SLOWDOWN));
        let mut chart = LineChart::new(&title, ChartAxis::log(&label, unit), y);
        for curve in &self.curves {
            chart.series.push(series(curve.scheme, points(curve)));
        }
        let here = self.axis.axis().value(&self.transfer);
        if here > 0.0 {
            chart.marks.push(Mark { x: place(here), label: "here".to_owned() });
        }
        chart
    }

    pub(super) fn json(&self) -> Value {
        let (name, unit) = match self.axis {
            AxisArg::Size => ("size", "bytes"),
            AxisArg::Distance => ("distance", "seconds of round trip"),
            AxisArg::Bandwidth => ("bandwidth", "bits per second"),
            AxisArg::Loss => match self.transfer.link().loss {
                Loss::Chunk(_) => ("loss", "of chunks"),
                _ => ("loss", "of packets"),
            },
        };
        let curves: Vec<Value> = self
            .curves
            .iter()
            .map(|c| json!({"name": c.scheme, "mean_s": c.mean_s, "p999_s": c.p999_s}))
            .collect();
        json!({"axis": name, "unit": unit, "values": self.values, "schemes": curves})
    }
}

/// A scheme's line, in its colour wherever it is drawn.
pub(super) fn series(scheme: &str, points: Vec<(f64, f64)>) -> Series {
    let colour = bowline_chart::scheme_colour(scheme);
    let style = if matches!(scheme, "gbn" | "lowar") { Style::Dashed } else { Style::Line };
    Series::line(scheme, points).coloured(colour).styled(style)
}
