//! Which reliability scheme for a link.

use bowline_plan::{Goal, Link, Loss, Message, PlanError, Scheme, Transfer, choose};
use pyo3::prelude::*;

use crate::error::Trouble;

/// Name, mean, median, 99th and 99.9th percentile in seconds, share of bandwidth on top.
type Row = (&'static str, f64, f64, f64, f64, f64);

/// The reliable schemes for a message, the index of the one to take, and the time without loss in
/// seconds.
#[pyfunction]
#[pyo3(signature = (bandwidth_bps, rtt_s, loss, size_bytes, chunk_bytes, quantile))]
pub(crate) fn plan(
    bandwidth_bps: f64,
    rtt_s: f64,
    loss: f64,
    size_bytes: u64,
    chunk_bytes: u64,
    quantile: Option<f64>,
) -> PyResult<(Vec<Row>, usize, f64)> {
    let planned = || -> Result<_, PlanError> {
        let link = Link { bandwidth_bps, rtt_s, loss: Loss::Packet(loss) };
        let transfer = Transfer::new(link, Message::new(size_bytes).with_chunk(chunk_bytes))?;
        let schemes: Vec<Scheme> = Scheme::all().into_iter().filter(Scheme::is_reliable).collect();
        let rows = schemes.iter().map(|scheme| {
            let law = transfer.completion(scheme)?;
            let at = |q| law.quantile_s(q);
            let times = (law.mean_s(), at(0.5), at(0.99), at(0.999));
            Ok((scheme.name(), times.0, times.1, times.2, times.3, law.bandwidth_overhead()))
        });
        let rows = rows.collect::<Result<Vec<Row>, PlanError>>()?;
        let goal = quantile.map_or(Goal::Mean, Goal::Quantile);
        Ok((rows, choose(&transfer, &schemes, goal)?, transfer.ideal_s()))
    };
    Ok(planned().map_err(|error| Trouble::invalid(error.to_string()))?)
}
