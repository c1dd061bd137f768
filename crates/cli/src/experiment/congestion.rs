//! Rate controllers in a switched network: incast, permutation, convergence and fairness.

use std::error::Error;
use std::process::ExitCode;

use bowline::{BbrParams, DcqcnParams, EqdsParams, Prob, QpType, RateControl, SwiftParams};
use bowline_chart::{Axis, LineChart, Page, Series, Unit};
use bowline_link::{Ecn, LinkConfig};
use bowline_sim::experiment::{FlowPlan, FlowsConfig, FlowsOutcome, Shape, flows, jain};
use clap::ValueEnum;
use serde_json::json;

use super::{RunArgs, make_dir, verdict};
use crate::output::{say, versioned};

/// Every cable has 100 Gbit/s and 100 m, and a queue such as a chip's shared buffer would grant.
const LINE_BPS: u64 = 100_000_000_000;
const DELAY_NS: u64 = 500;
const QUEUE_BYTES: u64 = 4 << 20;
const MESSAGE: u64 = 1 << 20;

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Congestion {
    Incast,
    Permutation,
    Fairness,
}

const EXPERIMENTS: [(&str, Congestion, &str); 3] = [
    ("incast", Congestion::Incast, "8, 32 and 128 senders of 1 MiB to one receiver at 100 Gbit/s"),
    ("permutation", Congestion::Permutation, "a fat tree in which all send, ECMP and spraying"),
    ("fairness", Congestion::Fairness, "2 to 8 flows through one port, round trips 1:1 and 1:4"),
];

/// The experiment of this name.
pub(super) fn find(name: &str) -> Option<Congestion> {
    EXPERIMENTS.iter().find(|(known, ..)| *known == name).map(|(_, which, _)| *which)
}

pub(super) fn list() -> String {
    let line = |(name, _, title): &(&str, Congestion, &str)| {
        format!("{name:<12} congestion control: {title}\n")
    };
    EXPERIMENTS.iter().map(line).collect()
}

/// The transport of the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Carrier {
    /// Reliable connection
    #[default]
    Rc,
    /// OptiNIC's express path; the controllers hear its feedback packets
    Xp,
}

/// The result of one controller in one scenario.
struct Row {
    control: &'static str,
    what: String,
    /// Share of the capacity of the bottleneck, or of each flow's own link.
    share: f64,
    jain: f64,
    drops: u64,
    peak_queue_bytes: u64,
    /// The thresholds that it misses.
    broken: Vec<String>,
    /// Gbit/s of each flow over time, for experiments about that.
    over_time: Option<(f64, Vec<Vec<f64>>)>,
}

pub(super) fn run(which: Congestion, args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    let rows = match which {
        Congestion::Incast => incast(args.transport, args.quick),
        Congestion::Permutation => permutation(args.transport, args.quick),
        Congestion::Fairness => fairness(args.transport, args.quick),
    };
    let broken: Vec<&String> = rows.iter().flat_map(|row| &row.broken).collect();
    if let Some(dir) = &args.out {
        make_dir(dir)?;
        std::fs::write(dir.join(format!("{}.json", args.name)), to_json(&rows).to_string())?;
        std::fs::write(dir.join(format!("{}.html", args.name)), page(&args.name, &rows))?;
    }
    if args.json {
        say(&versioned(to_json(&rows)).to_string());
    } else {
        print!("{}", table(&rows));
        broken.iter().for_each(|broken| println!("DOES NOT HOLD: {broken}"));
    }
    Ok(verdict(args, broken.len()))
}

fn controls() -> [(&'static str, RateControl); 5] {
    [
        ("none", RateControl::Unlimited),
        ("dcqcn", RateControl::Dcqcn(DcqcnParams::new(LINE_BPS))),
        ("swift", RateControl::Swift(SwiftParams::default())),
        ("eqds", RateControl::Eqds(EqdsParams::new(LINE_BPS))),
        ("bbr", RateControl::Bbr(BbrParams::default())),
    ]
}

fn cable() -> LinkConfig {
    let ecn = Ecn { kmin_bytes: 100_000, kmax_bytes: 400_000, pmax: Prob::new(0.2) };
    let (rate_bps, ecn) = (Some(LINE_BPS), Some(ecn));
    LinkConfig { rate_bps, delay_ns: DELAY_NS, queue_bytes: QUEUE_BYTES, ecn }
}

impl Carrier {
    fn config(
        self,
        shape: Shape,
        control: RateControl,
        flows: Vec<FlowPlan>,
        end_ms: u64,
    ) -> FlowsConfig {
        let (end_ns, sample_ns) = (end_ms * 1_000_000, 250_000);
        let transport = match self {
            Carrier::Rc => QpType::Rc,
            Carrier::Xp => QpType::Xp,
        };
        // XP has no window, and the engine models no cable. Without congestion control XP therefore
        // sends at its link's rate.
        let control = match (self, control) {
            (Carrier::Xp, RateControl::Unlimited) => RateControl::Fixed { bits_per_sec: LINE_BPS },
            (_, control) => control,
        };
        FlowsConfig { seed: 1, shape, cable: cable(), transport, control, flows, end_ns, sample_ns }
    }
}

/// Bits per nanosecond of each flow, until it finished or until the end of the run.
fn rates(config: &FlowsConfig, outcome: &FlowsOutcome) -> Vec<f64> {
    let of = |(plan, (done, gbps)): (&FlowPlan, (&Option<u64>, &Vec<f64>))| match (done, plan.bytes)
    {
        (Some(ns), Some(bytes)) => bytes as f64 * 8.0 / *ns as f64,
        _ => gbps.iter().sum::<f64>() * config.sample_ns as f64 / config.end_ns as f64,
    };
    config.flows.iter().zip(outcome.completed_ns.iter().zip(&outcome.gbps)).map(of).collect()
}

fn row(control: &'static str, what: String, share: f64, jain: f64, outcome: &FlowsOutcome) -> Row {
    let FlowsOutcome { drops, peak_queue_bytes, .. } = *outcome;
    Row { control, what, share, jain, drops, peak_queue_bytes, broken: Vec::new(), over_time: None }
}

fn incast(carrier: Carrier, quick: bool) -> Vec<Row> {
    let senders: &[usize] = if quick { &[8, 32] } else { &[8, 32, 128] };
    let mut rows = Vec::new();
    for senders in senders.iter().copied() {
        for (name, control) in controls() {
            let flow = |from| FlowPlan { from, to: 0, bytes: Some(MESSAGE), start_ns: 0 };
            let plan = (1..=senders).map(flow).collect();
            let config =
                carrier.config(Shape::Star(vec![DELAY_NS; senders + 1]), control, plan, 200);
            let outcome = flows(&config);
            let last = outcome.completed_ns.iter().map(|ns| ns.unwrap_or(config.end_ns)).max();
            let bits = (senders as u64 * MESSAGE * 8) as f64;
            let share = bits / (last.unwrap_or(1) as f64 * LINE_BPS as f64 / 1e9);
            let fair = jain(&rates(&config, &outcome));
            let mut row = row(name, format!("{senders} to 1"), share, fair, &outcome);
            if matches!(name, "swift" | "eqds") && senders <= 32 && (share < 0.9 || fair < 0.95) {
                row.broken.push(format!(
                    "{name}, {senders} to 1: {share:.3} of the link, Jain {fair:.3}"
                ));
            }
            if name == "eqds" && row.drops > 0 {
                row.broken.push(format!("eqds, {senders} to 1: {} packets lost", row.drops));
            }
            rows.push(row);
        }
    }
    rows
}

fn permutation(carrier: Carrier, quick: bool) -> Vec<Row> {
    let (k, bytes) = if quick { (4, MESSAGE) } else { (4, 4 * MESSAGE) };
    let hosts = k * k * k / 4;
    let mut rows = Vec::new();
    for (how, spray) in [("ECMP", false), ("spraying", true)] {
        for (name, control) in controls() {
            let to = |from| (from + hosts / 2 + 1) % hosts;
            let flow = |from| FlowPlan { from, to: to(from), bytes: Some(bytes), start_ns: 0 };
            let plan = (0..hosts).map(flow).collect();
            let config = carrier.config(Shape::FatTree { k, spray }, control, plan, 20);
            let outcome = flows(&config);
            let rates = rates(&config, &outcome);
            let share = rates.iter().sum::<f64>() / hosts as f64 / (LINE_BPS as f64 / 1e9);
            rows.push(row(name, format!("{hosts} hosts, {how}"), share, jain(&rates), &outcome));
        }
    }
    rows
}

fn fairness(carrier: Carrier, quick: bool) -> Vec<Row> {
    // DCQCN needs tens of milliseconds to converge to equal shares, so only the second half counts.
    let (counts, end_ms): (&[usize], u64) = if quick { (&[4], 60) } else { (&[2, 4, 8], 120) };
    let mut rows = Vec::new();
    for flows_count in counts.iter().copied() {
        for (ratio, far_ns) in [("1:1", 2 * DELAY_NS), ("1:4", 11 * DELAY_NS)] {
            for (name, control) in controls() {
                // The receiver, then senders that are alternately near and far.
                let delay = |i: usize| if i % 2 == 1 { 2 * DELAY_NS } else { far_ns };
                let delays = [DELAY_NS].into_iter().chain((1..=flows_count).map(delay)).collect();
                let start_ns = |i: usize| (i as u64 - 1) * 1_000_000;
                let flow = |from| FlowPlan { from, to: 0, bytes: None, start_ns: start_ns(from) };
                let plan = (1..=flows_count).map(flow).collect();
                let config = carrier.config(Shape::Star(delays), control, plan, end_ms);
                let outcome = flows(&config);
                let from = outcome.gbps[0].len() / 2;
                let late = outcome.gbps.iter().flat_map(|flow| &flow[from..]).sum::<f64>();
                let share = late / (outcome.gbps[0].len() - from).max(1) as f64;
                let share = share / (LINE_BPS as f64 / 1e9);
                let fair = outcome.jain(from);
                let what = format!("{flows_count} flows, {ratio}");
                let mut row = row(name, what, share, fair, &outcome);
                if name == "dcqcn" && ratio == "1:1" && fair < 0.95 {
                    row.broken.push(format!("dcqcn, {}: Jain {fair:.3}", row.what));
                }
                row.over_time = Some((config.sample_ns as f64 / 1e9, outcome.gbps));
                rows.push(row);
            }
        }
    }
    rows
}

fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<24} {:<8} {:>8} {:>8} {:>10} {:>12}\n",
        "", "control", "share", "Jain", "lost", "queue KiB"
    );
    for row in rows {
        out += &format!(
            "{:<24} {:<8} {:>8.3} {:>8.3} {:>10} {:>12}\n",
            row.what,
            row.control,
            row.share,
            row.jain,
            row.drops,
            row.peak_queue_bytes >> 10
        );
    }
    out
}

fn to_json(rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        json!({
            "what": row.what, "control": row.control, "share": row.share, "jain": row.jain,
            "lost": row.drops, "peak_queue_bytes": row.peak_queue_bytes, "broken": row.broken,
        })
    };
    json!({
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "ok": rows.iter().all(|row| row.broken.is_empty()),
    })
}

fn page(name: &str, rows: &[Row]) -> String {
    let mut page = Page::new("Congestion control", &format!("bowline sim run {name}"));
    let drawings: Vec<String> = rows.iter().filter_map(chart).collect();
    page.charts(&drawings);
    let head = ["", "control", "share of the link", "Jain", "lost", "longest queue"];
    let cells = |row: &Row| {
        let queue = bowline_chart::text::size(row.peak_queue_bytes as f64);
        let (share, jain) = (format!("{:.3}", row.share), format!("{:.3}", row.jain));
        vec![row.what.clone(), row.control.to_owned(), share, jain, row.drops.to_string(), queue]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    page.table(&head, &rows, None);
    page.footer(&crate::made::source());
    page.html()
}

/// Each flow's rate over time.
fn chart(row: &Row) -> Option<String> {
    let (sample_s, flows) = row.over_time.as_ref()?;
    let title = format!("{}: {}", row.control, row.what);
    let mut chart = LineChart::new(
        &title,
        Axis::linear("time", Unit::Seconds),
        Axis::linear("rate of each flow", Unit::BitsPerSecond),
    );
    for (i, flow) in flows.iter().enumerate() {
        let at = |(n, gbps): (usize, &f64)| ((n + 1) as f64 * sample_s, gbps * 1e9);
        let points = flow.iter().enumerate().map(at).collect();
        chart.series.push(Series::line(&format!("flow {}", i + 1), points));
    }
    chart.source = crate::made::source();
    Some(chart.svg())
}
