//! How large flows are.

use std::str::FromStr;

use crate::rng::SimRng;

/// A distribution of flow sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizes {
    /// All flows have so many bytes.
    Fixed(u64),
    /// Every size from `min` to `max` is equally likely.
    Uniform {
        /// The smallest.
        min: u64,
        /// The largest.
        max: u64,
    },
    /// As a table says.
    Cdf(SizeCdf),
}

impl Sizes {
    /// Draws a size; at least one byte.
    pub fn draw(&self, rng: &mut SimRng) -> u64 {
        let bytes = match self {
            Sizes::Fixed(bytes) => *bytes,
            Sizes::Uniform { min, max } => rng.range(*min.min(max), *max.max(min)),
            Sizes::Cdf(cdf) => cdf.quantile(rng.unit()),
        };
        bytes.max(1)
    }

    /// The mean size.
    pub fn mean(&self) -> f64 {
        match self {
            Sizes::Fixed(bytes) => *bytes as f64,
            Sizes::Uniform { min, max } => (*min as f64 + *max as f64) / 2.0,
            Sizes::Cdf(cdf) => cdf.mean(),
        }
    }
}

/// A table of sizes and the fraction of flows that are no larger. In between it is linear.
///
/// As text: a line for each size with its bytes and the fraction, from 0 to 1, such as
/// `10000 0.15`. Empty lines and those that start with `#` are ignored.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCdf {
    /// Both increase, and the last fraction is 1.
    points: Vec<(f64, f64)>,
}

/// Why a text is not a table of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseCdfError {
    /// The line that is wrong, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl std::fmt::Display for ParseCdfError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "invalid table of flow sizes, line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for ParseCdfError {}

impl FromStr for SizeCdf {
    type Err = ParseCdfError;

    fn from_str(text: &str) -> Result<SizeCdf, ParseCdfError> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last_line = 1;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            last_line = index + 1;
            let error = |why: String| ParseCdfError { line: index + 1, why };
            let mut words = line.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(bytes)), Some(Ok(part)), None) =
                (words.next(), words.next(), words.next())
            else {
                return Err(error(format!("invalid point `{line}`: write e.g. 10000 0.15")));
            };
            if !(0.0..=1e15).contains(&bytes) || !(0.0..=1.0).contains(&part) {
                return Err(error(format!("`{line}` is out of range: bytes, and a part up to 1")));
            }
            if points.last().is_some_and(|(b, p)| bytes < *b || part < *p) {
                return Err(error(format!("`{line}` is below the line before it")));
            }
            points.push((bytes, part));
        }
        match points.last() {
            Some((_, part)) if *part == 1.0 => Ok(SizeCdf { points }),
            _ => {
                let why = "the last line must have all flows, e.g. 1000000 1".to_owned();
                Err(ParseCdfError { line: last_line, why })
            }
        }
    }
}

impl SizeCdf {
    /// The size that this fraction of the flows does not exceed.
    fn quantile(&self, part: f64) -> u64 {
        let above = self.points.partition_point(|(_, p)| *p < part).min(self.points.len() - 1);
        let (bytes, p) = self.points[above];
        let Some((low_bytes, low_p)) = above.checked_sub(1).map(|below| self.points[below]) else {
            return bytes as u64;
        };
        let share = if p > low_p { (part - low_p) / (p - low_p) } else { 1.0 };
        (low_bytes + (bytes - low_bytes) * share).round() as u64
    }

    fn mean(&self) -> f64 {
        let (first_bytes, first_part) = self.points[0];
        let between = self.points.windows(2).map(|pair| {
            let ((low, low_p), (high, high_p)) = (pair[0], pair[1]);
            (low + high) / 2.0 * (high_p - low_p)
        });
        first_bytes * first_part + between.sum::<f64>()
    }
}
