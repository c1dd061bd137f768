//! Axes: the positions of values, and their tick labels.

use crate::text;

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// How values are spread.
    pub scale: Scale,
    /// What values are.
    pub unit: Unit,
    /// Its range; by default that of the data.
    pub range: Option<(f64, f64)>,
}

/// How an axis spreads values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By their logarithms.
    Log,
}

/// What the values of an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bare numbers.
    Number,
    /// `64 KiB`.
    Bytes,
    /// `25 ms`.
    Seconds,
    /// `400 Gbit/s`.
    BitsPerSecond,
    /// `1e-5`.
    Probability,
    /// `1.5x`.
    Factor,
    /// `3750 km`.
    Kilometres,
}

impl Unit {
    /// A value as text.
    pub fn text(&self, value: f64) -> String {
        match self {
            Unit::Number => text::digits(value),
            Unit::Bytes => text::size(value),
            Unit::Seconds => text::time(value),
            Unit::BitsPerSecond => text::rate(value),
            Unit::Probability => text::loss(value),
            Unit::Factor => text::factor(value),
            Unit::Kilometres => text::distance(value),
        }
    }
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: &str, unit: Unit) -> Axis {
        Axis { label: label.to_owned(), scale: Scale::Linear, unit, range: None }
    }

    /// A logarithmic axis.
    pub fn log(label: &str, unit: Unit) -> Axis {
        Axis { label: label.to_owned(), scale: Scale::Log, unit, range: None }
    }

    /// The same axis over a fixed range.
    pub fn over(self, low: f64, high: f64) -> Axis {
        Axis { range: Some((low, high)), ..self }
    }

    /// The range for this data. Values without a logarithm are ignored on a logarithmic axis.
    pub(crate) fn span(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        if let Some(range) = self.range {
            return range;
        }
        let fits = |v: &f64| v.is_finite() && (self.scale == Scale::Linear || *v > 0.0);
        let (low, high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        match self.scale {
            _ if low > high => (1.0, 2.0),
            Scale::Linear => {
                let room = 0.05 * (high - low).max(1e-9 * high.abs()).max(1e-12);
                (low - room, high + room)
            }
            Scale::Log if high / low < 1.02 => (low / 1.5, high * 1.5),
            Scale::Log => (low, high),
        }
    }

    /// Position of a value between 0 and 1 within a span; `None` if it has none.
    pub(crate) fn place(&self, value: f64, (low, high): (f64, f64)) -> Option<f64> {
        let place = match self.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        };
        place.is_finite().then_some(place)
    }

    /// Values of the tick labels, about `most` of them.
    pub(crate) fn ticks(&self, (low, high): (f64, f64), most: usize) -> Vec<f64> {
        let inside = |v: &f64| *v >= low * (1.0 - 1e-9) - 1e-300 && *v <= high * (1.0 + 1e-9);
        match self.scale {
            Scale::Linear => {
                let step = nice_step((high - low) / most.max(1) as f64);
                let first = (low / step - 1e-9).ceil() as i64;
                let last = (high / step + 1e-9).floor() as i64;
                (first..=last).map(|i| i as f64 * step).collect()
            }
            Scale::Log if self.unit == Unit::Bytes => powers(2.0, low, high, most, inside),
            Scale::Log => {
                let decades = powers(10.0, low, high, most, inside);
                if decades.len() >= 3 {
                    return decades;
                }
                // Fewer decades: round numbers between them, as many as fit.
                const DIGITS: [&[f64]; 3] = [
                    &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0],
                    &[1.0, 1.5, 2.0, 3.0, 5.0],
                    &[1.0, 2.0, 5.0],
                ];
                let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
                let between = |digits: &[f64]| -> Vec<f64> {
                    let each = |e: i32| digits.iter().map(move |digit| digit * 10_f64.powi(e));
                    (first..=last).flat_map(each).filter(inside).collect()
                };
                let sets = DIGITS.map(between);
                let fits = sets.iter().position(|ticks| ticks.len() <= most.max(3));
                sets[fits.unwrap_or(DIGITS.len() - 1)].clone()
            }
        }
    }
}

/// Powers of a base, every first, second, third … so that there are at most `most`.
fn powers(base: f64, low: f64, high: f64, most: usize, inside: impl Fn(&f64) -> bool) -> Vec<f64> {
    let exponent = |v: f64| v.ln() / base.ln();
    let (first, last) = (exponent(low).floor() as i32, exponent(high).ceil() as i32);
    let every = ((last - first) as usize).div_ceil(most.max(1)).max(1) as i32;
    (first..=last).filter(|e| e % every == 0).map(|e| base.powi(e)).filter(inside).collect()
}

/// 1, 2 or 5 times a power of ten, at least `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-300).log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|d| d * power >= step * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_inside() {
        let linear = Axis::linear("", Unit::Number);
        assert_eq!(linear.ticks((0.0, 10.0), 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let log = Axis::log("", Unit::Probability);
        let ticks = log.ticks((1e-8, 1e-1), 8);
        assert_eq!(ticks.len(), 8);
        assert!((ticks[0] / 1e-8 - 1.0).abs() < 1e-9);
        assert_eq!(log.ticks((1.0, 6.0), 5), [1.0, 1.5, 2.0, 3.0, 5.0]);
        assert_eq!(log.ticks((1.0, 60.0), 6), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        let bytes = Axis::log("", Unit::Bytes).ticks((131_072.0, 2_f64.powi(41)), 8);
        assert!(bytes.len() >= 6 && bytes.iter().all(|b| b.log2().fract() == 0.0), "{bytes:?}");
    }

    #[test]
    fn places_run_from_0_to_1() {
        let log = Axis::log("", Unit::Number);
        let span = log.span([1.0, 100.0, 0.0, f64::NAN].into_iter());
        assert_eq!(span, (1.0, 100.0));
        assert!((log.place(10.0, span).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(log.place(0.0, span), None);
        assert_eq!(log.span(std::iter::empty()), (1.0, 2.0));
    }
}
