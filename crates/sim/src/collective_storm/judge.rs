//! The inputs of the ranks, and whether the outputs are correct.

use std::ops::Range;

use bowline_collective::{
    Algorithm, Cause, Contribution, Encoding, Operation, Recovery, Report, fold_partial,
    replay_allreduce, replay_two_level,
};

use super::app::CollectiveStorm;
use super::report::CollectiveCoverage;
use super::scenario::OpPlan;

const ELEMENT: usize = 4;

/// Input and output of an operation at a rank, before it starts. In place there is no input.
pub(super) fn before(plan: &OpPlan, index: usize, rank: u32, ranks: u32) -> [Vec<u8>; 2] {
    if plan.request.in_place {
        return [Vec::new(), contribution(plan, index, rank, ranks)];
    }
    let (_, output) = plan.request.bytes(rank, ranks).expect("plans are valid");
    let old = |i: usize| -(i as f32) - index as f32;
    let output = (0..output / ELEMENT).flat_map(|i| old(i).to_ne_bytes()).collect();
    [contribution(plan, index, rank, ranks), output]
}

/// A rank's input: numbers whose sum depends on the order of additions.
fn contribution(plan: &OpPlan, index: usize, rank: u32, ranks: u32) -> Vec<u8> {
    let (input, output) = plan.request.bytes(rank, ranks).expect("plans are valid");
    let bytes = if plan.request.in_place { output } else { input };
    let value = |i: usize| {
        ((i * 7919 + rank as usize * 104_729 + index * 31) % 1_000_003) as f32 * 1.1 - 300_000.0
    };
    (0..bytes / ELEMENT).flat_map(|i| value(i).to_ne_bytes()).collect()
}

impl CollectiveStorm<'_> {
    /// Checks everything, at quiescence.
    pub(super) fn judge(&mut self, now: bowline_nic::Time) -> CollectiveCoverage {
        let killed = u64::from(self.dead.is_some());
        let shared = self.scenario.shares.len() as u64;
        let near = self.scenario.near().count() as u64;
        let mut coverage =
            CollectiveCoverage { killed, shared, near, ..CollectiveCoverage::default() };
        let agreement = self.judge_agreement(&mut coverage);
        self.sink.check(now, "agreement", agreement);
        for index in 0..self.scenario.ops.len() {
            for rank in self.live() {
                let judged = self.judge_rank(index, rank, &mut coverage);
                let context = |what| format!("operation {index}, rank {rank}: {what}");
                self.sink.check(now, "results", judged.map_err(context));
            }
            let judged = self.judge_replicas(index, &mut coverage);
            let context = |what| format!("operation {index}: {what}");
            self.sink.check(now, "results", judged.map_err(context));
        }
        coverage
    }

    fn live(&self) -> Vec<usize> {
        (0..self.ranks.len()).filter(|rank| Some(*rank) != self.dead).collect()
    }

    /// Every operation has ended at all live ranks, and if it failed they name the same rank.
    fn judge_agreement(&self, coverage: &mut CollectiveCoverage) -> Result<(), String> {
        for rank in self.live() {
            let results = &self.ranks[rank].results;
            if results.len() != self.scenario.ops.len() {
                return Err(format!("rank {rank} has ends of {} operations", results.len()));
            }
            if !self.ranks[rank].group.is_quiet() {
                return Err(format!("rank {rank} still reads or writes memory"));
            }
            for failure in results.iter().filter_map(|result| result.as_ref().err()) {
                coverage.failed += 1;
                let is_dead = Some(failure.rank as usize) == self.dead;
                if !is_dead || failure.cause != Cause::Unreachable {
                    return Err(format!("rank {rank}: {failure}; dead is {:?}", self.dead));
                }
            }
        }
        Ok(())
    }

    /// Checks a rank's result against its own report.
    fn judge_rank(
        &self,
        index: usize,
        rank: usize,
        coverage: &mut CollectiveCoverage,
    ) -> Result<(), String> {
        let (plan, own) = (&self.scenario.ops[index], &self.ranks[rank]);
        let Some([input, output]) = own.places.get(index) else { return Ok(()) };
        if !input.is_guarded() || !output.is_guarded() {
            return Err("bytes beside a buffer have changed".to_owned());
        }
        let Some(Ok(report)) = own.results.get(index) else { return Ok(()) };
        let (ranks, hosts) = (self.scenario.ranks, &self.scenario.hosts);
        count(coverage, plan, report);
        let at_risk = match report.encoded {
            Some((encoding, _)) => encoded_bytes(encoding, rank, ranks as usize),
            None => plan.may_lose(rank as u32, hosts),
        };
        let allowed = plan.bounds.map_or(0, |bounds| bounds.allowed(at_risk));
        if report.missing_bytes > allowed {
            return Err(format!("{} bytes are missing of {allowed}", report.missing_bytes));
        }
        let ranges: usize = report.missing.iter().map(|missing| missing.range.len()).sum();
        // What a host's sum lacks is listed for each of its ranks.
        let two_level = plan.request.algorithm == Algorithm::TwoLevel;
        let each = hosts.shape().filter(|_| two_level).map_or(1, |(_, each)| each as u64);
        if !report.is_cut && ranges as u64 != report.missing_bytes * each {
            return Err(format!("{ranges} bytes are listed of {}", report.missing_bytes));
        }
        if !plan.request.in_place && input.bytes() != contribution(plan, index, rank as u32, ranks)
        {
            return Err("the input has changed".to_owned());
        }
        match self.expected(index, rank as u32, report) {
            Some(expected) if output.bytes() != expected => {
                Err(format!("the output differs, with {} bytes missing", report.missing_bytes))
            }
            _ => Ok(()),
        }
    }

    /// The expected output of a rank by its own report; `None` if it takes those of others.
    fn expected(&self, index: usize, rank: u32, report: &Report) -> Option<Vec<u8>> {
        let (plan, ranks) = (&self.scenario.ops[index], self.scenario.ranks);
        let inputs: Vec<_> = (0..ranks).map(|of| contribution(plan, index, of, ranks)).collect();
        let [_, mut output] = before(plan, index, rank, ranks);
        let own = |count: usize| nth(count, rank);
        let whole = |of: u32| 0..inputs[of as usize].len();
        match plan.request.operation {
            Operation::Allreduce { .. } if plan.request.algorithm != Algorithm::Exchange => {
                return None;
            }
            Operation::Allreduce { .. } => reduce(plan, &inputs, whole(rank), report, &mut output),
            Operation::Reduce { root, .. } if rank == root => {
                reduce(plan, &inputs, whole(rank), report, &mut output);
            }
            Operation::ReduceScatter { count } => {
                reduce(plan, &inputs, own(count), report, &mut output);
            }
            Operation::Allgather { count } => {
                let pieces = (0..ranks).map(|of| (of, whole(of), nth(count, of).start));
                copy(&inputs, pieces, report, &mut output);
            }
            Operation::AllToAll { count } => {
                let pieces = (0..ranks).map(|of| (of, own(count), nth(count, of).start));
                copy(&inputs, pieces, report, &mut output);
            }
            Operation::Gather { count, root } if rank == root => {
                let pieces = (0..ranks).map(|of| (of, whole(of), nth(count, of).start));
                copy(&inputs, pieces, report, &mut output);
            }
            Operation::Broadcast { root, .. } => {
                copy(&inputs, [(root, whole(root), 0)], report, &mut output);
            }
            Operation::Scatter { count, root } => {
                copy(&inputs, [(root, own(count), 0)], report, &mut output);
            }
            _ => {}
        }
        Some(output)
    }

    /// An allreduce by `direct` or `two-level` is what the reports of all ranks say, on all ranks.
    fn judge_replicas(
        &self,
        index: usize,
        coverage: &mut CollectiveCoverage,
    ) -> Result<(), String> {
        let (plan, ranks) = (&self.scenario.ops[index], self.scenario.ranks);
        let is_allreduce = matches!(plan.request.operation, Operation::Allreduce { .. });
        if !is_allreduce || plan.request.algorithm == Algorithm::Exchange {
            return Ok(());
        }
        let outputs = self.live().into_iter().filter_map(|rank| {
            let own = &self.ranks[rank];
            let succeeded = own.results.get(index).is_some_and(Result::is_ok);
            succeeded.then(|| (rank, own.places[index][1].bytes()))
        });
        let outputs: Vec<_> = outputs.collect();
        if let Some(pair) = outputs.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            return Err(format!("ranks {} and {} differ", pair[0].0, pair[1].0));
        }
        let reports = self.ranks.iter().map(|rank| rank.results.get(index)?.clone().ok());
        let Some(reports) = reports.collect::<Option<Vec<_>>>() else { return Ok(()) };
        let inputs: Vec<_> = (0..ranks).map(|of| contribution(plan, index, of, ranks)).collect();
        let inputs: Vec<_> = inputs.iter().map(|input| &input[..]).collect();
        let (op, dtype) = (plan.request.op, plan.request.dtype);
        let again = match plan.request.algorithm {
            Algorithm::TwoLevel => {
                replay_two_level(op, dtype, &inputs, &reports, &self.scenario.hosts)
            }
            _ => replay_allreduce(op, dtype, &inputs, &reports),
        };
        coverage.replayed += u64::from(again.is_some());
        coverage.two_level += u64::from(plan.request.algorithm == Algorithm::TwoLevel);
        match again {
            Some(again) if outputs.iter().any(|(_, output)| *output != again) => {
                Err("the result is not what reports say".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// Bytes that a rank receives of an encoded tensor, of which each rank reduces some groups.
fn encoded_bytes(encoding: Encoding, rank: usize, ranks: usize) -> u64 {
    let Ok(plan) = encoding.plan(0) else { return 0 };
    let (each, longer) = (plan.groups() / ranks, plan.groups() % ranks);
    let start = |rank: usize| rank * each + rank.min(longer);
    let own = (start(rank)..start(rank + 1)).map(|group| plan.group(group).encoded.len());
    (own.sum::<usize>() * (ranks - 1)) as u64
}

fn nth(count: usize, rank: u32) -> Range<usize> {
    let block = count * ELEMENT;
    rank as usize * block..(rank as usize + 1) * block
}

/// Reduces a block of all inputs except what is missing.
fn reduce(
    plan: &OpPlan,
    inputs: &[Vec<u8>],
    block: Range<usize>,
    report: &Report,
    output: &mut [u8],
) {
    let missing: Vec<Vec<Range<u32>>> = (0..inputs.len())
        .map(|rank| {
            let of_rank = report.missing.iter().filter(|m| m.rank as usize == rank);
            of_rank.map(|m| m.range.start as u32..m.range.end as u32).collect()
        })
        .collect();
    let terms = inputs
        .iter()
        .zip(&missing)
        .map(|(input, missing)| Contribution { bytes: Some(&input[block.clone()]), missing });
    fold_partial(plan.request.op, plan.request.dtype, output, &terms.collect::<Vec<_>>(), Some(1));
}

/// Copies pieces of inputs, by rank and offset in the output, except what is missing.
fn copy(
    inputs: &[Vec<u8>],
    pieces: impl IntoIterator<Item = (u32, Range<usize>, usize)>,
    report: &Report,
    output: &mut [u8],
) {
    let old = output.to_vec();
    for (of, piece, at) in pieces {
        output[at..at + piece.len()].copy_from_slice(&inputs[of as usize][piece]);
    }
    for missing in &report.missing {
        output[missing.range.clone()].copy_from_slice(&old[missing.range.clone()]);
    }
}

fn count(coverage: &mut CollectiveCoverage, plan: &OpPlan, report: &Report) {
    if plan.bounds.is_none() {
        coverage.reliable += 1;
        return;
    }
    coverage.whole += u64::from(report.missing_bytes == 0);
    coverage.partial += u64::from(report.missing_bytes > 0);
    coverage.repaired += u64::from(report.repaired_bytes > 0);
    let is_adaptive = plan
        .bounds
        .is_some_and(|bounds| matches!(bounds.deadline, bowline_collective::Deadline::Adaptive(_)));
    coverage.learnt += u64::from(is_adaptive && report.deadline_ns.is_some());
    coverage.encoded += u64::from(report.encoded.is_some());
    let agreed = plan.request.recovery == Recovery::Auto && report.encoded.is_some();
    coverage.agreed += u64::from(agreed);
    coverage.expected_bytes += report.expected_bytes;
    coverage.missing_bytes += report.missing_bytes;
    coverage.repaired_bytes += report.repaired_bytes;
}
