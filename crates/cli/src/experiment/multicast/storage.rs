//! Figure 8: a replicated store under load, with reads during writes.

use bowline::{DcqcnParams, Mtu, Prob, RateControl};
use bowline_link::Ecn;
use bowline_sim::experiment::{StorageConfig, StorageOutcome, Way, storage};
use bowline_sim::traffic::{SizeCdf, Sizes};

use super::{CNP_INTERVAL_NS, LINE_BPS, MS, Row, cable};

/// A storage or search workload: request sizes, and the share of requests up to each size.
struct Workload {
    name: &'static str,
    sizes: &'static str,
    arrivals_ns: u64,
    paper: &'static str,
    /// The maximum read time of a group at the highest load, relative to fan-out's.
    bar: Option<f64>,
}

/// The distributions are those that HPCC's authors published with its simulator.
const WORKLOADS: [Workload; 2] = [
    Workload {
        name: "storage",
        sizes: "0 0\n4000 0.2293\n8000 0.6921\n16000 0.8061\n32000 0.9047\n64000 0.9353\n\
                128000 0.9677\n256000 0.9753\n2000000 1\n",
        arrivals_ns: 4 * MS,
        paper: "reads by the group are the fastest at every load, and more so at higher ones",
        bar: Some(0.75),
    },
    Workload {
        name: "web search",
        sizes: "0 0\n10000 0.15\n20000 0.2\n30000 0.3\n50000 0.4\n80000 0.53\n200000 0.6\n\
                1000000 0.7\n2000000 0.8\n5000000 0.9\n10000000 0.97\n30000000 1\n",
        arrivals_ns: 16 * MS,
        paper: "about 30 % less than the others at load 8",
        bar: None,
    },
];

/// Runs the workloads at rising loads, with all replication methods.
pub(super) fn rows(quick: bool) -> Vec<Row> {
    let loads: &[f64] = if quick { &[0.2, 0.8] } else { &[0.2, 0.4, 0.6, 0.8] };
    let workloads = if quick { &WORKLOADS[..1] } else { &WORKLOADS };
    let row = |workload: &Workload, load: f64| {
        let arrivals_ns = if quick { MS } else { workload.arrivals_ns };
        let [group, fan_out, chain] = measure(workload, load, arrivals_ns);
        let us = |time_ns: f64| time_ns / 1e3;
        let ratio = group.mean_read_ns() / fan_out.mean_read_ns();
        let values = [
            ("reads: group us", us(group.mean_read_ns())),
            ("fan-out us", us(fan_out.mean_read_ns())),
            ("chain us", us(chain.mean_read_ns())),
            ("group / fan-out", ratio),
            ("writes: group us", us(group.mean_write_ns())),
            ("fan-out us", us(fan_out.mean_write_ns())),
            ("chain us", us(chain.mean_write_ns())),
        ];
        let what = format!("{} {:.0} %", workload.name, load * 100.0);
        let bar = workload.bar.filter(|_| loads.last() == Some(&load));
        let unfinished: usize =
            [&group, &fan_out, &chain].map(|outcome| outcome.unfinished).iter().sum();
        Row::new(what, &values, workload.paper)
            .must(unfinished == 0, "every request comes to its end")
            .must(bar.is_none_or(|bar| ratio <= bar), "reads at least 25 % below fan-out's")
    };
    workloads
        .iter()
        .flat_map(|workload| loads.iter().map(move |load| (workload, *load)))
        .map(|(workload, load)| row(workload, load))
        .collect()
}

/// Runs the same requests with each replication method.
fn measure(workload: &Workload, load: f64, arrivals_end_ns: u64) -> [StorageOutcome; 3] {
    let ecn = Ecn { kmin_bytes: 50_000, kmax_bytes: 500_000, pmax: Prob::new(0.01) };
    let sizes: SizeCdf = workload.sizes.parse().expect("a right table");
    let config = |way| StorageConfig {
        seed: 1,
        k: 6,
        cable: cable(Some(ecn)),
        mtu: Mtu::B4096,
        control: RateControl::Dcqcn(DcqcnParams::new(LINE_BPS)),
        cnp_interval_ns: CNP_INTERVAL_NS,
        window_bytes: 1 << 20,
        way,
        groups_per_node: 3,
        sizes: Sizes::Cdf(sizes.clone()),
        load,
        warm_up_ns: arrivals_end_ns / 5,
        arrivals_end_ns,
        end_ns: 100 * arrivals_end_ns,
    };
    std::thread::scope(|scope| {
        Way::ALL
            .map(|way| {
                let config = config(way);
                scope.spawn(move || storage(&config))
            })
            .map(|run| run.join().expect("a simulation that does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distributions_have_the_means_that_they_are_known_for() {
        for (workload, mean) in WORKLOADS.iter().zip([40_900.0, 1_711_000.0]) {
            let sizes = Sizes::Cdf(workload.sizes.parse().unwrap());
            assert!((sizes.mean() / mean - 1.0).abs() < 0.02, "{} {}", workload.name, sizes.mean());
        }
    }
}
