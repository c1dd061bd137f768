//! Recomputes the result of an operation from its inputs and the reported losses.

use std::ops::Range;

use bowline_codes::reduce::{DataType, ReduceOp};

use crate::Rank;
use crate::bounds::Report;
use crate::encoding::Encoding;
use crate::fold::{Contribution, fold, fold_partial};
use crate::hosts::Hosts;

/// Recomputes, bit for bit, the result of an allreduce by `direct` with equal replicas, from the
/// inputs of all ranks in order and the reports of all ranks. `None` if a report does not list all
/// missing ranges.
///
/// # Panics
/// If there is no input, or inputs differ in length.
pub fn replay_allreduce(
    op: ReduceOp,
    dtype: DataType,
    inputs: &[&[u8]],
    reports: &[Report],
) -> Option<Vec<u8>> {
    if reports.iter().any(|report| report.is_cut) {
        return None;
    }
    if let Some((encoding, seed)) = reports.first().and_then(|report| report.encoded) {
        return replay_encoded(op, encoding, seed, inputs, reports);
    }
    Some(fold_again(op, dtype, inputs, reports))
}

/// Recomputes, bit for bit, the result of an allreduce by `two-level`, from the inputs of all ranks
/// in order and the reports of all ranks. `None` if hosts do not have equally many ranks, or a
/// report does not list all missing ranges.
///
/// # Panics
/// If the number of inputs is not the number of ranks, or inputs differ in length.
pub fn replay_two_level(
    op: ReduceOp,
    dtype: DataType,
    inputs: &[&[u8]],
    reports: &[Report],
    hosts: &Hosts,
) -> Option<Vec<u8>> {
    let grid = hosts.grid()?;
    if reports.iter().any(|report| report.is_cut) {
        return None;
    }
    let reduce = |terms: &[&[u8]]| {
        let mut sum = vec![0; terms[0].len()];
        fold(op, dtype, &mut sum, &terms.iter().copied().map(Some).collect::<Vec<_>>());
        sum
    };
    let of_hosts = grid.members().chunks(grid.each()).map(|members| {
        reduce(&members.iter().map(|rank| inputs[*rank as usize]).collect::<Vec<_>>())
    });
    let of_hosts: Vec<_> = of_hosts.collect();
    // What a host's sum lacks is listed for each of its ranks.
    let missing = grid.members().chunks(grid.each()).map(|members| missing(reports, members[0]));
    let missing: Vec<_> = missing.collect();
    let terms: Vec<_> = of_hosts
        .iter()
        .zip(&missing)
        .map(|(bytes, missing)| Contribution { bytes: Some(bytes), missing })
        .collect();
    let mut result = vec![0; inputs[0].len()];
    fold_partial(op, dtype, &mut result, &terms, Some(grid.each() as u64));
    Some(result)
}

/// Recomputes the result of an allreduce of encoded tensors.
fn replay_encoded(
    op: ReduceOp,
    encoding: Encoding,
    seed: u64,
    inputs: &[&[u8]],
    reports: &[Report],
) -> Option<Vec<u8>> {
    let plan = encoding.plan(seed).ok()?;
    let encode = |input: &&[u8]| {
        let mut encoded = vec![0; plan.encoded_len()];
        plan.encode(input, &mut encoded);
        encoded
    };
    let encoded: Vec<Vec<u8>> = inputs.iter().map(encode).collect();
    let encoded: Vec<&[u8]> = encoded.iter().map(Vec::as_slice).collect();
    let reduced = fold_again(op, encoding.dtype, &encoded, reports);
    let mut result = vec![0; plan.tensor_len()];
    plan.decode(&reduced, &mut result);
    Some(result)
}

/// What is missing of a rank. Each rank reduces a different part of the output, so missing ranges
/// of different reports do not overlap.
fn missing(reports: &[Report], rank: Rank) -> Vec<Range<u32>> {
    let of_rank = reports.iter().flat_map(|report| &report.missing);
    let of_rank = of_rank.filter(|missing| missing.rank == rank);
    of_rank.map(|missing| missing.range.start as u32..missing.range.end as u32).collect()
}

fn fold_again(op: ReduceOp, dtype: DataType, inputs: &[&[u8]], reports: &[Report]) -> Vec<u8> {
    let missing: Vec<_> = (0..inputs.len()).map(|rank| missing(reports, rank as Rank)).collect();
    let terms: Vec<_> = inputs
        .iter()
        .zip(&missing)
        .map(|(bytes, missing)| Contribution { bytes: Some(bytes), missing })
        .collect();
    let mut result = vec![0; inputs[0].len()];
    fold_partial(op, dtype, &mut result, &terms, Some(1));
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Missing;

    #[test]
    fn reports_of_all_ranks_give_the_result_again() {
        let bytes = |values: [i32; 4]| values.map(i32::to_ne_bytes).concat();
        let inputs = [bytes([1, 2, 3, 4]), bytes([10, 20, 30, 40])];
        let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
        let report =
            |rank, range| Report { missing: vec![Missing { rank, range }], ..Report::default() };
        let reports = [report(1, 4..8), report(0, 8..12)];
        let again = replay_allreduce(ReduceOp::Sum, DataType::I32, &inputs, &reports);
        assert_eq!(again, Some(bytes([11, 2, 30, 44])));
        let cut = [Report { is_cut: true, ..Report::default() }];
        assert_eq!(replay_allreduce(ReduceOp::Sum, DataType::I32, &inputs, &cut), None);
    }
}
