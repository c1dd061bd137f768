//! What the paper says, and what the model says to it. Losses are of chunks, as in its model.

use bowline_plan::{
    Allreduce, Completion, Link, Loss, Message, PlanError, Sampler, Scheme, Transfer,
    rtt_of_distance_s,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

/// One statement.
#[derive(Serialize)]
pub(crate) struct Statement {
    pub(crate) paper: &'static str,
    pub(crate) model: String,
    pub(crate) holds: bool,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The paper's link of section 5.2.
fn transfer(bytes: u64, loss: f64) -> Result<Transfer, PlanError> {
    let rtt_s = rtt_of_distance_s(3750.0);
    Transfer::new(
        Link { bandwidth_bps: 400e9, rtt_s, loss: Loss::Chunk(loss) },
        Message::new(bytes),
    )
}

fn law(bytes: u64, loss: f64, scheme: Scheme) -> Result<Completion, PlanError> {
    transfer(bytes, loss)?.completion(&scheme)
}

/// Figure 9's quantity: mean of SR RTO over mean of MDS EC(32,8).
fn speedup(bytes: u64, loss: f64) -> Result<f64, PlanError> {
    let repeat = law(bytes, loss, Scheme::sr_rto())?.mean_s();
    Ok(repeat / law(bytes, loss, Scheme::ec_mds(32, 8))?.mean_s())
}

fn slowdown(bytes: u64, loss: f64, scheme: Scheme, q: Option<f64>) -> Result<f64, PlanError> {
    let law = law(bytes, loss, scheme)?;
    let time_s = q.map_or_else(|| law.mean_s(), |q| law.quantile_s(q));
    Ok(time_s / transfer(bytes, loss)?.ideal_s())
}

/// Where a condition begins to hold on a logarithmic axis, by bisection.
fn threshold(
    mut low: f64,
    mut high: f64,
    holds: impl Fn(f64) -> Result<bool, PlanError>,
) -> Result<f64, PlanError> {
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if holds(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

/// All of them.
pub(crate) fn statements(seed: u64) -> Result<Vec<Statement>, PlanError> {
    let mut all = region()?;
    all.extend(repeat_leads()?);
    all.extend(fallbacks()?);
    all.extend(slowdowns()?);
    all.extend(allreduce(seed)?);
    Ok(all)
}

/// Section 5.2.1, figure 9.
fn region() -> Result<Vec<Statement>, PlanError> {
    let from = threshold(1e-8, 1e-3, |p| Ok(speedup(128 * MIB, p)? > 1.0))?;
    let until = threshold(1e-2, 0.9, |p| Ok(speedup(128 * MIB, p)? < 1.0))?;
    let largest =
        threshold(GIB as f64, (2 * GIB * KIB) as f64, |b| Ok(speedup(b as u64, 1e-5)? < 1.0))?;
    let smallest = speedup(128 * KIB, 1e-3)?;
    Ok(vec![
        Statement {
            paper: "EC leads from a drop rate of 1e-6 (128 MiB)",
            model: format!("from {from:.1e}"),
            holds: (1e-6..=1e-5).contains(&from),
        },
        Statement {
            paper: "EC leads up to a drop rate of 1e-2, and is robust beyond it (128 MiB)",
            model: format!("up to {until:.1e}"),
            holds: (1e-2..=0.3).contains(&until),
        },
        Statement {
            paper: "EC leads from 128 KiB (at 1e-3)",
            model: format!("{smallest:.3}x at 128 KiB"),
            holds: smallest > 1.0,
        },
        Statement {
            paper: "EC leads up to 1 GiB, SR from 8 GiB (at 1e-5)",
            model: format!("up to {:.1} GiB", largest / GIB as f64),
            holds: largest > GIB as f64 && largest < (8 * GIB) as f64,
        },
    ])
}

/// Section 5.2.2.
fn repeat_leads() -> Result<Vec<Statement>, PlanError> {
    let mut below: f64 = 0.0;
    for shift in 17..=41 {
        below = below.max(speedup(1 << shift, 9e-7)?).max(speedup(1 << shift, 1e-8)?);
    }
    let mut large: f64 = 0.0;
    for shift in 33..=41 {
        large = large.max(speedup(1 << shift, 1e-5)?);
    }
    Ok(vec![
        Statement {
            paper: "SR performs best below 1e-6",
            model: format!("EC at most {below:.4}x, 128 KiB to 2 TiB"),
            holds: below < 1.0,
        },
        Statement {
            paper: "SR performs best from 8 GiB at 1e-5",
            model: format!("EC at most {large:.3}x, 8 GiB to 2 TiB"),
            holds: large < 1.0,
        },
    ])
}

/// Section 5.2.1, figure 11.
fn fallbacks() -> Result<Vec<Statement>, PlanError> {
    let falls = |scheme: Scheme| {
        threshold(1e-6, 0.5, |p| Ok(law(128 * MIB, p, scheme)?.repair_probability() > 0.01))
    };
    let (xor, mds) = (falls(Scheme::ec_xor(32, 8))?, falls(Scheme::ec_mds(32, 8))?);
    let mds_at = law(128 * MIB, 1e-2, Scheme::ec_mds(32, 8))?.repair_probability();
    Ok(vec![
        Statement {
            paper: "XOR falls back to SR at about 1e-3 (128 MiB)",
            model: format!("1 % of messages at {xor:.1e}"),
            holds: (3e-4..=3e-3).contains(&xor),
        },
        Statement {
            paper: "MDS remains robust beyond 1e-2 (128 MiB)",
            model: format!("{mds_at:.0e} of messages at 1e-2, 1 % at {mds:.1e}"),
            holds: mds > 1e-2 && mds_at < 1e-3,
        },
    ])
}

/// Sections 2.1 and 5.2.1, figures 3 and 10.
fn slowdowns() -> Result<Vec<Statement>, PlanError> {
    let (rto, nack) = (Scheme::sr_rto(), Scheme::sr_nack());
    let at = |p: f64, scheme: Scheme, q: Option<f64>| slowdown(128 * MIB, p, scheme, q);
    let p = threshold(1e-4, 0.5, |p| Ok(at(p, rto, None)? > 6.5))?;
    let tail = at(p, rto, Some(0.999))?;
    let gains = (at(p, rto, None)? / at(p, nack, None)?, tail / at(p, nack, Some(0.999))?);
    let (low, high) = (at(1e-3, rto, None)?, at(1e-1, rto, None)?);
    Ok(vec![
        Statement {
            paper: "SR RTO up to 6.5x on average and 12.2x at p99.9 (128 MiB)",
            model: format!("where the mean is 6.5x, at {p:.1e}, p99.9 is {tail:.1}x"),
            holds: (11.0..13.5).contains(&tail),
        },
        Statement {
            paper: "NACK improves SR by up to 4x, average and tail",
            model: format!("there {:.1}x and {:.1}x", gains.0, gains.1),
            holds: (2.0..4.5).contains(&gains.0) && (2.0..4.5).contains(&gains.1),
        },
        Statement {
            paper: "128 MiB at high drop rates: 3x to 10x (figure 3c)",
            model: format!("{low:.1}x at 1e-3, {high:.1}x at 1e-1"),
            holds: (2.5..3.5).contains(&low) && (8.5..10.5).contains(&high),
        },
    ])
}

/// Section 5.3, figure 13.
fn allreduce(seed: u64) -> Result<Vec<Statement>, PlanError> {
    const DRAWS: usize = 20_000;
    let rtt_s = rtt_of_distance_s(3750.0);
    let mut range = (f64::INFINITY, 0.0_f64);
    let mut cells = Vec::new();
    for n in [4, 8] {
        for loss in [1e-4, 1e-3, 1e-2] {
            let link = Link { bandwidth_bps: 400e9, rtt_s, loss: Loss::Chunk(loss) };
            let ring = Allreduce::new(link, Message::new(128 * MIB), n)?;
            let tail = |scheme: &Scheme| -> Result<f64, PlanError> {
                let sampler = Sampler::new(ring.stage(), scheme)?;
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let mut times: Vec<f64> =
                    (0..DRAWS).map(|_| ring.run(|| sampler.draw(&mut rng))).collect();
                times.sort_by(f64::total_cmp);
                Ok(times[DRAWS * 999 / 1000])
            };
            let ratio = tail(&Scheme::sr_rto())? / tail(&Scheme::ec_mds(32, 8))?;
            range = (range.0.min(ratio), range.1.max(ratio));
            cells.push(format!("N={n} {loss:.0e} {ratio:.1}x"));
        }
    }
    Ok(vec![Statement {
        paper: "allreduce over 4 to 8 datacenters, p99.9: EC 3x to more than 6x faster than SR",
        model: cells.join(", "),
        holds: (2.0..4.0).contains(&range.0) && range.1 > 5.0,
    }])
}
