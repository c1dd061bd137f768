//! A ring allreduce over datacenters, by scheme.

use std::fmt::Write;

use bowline_chart::text;
use bowline_plan::{Allreduce, Sampler, Scheme};
use bowline_planner::{Question, Times};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use super::args::named;

/// The results for a ring allreduce. The recurrence has no closed form, so times are sampled; the
/// bound is computed.
#[derive(Serialize)]
pub(super) struct Ring {
    pub(super) datacenters: u32,
    rounds: u32,
    stage_bytes: u64,
    samples: u32,
    pub(super) ideal_s: f64,
    pub(super) schemes: Vec<RingRow>,
}

#[derive(Serialize)]
pub(super) struct RingRow {
    pub(super) name: &'static str,
    /// Equation (5): a lower bound on the mean.
    pub(super) lower_bound_s: f64,
    #[serde(flatten)]
    pub(super) times: Times,
}

/// Number of writes sampled for one scheme, unless the number of allreduces is given.
const DRAWS: u32 = 1_500_000;

impl Ring {
    /// Samples `samples` allreduces, or as many as take little time.
    pub(super) fn new(
        question: &Question,
        datacenters: u32,
        samples: Option<u32>,
        seed: u64,
    ) -> Result<Ring, String> {
        let ring = Allreduce::new(question.link, question.message, datacenters).map_err(named)?;
        let writes = ring.rounds() * datacenters;
        let samples = samples.unwrap_or((DRAWS / writes).clamp(1_000, 20_000));
        let schemes = question.schemes().map_err(named)?;
        let schemes: Vec<Scheme> = schemes.into_iter().filter(Scheme::is_reliable).collect();
        let row = |scheme: &Scheme| -> Result<RingRow, String> {
            let sampler = Sampler::new(ring.stage(), scheme).map_err(named)?;
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut times: Vec<f64> =
                (0..samples).map(|_| ring.run(|| sampler.draw(&mut rng))).collect();
            times.sort_by(f64::total_cmp);
            let lower_bound_s = ring.lower_bound_s(scheme).map_err(named)?;
            Ok(RingRow { name: scheme.name(), lower_bound_s, times: Times::of_draws(&times) })
        };
        Ok(Ring {
            datacenters,
            rounds: ring.rounds(),
            stage_bytes: ring.stage().message().bytes,
            samples,
            ideal_s: ring.ideal_s(),
            schemes: schemes.iter().map(row).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn headline(&self) -> String {
        format!(
            "ring allreduce over {} datacenters: {} rounds of {}, ideal {}; {} drawn",
            self.datacenters,
            self.rounds,
            text::size(self.stage_bytes as f64),
            text::time(self.ideal_s),
            self.samples
        )
    }

    pub(super) const HEAD: [&'static str; 7] =
        ["scheme", "bound", "mean", "p50", "p99", "p99.9", "slowdown"];

    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let row = |row: &RingRow| {
            let Times { mean_s, p50_s, p99_s, p999_s } = row.times;
            let times = [row.lower_bound_s, mean_s, p50_s, p99_s, p999_s].map(text::time);
            let mut cells = vec![row.name.to_owned()];
            cells.extend(times);
            cells.push(text::factor(mean_s / self.ideal_s));
            cells
        };
        self.schemes.iter().map(row).collect()
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!("\n{}\n", self.headline());
        let head = Self::HEAD.map(str::to_owned).to_vec();
        for row in std::iter::once(head).chain(self.cells()) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{:<12}", row[0]);
            for cell in &row[1..] {
                let _ = write!(out, " {cell:>10}");
            }
            out.push('\n');
        }
        out
    }
}
