//! What many samples of one figure come to.

/// The middle and the extremes of samples.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    /// The middle one; the mean of the two in the middle if their number is even.
    pub median: f64,
    /// The smallest.
    pub lowest: f64,
    /// The largest.
    pub highest: f64,
}

impl Spread {
    /// Of these samples; not a number if there are none.
    pub fn of(samples: &[f64]) -> Spread {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&lowest), Some(&highest)) = (sorted.first(), sorted.last()) else {
            return Spread { median: f64::NAN, lowest: f64::NAN, highest: f64::NAN };
        };
        let mid = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[mid] } else { (sorted[mid - 1] + sorted[mid]) / 2.0 };
        Spread { median, lowest, highest }
    }
}

/// The median of samples; not a number if there are none.
pub fn median(samples: &[f64]) -> f64 {
    Spread::of(samples).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, lowest: 1.0, highest: 3.0 });
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
