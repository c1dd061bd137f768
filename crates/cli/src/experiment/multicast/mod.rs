//! Reproduces MC-RDMA's figures: groups behind switches, compared with fan-out and chain
//! replication.

mod storage;

use std::error::Error;
use std::process::ExitCode;

use bowline::{DcqcnParams, Mtu, Prob, RateControl, ReliableConfig, SdrConfig};
use bowline_link::{Ecn, LinkConfig};
use bowline_sim::experiment::{
    Fabric, GroupConfig, ReplicationConfig, StreamOutcome, StreamPlan, Way, group_completion,
    replication,
};
use serde_json::json;

use super::{RunArgs, make_dir, verdict};
use crate::output::versioned;

/// Every cable has 100 Gbit/s and 100 m. Queues are deep, instead of being made lossless by pause
/// frames.
const LINE_BPS: u64 = 100_000_000_000;
const DELAY_NS: u64 = 500;
const DEPTH: u32 = 8;
/// Minimum time between two CNPs of a receiver, or of a switch for a group.
const CNP_INTERVAL_NS: u64 = 50_000;
const MS: u64 = 1_000_000;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Sizes,
    Fairness,
    Notifications,
    Loss,
    Storage,
    ParameterServer,
    /// Not from the paper: erasure coding to a group.
    Coding,
}

const FIGURES: [(&str, Figure, &str); 7] = [
    ("mc-fig4", Figure::Sizes, "latency and bandwidth by message size, one sender, two receivers"),
    ("mc-fig5", Figure::Fairness, "two groups and a connection under DCQCN, one after another"),
    ("mc-fig6", Figure::Notifications, "a group of 7 of which 0 to 7 are congested, under DCQCN"),
    ("mc-fig7", Figure::Loss, "bandwidth by loss on the way to one of two receivers"),
    ("mc-fig8", Figure::Storage, "a store of 27 nodes: reads while writes are replicated, by load"),
    ("mc-fig9", Figure::ParameterServer, "5 parameter servers of 6 workers each in a fat tree"),
    ("mc-ec", Figure::Coding, "16 MiB to 8 members that lose 0.1 % each: coding, repeating, RC"),
];

/// The figure of this name.
pub(super) fn find(name: &str) -> Option<Figure> {
    FIGURES.iter().find(|(known, ..)| *known == name).map(|(_, figure, _)| *figure)
}

pub(super) fn list() -> String {
    let line = |(name, _, title): &(&str, Figure, &str)| format!("{name:<8} multicast: {title}\n");
    FIGURES.iter().map(line).collect()
}

/// One scenario: the result of each replication method or stream, and the paper's result.
struct Row {
    what: String,
    values: Vec<(String, f64)>,
    paper: &'static str,
    /// The thresholds that it misses.
    broken: Vec<String>,
}

impl Row {
    fn new(what: String, values: &[(&str, f64)], paper: &'static str) -> Row {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Row { what, values, paper, broken: Vec::new() }
    }

    /// Records the threshold as missed unless it holds.
    fn must(mut self, holds: bool, bar: &str) -> Row {
        if !holds {
            self.broken.push(format!("{}: {bar}", self.what));
        }
        self
    }
}

pub(super) fn run(figure: Figure, args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    let rows = match figure {
        Figure::Sizes => sizes(args.quick),
        Figure::Fairness => fairness(args.quick),
        Figure::Notifications => notifications(args.quick),
        Figure::Loss => loss(args.quick),
        Figure::Storage => storage::rows(args.quick),
        Figure::ParameterServer => parameter_server(args.quick),
        Figure::Coding => coding(args.quick),
    };
    let text = versioned(to_json(&rows)).to_string();
    if let Some(dir) = &args.out {
        make_dir(dir)?;
        std::fs::write(dir.join(format!("{}.json", args.name)), &text)?;
    }
    let broken: Vec<&String> = rows.iter().flat_map(|row| &row.broken).collect();
    if args.json {
        println!("{text}");
    } else {
        print!("{}", table(&rows));
        broken.iter().for_each(|broken| println!("DOES NOT HOLD: {broken}"));
    }
    Ok(verdict(args, broken.len()))
}

fn cable(ecn: Option<Ecn>) -> LinkConfig {
    let rate_bps = Some(LINE_BPS);
    LinkConfig { rate_bps, delay_ns: DELAY_NS, ecn, ..LinkConfig::default() }
}

fn stream(from: usize, to: Vec<usize>, way: Way, bytes: u32, messages: Option<u64>) -> StreamPlan {
    let (depth, start_ns, after) = (DEPTH, 0, Vec::new());
    StreamPlan { from, to, way, bytes, messages, depth, start_ns, after }
}

fn config(fabric: Fabric, streams: Vec<StreamPlan>) -> ReplicationConfig {
    ReplicationConfig {
        seed: 1,
        fabric,
        cable: cable(None),
        mtu: Mtu::B1024,
        losses: Vec::new(),
        window_bytes: 1 << 20,
        // 4 ms.
        timeout: 10,
        control: RateControl::Unlimited,
        cnp_interval_ns: CNP_INTERVAL_NS,
        streams,
        end_ns: 10_000 * MS,
    }
}

/// Adds DCQCN, with the marking of the paper's Figure 6, and an end time.
fn controlled(config: ReplicationConfig, end_ns: u64) -> ReplicationConfig {
    let ecn = Ecn { kmin_bytes: 50_000, kmax_bytes: 500_000, pmax: Prob::new(0.01) };
    let control = RateControl::Dcqcn(DcqcnParams::new(LINE_BPS));
    ReplicationConfig { cable: cable(Some(ecn)), mtu: Mtu::B4096, control, end_ns, ..config }
}

fn outcomes(bytes: u32, messages: u64, losses: &[(usize, f64)]) -> [StreamOutcome; 3] {
    Way::ALL.map(|way| {
        // Receivers are in the sender's rack and in the other one.
        let plan = stream(0, vec![2, 1], way, bytes, Some(messages));
        let losses = losses.to_vec();
        let config = ReplicationConfig { losses, ..config(Fabric::TwoRacks(3), vec![plan]) };
        replication(&config).remove(0)
    })
}

fn sizes(quick: bool) -> Vec<Row> {
    let shifts: &[u32] = if quick { &[7, 12, 16] } else { &[7, 9, 10, 12, 14, 16, 18, 20] };
    let row = |shift: &u32| {
        let bytes = 1_u32 << shift;
        let most: u64 = if quick { 200 } else { 2000 };
        let messages = ((64 << 20) / u64::from(bytes)).clamp(64, most);
        let [group, fan_out, chain] = outcomes(bytes, messages, &[]);
        let us = |outcome: &StreamOutcome| outcome.median_ns() as f64 / 1e3;
        let best_other = us(&fan_out).min(us(&chain));
        let speedup = group.gbps() / fan_out.gbps();
        Row::new(
            format!("{bytes} B"),
            &[
                ("group us", us(&group)),
                ("fan-out us", us(&fan_out)),
                ("chain us", us(&chain)),
                ("group Gbit/s", group.gbps()),
                ("fan-out Gbit/s", fan_out.gbps()),
                ("chain Gbit/s", chain.gbps()),
            ],
            "the group's latency is the shortest at every size; fan-out needs twice the bandwidth",
        )
        .must(us(&group) <= 1.01 * best_other, "latency at most 1 % above any other way's")
        .must(shift < &16 || speedup >= 1.95, "at least 1.95 times fan-out from 64 KiB")
    };
    shifts.iter().map(row).collect()
}

fn loss(quick: bool) -> Vec<Row> {
    let messages = if quick { 300 } else { 3000 };
    let rates: &[u32] = if quick { &[0, 1024] } else { &[0, 65_536, 16_384, 4_096, 1_024] };
    let row = |every: &u32| {
        let loss = (*every > 0).then(|| (1, 1.0 / f64::from(*every)));
        let [group, fan_out, chain] = outcomes(64 << 10, messages, loss.as_slice());
        let what = if *every == 0 { "no loss".to_owned() } else { format!("1 of {every}") };
        let values = [
            ("group Gbit/s", group.gbps()),
            ("fan-out Gbit/s", fan_out.gbps()),
            ("chain Gbit/s", chain.gbps()),
        ];
        Row::new(what, &values, "a little worse than chain from 1 of 4096 on, negligibly")
            .must(group.gbps() >= fan_out.gbps(), "never less than fan-out")
    };
    rates.iter().map(row).collect()
}

/// Two groups and a connection start one after another. As in the paper, hosts A1, C1 and D1 share
/// a rack.
fn fairness(quick: bool) -> Vec<Row> {
    let (a1, a2, c1, d1) = (0, 1, 2, 4);
    let step = if quick { 10 * MS } else { 30 * MS };
    let begin = |at: u64, plan: StreamPlan| StreamPlan { start_ns: at * step, ..plan };
    let streams = vec![
        begin(0, stream(a1, vec![c1, d1], Way::Group, 64 << 10, None)),
        begin(1, stream(c1, vec![d1, a2], Way::Group, 64 << 10, None)),
        begin(2, stream(d1, vec![a2], Way::FanOut, 64 << 10, None)),
    ];
    let config = controlled(config(Fabric::TwoRacks(5), streams), 3 * step);
    let outcomes = replication(&config);
    let papers = [
        "all of the link",
        "half of it each",
        "f_m1 falls to a third, though max-min would leave it a half: f_u1 shares no link with it",
    ];
    let row = |(phase, paper): (usize, &'static str)| {
        let (from, to) = (phase as u64 * step + step / 2, (phase as u64 + 1) * step);
        let rate = |index: usize| outcomes[index].gbps_between(from, to);
        let values = [("f_m1 Gbit/s", rate(0)), ("f_m2 Gbit/s", rate(1)), ("f_u1 Gbit/s", rate(2))];
        Row::new(format!("{} of 3 flows", phase + 1), &values, paper)
    };
    papers.into_iter().enumerate().map(row).collect()
}

/// One sender and seven receivers, some of which also receive from an unrelated connection.
fn notifications(quick: bool) -> Vec<Row> {
    let end_ns = if quick { 20 * MS } else { 100 * MS };
    let rates = |congested: usize, cnp_interval_ns: u64| {
        let receivers = 1..=7;
        let mut streams = vec![stream(0, receivers.clone().collect(), Way::Group, 64 << 10, None)];
        let competitors = receivers.take(congested);
        streams.extend(competitors.map(|r| stream(7 + r, vec![r], Way::FanOut, 64 << 10, None)));
        let config = controlled(config(Fabric::Star(15), streams), end_ns);
        let outcomes = replication(&ReplicationConfig { cnp_interval_ns, ..config });
        let rate = |outcome: &StreamOutcome| outcome.gbps_between(end_ns / 2, end_ns);
        let others = outcomes[1..].iter().map(rate).fold(0.0, |sum, rate| sum + rate);
        let others = others / congested.max(1) as f64;
        (rate(&outcomes[0]), others)
    };
    let counts: &[usize] = if quick { &[0, 1] } else { &[0, 1, 2, 4, 7] };
    let row = |congested: &usize| {
        let (all, others_all) = rates(*congested, 0);
        let (limited, others) = rates(*congested, CNP_INTERVAL_NS);
        let values = [
            ("group Gbit/s, all CNPs", all),
            ("others", others_all),
            ("group Gbit/s, limited", limited),
            ("others", others),
        ];
        let fair = (limited + others) / 2.0;
        let paper = "the rate falls with the number of congested receivers (curves only)";
        Row::new(format!("{congested} congested"), &values, paper)
            .must(*congested != 0 || limited >= 90.0, "at least 0.9 of the link without competitor")
            .must(
                *congested != 1 || (limited - fair).abs() <= 0.1 * fair,
                "within 10 % of a fair share with one competitor",
            )
    };
    counts.iter().map(row).collect()
}

/// Servers in one pod, each with six workers in the other pods. The workers send gradients, then
/// the server sends the parameters to all of them.
fn parameter_server(quick: bool) -> Vec<Row> {
    const K: usize = 6;
    const SERVERS: usize = 5;
    const WORKERS: usize = 6;
    let elsewhere: Vec<usize> = (0..K * K * K / 4).filter(|host| host % K != 0).collect();
    let iteration = |way: Way, bytes: u32| {
        let mut streams = Vec::new();
        for (server, workers) in elsewhere.chunks(WORKERS).take(SERVERS).enumerate() {
            let (server, first) = (server * K, streams.len());
            for worker in workers {
                streams.push(stream(*worker, vec![server], Way::FanOut, bytes, Some(1)));
            }
            let after = (first..first + workers.len()).collect();
            let plan = stream(server, workers.to_vec(), way, bytes, Some(1));
            streams.push(StreamPlan { after, ..plan });
        }
        let config = ReplicationConfig { mtu: Mtu::B4096, ..config(Fabric::FatTree(K), streams) };
        let ended = replication(&config).iter().filter_map(|outcome| outcome.ended_ns).max();
        ended.unwrap_or(0) as f64 / 1e6
    };
    // From the paper's text: 8 MB in 6.1 ms, where fan-out takes 11.3 and a chain 10.8.
    let papers = [6.1 / 11.3, 6.1 / 10.8];
    let sizes: &[u32] = if quick { &[1] } else { &[1, 4, 8] };
    let row = |megabytes: &u32| {
        let [group, fan_out, chain] = Way::ALL.map(|way| iteration(way, megabytes * 1_000_000));
        let ratios = [group / fan_out, group / chain];
        let close =
            ratios.iter().zip(papers).all(|(ours, paper)| (ours / paper - 1.0).abs() <= 0.2);
        let paper = "8 MB: 6.1, 11.3 and 10.8 ms: ratios of 0.54 and 0.56";
        let values = [
            ("group ms", group),
            ("fan-out ms", fan_out),
            ("chain ms", chain),
            ("group / fan-out", ratios[0]),
            ("group / chain", ratios[1]),
        ];
        Row::new(format!("{megabytes} MB"), &values, paper)
            .must(*megabytes != 8 || close, "ratios within 20 % of the paper's")
    };
    sizes.iter().map(row).collect()
}

/// One message to a group whose members lose packets independently, 40 ms away. Compares SDR's
/// schemes over UC, replicated by a switch, with RC, replicated and merged by a switch.
fn coding(quick: bool) -> Vec<Row> {
    const BYTES: u64 = 16 << 20;
    const MEMBERS: usize = 8;
    const LOSS: f64 = 0.001;
    let rate_bps = Some(10_000_000_000);
    let cable = LinkConfig { rate_bps, delay_ns: 10 * MS, queue_bytes: 256 << 20, ecn: None };
    let seeds = if quick { 3 } else { 20 };
    let mean = |time: &dyn Fn(u64) -> f64| (0..seeds).map(time).sum::<f64>() / seeds as f64;
    let by_scheme = |name: &str, packet_loss: f64, seed: u64| {
        let sdr = SdrConfig { rate_bps, ..SdrConfig::default() };
        let reliable = ReliableConfig { sdr, max_write: BYTES, ..ReliableConfig::default() };
        let scheme = reliable.scheme(name).unwrap_or(0);
        let (members, bytes) = (MEMBERS, BYTES);
        let config = GroupConfig { seed, members, cable, packet_loss, bytes, reliable, scheme };
        group_completion(&config).map_or(f64::INFINITY, |time| time.time_ns as f64 / 1e6)
    };
    let by_rc = |packet_loss: f64, seed: u64| {
        let to: Vec<usize> = (1..=MEMBERS).collect();
        let losses = to.iter().map(|member| (*member, packet_loss)).collect();
        let plan = stream(0, to, Way::Group, BYTES as u32, Some(1));
        let config = ReplicationConfig {
            seed,
            cable,
            mtu: Mtu::B4096,
            losses,
            window_bytes: 2 * BYTES as u32,
            // 134 ms.
            timeout: 15,
            end_ns: 600_000 * MS,
            ..config(Fabric::Star(1 + MEMBERS), vec![plan])
        };
        let ended = replication(&config)[0].ended_ns;
        ended.map_or(f64::INFINITY, |ns| ns as f64 / 1e6)
    };
    let paper = "none: groups over unreliable packets are ours";
    let row = |name: &str, lossless: f64, lossy: f64| {
        let values =
            [("lossless ms", lossless), ("mean ms at 0.1 %", lossy), ("ratio", lossy / lossless)];
        Row::new(name.to_owned(), &values, paper)
    };
    let [ec, sr] = ["ec-mds", "sr-nack"].map(|name| {
        let lossy = mean(&|seed| by_scheme(name, LOSS, seed));
        (name, by_scheme(name, 0.0, 0), lossy)
    });
    let (rc_lossless, rc) = (by_rc(0.0, 0), mean(&|seed| by_rc(LOSS, seed)));
    vec![
        row(ec.0, ec.1, ec.2).must(ec.2 <= 1.1 * ec.1, "within 1.1 of the lossless time"),
        row(sr.0, sr.1, sr.2),
        row("RC, merged", rc_lossless, rc).must(rc >= 3.0 * ec.2, "3 times coding's time or more"),
    ]
}

fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    if let Some(first) = rows.first() {
        out += &format!("{:<14}", "");
        for (name, _) in &first.values {
            out += &format!(" {:>width$}", name, width = name.len().max(10));
        }
        out += "  the paper\n";
    }
    let mut said = "";
    for row in rows {
        out += &format!("{:<14}", row.what);
        for (name, value) in &row.values {
            out += &format!(" {:>width$.2}", value, width = name.len().max(10));
        }
        out += &format!("  {}\n", if row.paper == said { "\"" } else { row.paper });
        said = row.paper;
    }
    out
}

fn to_json(rows: &[Row]) -> serde_json::Value {
    let row = |row: &Row| {
        let values: Vec<_> = row
            .values
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect();
        json!({ "what": row.what, "values": values, "paper": row.paper, "broken": row.broken })
    };
    json!({
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "ok": rows.iter().all(|row| row.broken.is_empty()),
    })
}
