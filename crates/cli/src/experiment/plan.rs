//! Plan files: what an experiment varies, what it measures, and how precisely.

use bowline_plan::rtt_of_distance_s;
use serde::Deserialize;

use super::point::Point;

/// An experiment, as in its TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Plan {
    /// What the experiment shows, in one line.
    pub(super) title: String,
    /// What the experiment does, and what to look for.
    pub(super) about: String,
    /// The x axis.
    pub(super) x: Axis,
    /// The y axis.
    #[serde(default)]
    pub(super) metric: Metric,
    /// The statistic of the completion time that the metric uses.
    #[serde(default)]
    pub(super) statistic: Statistic,
    /// The parameters of the schemes in the model.
    #[serde(default)]
    pub(super) parameters: Parameters,
    /// With `--check`: the maximum relative difference between simulated and modelled means.
    pub(super) tolerance: Option<f64>,
    /// How precisely to measure.
    #[serde(default = "Effort::full")]
    pub(super) effort: Effort,
    /// How precisely to measure with `--quick`.
    #[serde(default = "Effort::quick")]
    pub(super) quick: Effort,
    /// The points to measure.
    pub(super) sweep: Vec<Sweep>,
}

/// What a sweep varies.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Axis {
    Size,
    Loss,
    Distance,
    Bandwidth,
    Datacenters,
    PacketsPerChunk,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Metric {
    /// Completion time relative to the completion time without loss.
    #[default]
    Slowdown,
    /// Completion time of a sweep's first scheme relative to that of its second.
    Speedup,
    /// Share of chunks that are lost.
    ChunkLoss,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) enum Statistic {
    #[default]
    #[serde(rename = "mean")]
    Mean,
    #[serde(rename = "p99.9")]
    P999,
}

/// The parameters of schemes in the model.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Parameters {
    /// The planner's, which are the paper's.
    #[default]
    Paper,
    /// The parameters that the code itself reports.
    Code,
}

/// How precisely to measure: messages are sent until the mean is known precisely enough.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Effort {
    /// The target standard error, relative to the mean.
    pub(super) standard_error: f64,
    /// Minimum and maximum number of messages.
    pub(super) least: u32,
    pub(super) most: u32,
    /// Longer messages, in chunks, are only modelled.
    pub(super) max_chunks: u64,
    /// Number of x values at which the code runs, spread over those of the plan.
    pub(super) places: usize,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort::full()
    }
}

impl Effort {
    fn full() -> Effort {
        Effort { standard_error: 0.01, least: 50, most: 2000, max_chunks: 4096, places: usize::MAX }
    }

    fn quick() -> Effort {
        Effort { standard_error: 0.05, least: 10, most: 40, max_chunks: 600, places: 3 }
    }
}

/// Points on a grid: every combination of the listed values.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct Sweep {
    /// Names of schemes. Coding schemes take `k,m` after a colon, unless it is 32,8.
    schemes: Vec<String>,
    size_mib: Many,
    distance_km: Many,
    bandwidth_gbps: Many,
    chunk_loss: Many,
    /// An alternative to the chunk loss.
    packet_loss: Many,
    datacenters: Many,
    packets_per_chunk: Many,
    /// The x values at which the code runs too; by default all.
    simulate: Option<Many>,
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep {
            schemes: Vec::new(),
            size_mib: Many::One(128.0),
            distance_km: Many::One(3750.0),
            bandwidth_gbps: Many::One(400.0),
            chunk_loss: Many::One(1e-5),
            packet_loss: Many::None,
            datacenters: Many::None,
            packets_per_chunk: Many::One(1.0),
            simulate: None,
        }
    }
}

/// One number or several.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
enum Many {
    One(f64),
    Several(Vec<f64>),
    #[default]
    None,
}

impl Many {
    fn values(&self) -> Vec<f64> {
        match self {
            Many::One(value) => vec![*value],
            Many::Several(values) => values.clone(),
            Many::None => Vec::new(),
        }
    }

    /// The listed values, or a single `None` if there are none.
    fn options(&self) -> Vec<Option<f64>> {
        let values = self.values();
        if values.is_empty() { vec![None] } else { values.into_iter().map(Some).collect() }
    }
}

/// A point, and whether the code runs there.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) point: Point,
    pub(super) simulate: bool,
}

/// Bytes of a chunk: the paper's.
pub(super) const CHUNK_BYTES: u64 = 64 << 10;

impl Plan {
    /// Checks the properties of a plan that parsing does not check.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.sweep.iter().any(|sweep| sweep.schemes.is_empty()) {
            return Err("a sweep has no schemes: write schemes = [\"sr-nack\"]".to_owned());
        }
        Ok(())
    }

    pub(super) fn effort(&self, quick: bool) -> Effort {
        if quick { self.quick } else { self.effort }
    }

    /// All points of all sweeps.
    pub(super) fn points(&self, quick: bool) -> Result<Vec<Planned>, String> {
        let effort = self.effort(quick);
        let mut planned = Vec::new();
        for sweep in &self.sweep {
            planned.extend(sweep.points(self.x, effort)?);
        }
        Ok(planned)
    }
}

impl Sweep {
    fn points(&self, x: Axis, effort: Effort) -> Result<Vec<Planned>, String> {
        let mut points = Vec::new();
        for scheme in &self.schemes {
            for size in self.size_mib.values() {
                for distance in self.distance_km.values() {
                    for gbps in self.bandwidth_gbps.values() {
                        for datacenters in self.datacenters.options() {
                            for packets in self.packets_per_chunk.values() {
                                for loss in self.losses(packets) {
                                    points.push(Point {
                                        bytes: (size * 1048576.0).round().max(1.0) as u64,
                                        rtt_s: rtt_of_distance_s(distance),
                                        bandwidth_bps: gbps * 1e9,
                                        chunk_loss: loss,
                                        datacenters: datacenters.map(|n| n as u32),
                                        packets_per_chunk: packets as u32,
                                        ..Point::of(scheme)?
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
        let places = self.places(x, effort, &points);
        let simulate = |point: &Point| {
            let at = x.value(point);
            point.stage_chunks() <= effort.max_chunks
                && places.iter().any(|place| (place / at - 1.0).abs() < 1e-6)
        };
        Ok(points.into_iter().map(|point| Planned { simulate: simulate(&point), point }).collect())
    }

    /// Chunk losses, for chunks of this many packets.
    fn losses(&self, packets: f64) -> Vec<f64> {
        let of_chunk = |p: f64| bowline_plan::Loss::Packet(p).of_chunk(packets as u64);
        match self.packet_loss.values() {
            none if none.is_empty() => self.chunk_loss.values(),
            some => some.into_iter().map(of_chunk).collect(),
        }
    }

    /// The x values at which the code runs.
    fn places(&self, x: Axis, effort: Effort, points: &[Point]) -> Vec<f64> {
        let listed = self.simulate.as_ref().map(|many| {
            many.values().into_iter().map(|value| x.scaled(value)).collect::<Vec<f64>>()
        });
        let small = points.iter().filter(|point| point.stage_chunks() <= effort.max_chunks);
        let mut places = listed.unwrap_or_else(|| small.map(|point| x.value(point)).collect());
        places.sort_by(f64::total_cmp);
        places.dedup();
        if places.len() <= effort.places {
            return places;
        }
        let last = (places.len() - 1) as f64;
        let step = last / (effort.places.max(2) - 1) as f64;
        (0..effort.places).map(|i| places[(i as f64 * step).round() as usize]).collect()
    }
}

impl Axis {
    /// A point's value on this axis.
    pub(super) fn value(self, point: &Point) -> f64 {
        match self {
            Axis::Size => point.bytes as f64,
            Axis::Loss => point.chunk_loss,
            Axis::Distance => point.distance_km(),
            Axis::Bandwidth => point.bandwidth_bps,
            Axis::Datacenters => point.datacenters.unwrap_or(2).into(),
            Axis::PacketsPerChunk => point.packets_per_chunk.into(),
        }
    }

    /// Converts a plan file's value to the units of [`Axis::value`].
    fn scaled(self, value: f64) -> f64 {
        match self {
            Axis::Size => value * 1048576.0,
            Axis::Bandwidth => value * 1e9,
            _ => value,
        }
    }

    /// A value as text.
    pub(super) fn text(self, value: f64) -> String {
        self.chart_axis().unit.text(value)
    }

    pub(super) fn chart_axis(self) -> bowline_chart::Axis {
        use bowline_chart::{Axis as Drawn, Unit};
        match self {
            Axis::Size => Drawn::log("message size", Unit::Bytes),
            Axis::Loss => Drawn::log("chunk loss", Unit::Probability),
            Axis::Distance => Drawn::linear("distance", Unit::Kilometres),
            Axis::Bandwidth => Drawn::log("bandwidth", Unit::BitsPerSecond),
            Axis::Datacenters => Drawn::linear("datacenters", Unit::Number),
            Axis::PacketsPerChunk => Drawn::log("packets of a chunk", Unit::Number),
        }
    }

    pub(super) const ALL: [Axis; 6] = [
        Axis::Size,
        Axis::Loss,
        Axis::Distance,
        Axis::Bandwidth,
        Axis::Datacenters,
        Axis::PacketsPerChunk,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_every_combination_and_the_code_runs_at_some() {
        let text = "title = 't'\nabout = 'a'\nx = 'loss'\n[[sweep]]\nschemes = ['sr-nack', 'ec-mds:16,4']\n\
                    size-mib = [8, 4096]\nchunk-loss = [1e-4, 1e-3, 1e-2, 1e-1]\nsimulate = [1e-3, 1e-2]";
        let plan: Plan = toml::from_str(text).unwrap();
        let points = plan.points(false).unwrap();
        assert_eq!(points.len(), 16);
        assert_eq!(points.iter().filter(|p| p.simulate).count(), 4);
        assert_eq!(points.last().map(|p| (p.point.k, p.point.m)), Some((16, 4)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let plan = |rest: &str| -> Result<Plan, String> {
            let text = format!("title = 't'\nabout = 'a'\n{rest}");
            let plan: Plan = toml::from_str(&text).map_err(|e| e.to_string())?;
            plan.check().map(|()| plan)
        };
        assert!(plan("x = 'colour'\nsweep = []").unwrap_err().contains("colour"));
        assert!(plan("x = 'loss'\n[[sweep]]\nsize = 3").unwrap_err().contains("size"));
        assert!(plan("x = 'loss'\n[[sweep]]\n").unwrap_err().contains("schemes"));
        let unknown = plan("x = 'loss'\n[[sweep]]\nschemes = ['tcp']").unwrap();
        assert!(unknown.points(false).unwrap_err().contains("tcp"));
    }
}
