//! OptiNIC's Figures 5 and 6 and the numbers in its text: collective operations over RC, selective
//! repeat and XP.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline::{SdrScheme, TimeoutRule};
use bowline_chart::{Axis, LineChart, Page, Series, Unit};
use bowline_sim::experiment::{
    Carrier, Collective, CollectivesConfig, CollectivesOutcome, collectives,
};
use serde_json::{Value, json};

use super::{RunArgs, jobs, make_dir, verdict};
use crate::output::{self, say, versioned};

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptinicFigure {
    Sizes,
    Transports,
    Loss,
}

const FIGURES: [(&str, OptinicFigure, &str); 3] = [
    ("optinic-fig5", OptinicFigure::Sizes, "collectives of 20 to 80 MB on 8 ranks, RC and XP"),
    ("optinic-fig6", OptinicFigure::Transports, "mean and p99 by transport, 8 to 64 ranks"),
    ("optinic-loss", OptinicFigure::Loss, "section 5.3.1: what more loss buys"),
];

/// The paper's claim for each figure. Its numbers are for 8 nodes at 25 Gbit/s.
fn paper(figure: OptinicFigure) -> &'static str {
    match figure {
        OptinicFigure::Sizes => {
            "paper: 1.6 to 2.5 times faster than RoCE in all of them, less than 1 % lost; standard \
             deviations of 35 (RoCE) and 12 ms"
        }
        OptinicFigure::Transports => {
            "paper: OptiNIC has the lowest mean and p99; IRN and SRNIC (selective repeat) a mean a little \
             below RoCE's and p99 of allreduce above 100 to 150 ms. It has no row for a selective repeat \
             that is told of losses at once. `sr-nack` is SDR's, made for long links: a message that loses its \
             last chunk is asked about after 30 ms. `xp exact` loses nothing either, and senders say what they \
             have sent: it is as fast as `xp`, and so nearly is `rc 1ms`. What RC loses here is its timer"
        }
        OptinicFigure::Loss => {
            "paper: 4 to 5 % of loss under a more aggressive timeout make large tensors up to 5 times \
             faster than RoCE"
        }
    }
}

/// The figure of this name.
pub(super) fn find(name: &str) -> Option<OptinicFigure> {
    FIGURES.iter().find(|(known, ..)| *known == name).map(|(_, figure, _)| *figure)
}

pub(super) fn list() -> String {
    FIGURES.iter().map(|(name, _, title)| format!("{name:<12} OptiNIC: {title}\n")).collect()
}

/// RC with an ACK timeout of 67 ms, which is usual for verbs programs. Communicators use 268 ms.
const RC: Carrier = Carrier::Rc(14);
/// RC with an ACK timeout of 1 ms, the shortest that RNICs support.
const RC_1MS: Carrier = Carrier::Rc(8);
const SR_NACK: Carrier = Carrier::Sdr(SdrScheme::SrNack);
const XP: Carrier = Carrier::Xp(10_000, TimeoutRule::Margin);
const XP_5: Carrier = Carrier::Xp(50_000, TimeoutRule::Paper);

const MB: u64 = 1_000_000;
/// Number of operations per row.
const OPERATIONS: u32 = 100;
const QUICK_OPERATIONS: u32 = 8;
/// The minimum speedup of XP over RC: mean and p99.
const MEAN_BAR: f64 = 1.6;
const P99_BAR: f64 = 2.0;

fn carrier_name(carrier: Carrier) -> &'static str {
    match carrier {
        RC_1MS => "rc 1ms",
        Carrier::Rc(_) => "rc",
        Carrier::Exact => "xp exact",
        Carrier::Sdr(scheme) => scheme.name(),
        XP_5 => "xp 5%",
        Carrier::Xp(..) => "xp",
    }
}

/// A row of a figure.
struct Row {
    config: CollectivesConfig,
    outcome: CollectivesOutcome,
}

impl Row {
    fn mean_ms(&self) -> f64 {
        let sum: u64 = self.outcome.times_ns.iter().sum();
        sum as f64 / self.outcome.times_ns.len() as f64 / 1e6
    }

    fn deviation_ms(&self) -> f64 {
        let mean = self.mean_ms();
        let squares = self.outcome.times_ns.iter().map(|ns| (*ns as f64 / 1e6 - mean).powi(2));
        (squares.sum::<f64>() / self.outcome.times_ns.len() as f64).sqrt()
    }

    fn p99_ms(&self) -> f64 {
        let mut times = self.outcome.times_ns.clone();
        times.sort_unstable();
        times[(times.len() * 99).div_ceil(100) - 1] as f64 / 1e6
    }

    /// Shares of the expected bytes: retransmitted, and missing at the end.
    fn shares(&self) -> [f64; 2] {
        let expected = self.outcome.expected_bytes.max(1) as f64;
        [self.outcome.repaired_bytes, self.outcome.missing_bytes].map(|n| n as f64 / expected)
    }

    fn dropped(&self) -> f64 {
        self.outcome.drops as f64 / self.outcome.packets.max(1) as f64
    }

    /// Whether the rows differ only in their carrier.
    fn is_beside(&self, other: &Row) -> bool {
        let of = |row: &Row| (row.config.collective, row.config.bytes, row.config.ranks);
        of(self) == of(other)
    }
}

fn configs(figure: OptinicFigure, args: &RunArgs) -> Vec<CollectivesConfig> {
    let all = [Collective::Allreduce, Collective::Allgather, Collective::ReduceScatter];
    let (collectives, sizes, ranks, carriers): (&[_], &[u64], &[u32], &[_]) = match figure {
        OptinicFigure::Sizes if args.quick => (&all[..1], &[20], &[8], &[RC, RC_1MS, XP]),
        OptinicFigure::Sizes => (&all, &[20, 40, 60, 80], &[8], &[RC, RC_1MS, XP]),
        OptinicFigure::Transports if args.quick => {
            (&all[2..], &[20], &[8], &[RC, RC_1MS, SR_NACK, Carrier::Exact, XP])
        }
        OptinicFigure::Transports => {
            (&all, &[20], &[8, 16, 32, 64], &[RC, RC_1MS, SR_NACK, Carrier::Exact, XP])
        }
        OptinicFigure::Loss if args.quick => (&all[..1], &[20], &[8], &[RC, RC_1MS, XP, XP_5]),
        OptinicFigure::Loss => (&all, &[20, 80], &[8], &[RC, RC_1MS, XP, XP_5]),
    };
    let default = if args.quick { QUICK_OPERATIONS } else { OPERATIONS };
    let operations = args.repetitions.unwrap_or(default) as usize;
    let mut configs = Vec::new();
    for collective in collectives {
        for ranks in ranks {
            for size in sizes {
                for carrier in carriers {
                    let config = CollectivesConfig::new(*collective, size * MB, *ranks, *carrier);
                    configs.push(CollectivesConfig { operations, ..config });
                }
            }
        }
    }
    configs
}

/// Runs all rows on `jobs` threads.
fn measure(
    configs: Vec<CollectivesConfig>,
    jobs: usize,
    progress: impl Fn() + Sync,
) -> Result<Vec<Row>, String> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(config) = configs.get(index) else { return outcomes };
            outcomes.push((index, collectives(config)));
            progress();
        }
    };
    let mut outcomes: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker does not panic")).collect()
    });
    outcomes.sort_by_key(|(index, _)| *index);
    let outcomes: Option<Vec<_>> = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    let outcomes = outcomes.ok_or("an operation has failed")?;
    Ok(configs.into_iter().zip(outcomes).map(|(config, outcome)| Row { config, outcome }).collect())
}

pub(super) fn run(figure: OptinicFigure, args: &RunArgs) -> Result<ExitCode, Box<dyn Error>> {
    if args.repetitions == Some(0) {
        return Err("--repetitions 0 measures nothing: give at least 1".into());
    }
    let configs = configs(figure, args);
    let bar = output::progress(configs.len() as u64, &args.name);
    let rows = measure(configs, jobs(args), || bar.inc(1));
    bar.finish_and_clear();
    let rows = rows?;
    let broken = broken(&rows);
    if let Some(dir) = &args.out {
        make_dir(dir)?;
        let json = to_json(figure, &rows, &broken).to_string();
        std::fs::write(dir.join(format!("{}.json", args.name)), json)?;
        std::fs::write(dir.join(format!("{}.html", args.name)), page(figure, &args.name, &rows))?;
    }
    if args.json {
        say(&versioned(to_json(figure, &rows, &broken)).to_string());
    } else {
        print!("{}", table(&rows));
        println!("{}", paper(figure));
        broken.iter().for_each(|broken| println!("DOES NOT HOLD: {broken}"));
    }
    Ok(verdict(args, broken.len()))
}

/// The speedup of a row over the corresponding RC row: mean and p99.
fn speedup(rows: &[Row], row: &Row) -> Option<[f64; 2]> {
    let rc = rows.iter().find(|rc| rc.config.carrier == RC && rc.is_beside(row))?;
    Some([rc.mean_ms() / row.mean_ms(), rc.p99_ms() / row.p99_ms()])
}

/// The thresholds that do not hold.
fn broken(rows: &[Row]) -> Vec<String> {
    let mut broken = Vec::new();
    for row in rows {
        let what = format!(
            "{} of {} MB, {} ranks, {}",
            row.config.collective.name(),
            row.config.bytes / MB,
            row.config.ranks,
            carrier_name(row.config.carrier)
        );
        let Carrier::Xp(max_loss_ppm, _) = row.config.carrier else { continue };
        if let Some([mean, p99]) = speedup(rows, row)
            && (mean < MEAN_BAR || p99 < P99_BAR)
        {
            broken.push(format!(
                "{what}: mean {mean:.2} and p99 {p99:.2} times better than rc's, where {MEAN_BAR} \
                 and {P99_BAR} are the least"
            ));
        }
        let [_, missing] = row.shares();
        if missing > f64::from(max_loss_ppm) / 1e6 {
            broken.push(format!("{what}: {:.3} % missing", missing * 100.0));
        }
    }
    broken
}

const HEAD: [&str; 12] = [
    "operation",
    "MB",
    "ranks",
    "transport",
    "ideal ms",
    "mean ms",
    "std ms",
    "p99 ms",
    "mean x",
    "p99 x",
    "dropped %",
    "missing %",
];

fn cells(rows: &[Row], row: &Row) -> Vec<String> {
    let config = &row.config;
    let better = speedup(rows, row);
    let times = |i: usize| better.map_or(String::new(), |better| format!("{:.2}", better[i]));
    vec![
        config.collective.name().to_owned(),
        (config.bytes / MB).to_string(),
        config.ranks.to_string(),
        carrier_name(config.carrier).to_owned(),
        format!("{:.2}", config.ideal_ns() / 1e6),
        format!("{:.2}", row.mean_ms()),
        format!("{:.2}", row.deviation_ms()),
        format!("{:.2}", row.p99_ms()),
        times(0),
        times(1),
        format!("{:.3}", row.dropped() * 100.0),
        format!("{:.3}", row.shares()[1] * 100.0),
    ]
}

fn table(rows: &[Row]) -> String {
    let line = |cells: Vec<String>| {
        let [first, rest @ ..] = &cells[..] else { return String::new() };
        let rest: String = rest.iter().map(|cell| format!(" {cell:>9}")).collect();
        format!("{first:<14}{rest}\n")
    };
    let mut out = line(HEAD.map(str::to_owned).to_vec());
    rows.iter().for_each(|row| out += &line(cells(rows, row)));
    out + "mean x, p99 x: how many times better than rc, which has an ACK timeout of 67 ms\n"
}

fn to_json(figure: OptinicFigure, rows: &[Row], broken: &[String]) -> Value {
    let row = |row: &Row| {
        let [repaired, missing] = row.shares();
        let better = speedup(rows, row);
        json!({
            "operation": row.config.collective.name(),
            "bytes": row.config.bytes,
            "ranks": row.config.ranks,
            "transport": carrier_name(row.config.carrier),
            "ideal_ms": row.config.ideal_ns() / 1e6,
            "mean_ms": row.mean_ms(),
            "std_ms": row.deviation_ms(),
            "p99_ms": row.p99_ms(),
            "mean_speedup": better.map(|better| better[0]),
            "p99_speedup": better.map(|better| better[1]),
            "dropped": row.dropped(),
            "repaired": repaired,
            "missing": missing,
        })
    };
    json!({
        "paper": paper(figure),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "broken": broken,
        "ok": broken.is_empty(),
    })
}

fn page(figure: OptinicFigure, name: &str, rows: &[Row]) -> String {
    let mut page = Page::new("Collectives with a deadline", &format!("bowline sim run {name}"));
    let all = [Collective::Allreduce, Collective::Allgather, Collective::ReduceScatter];
    let drawings: Vec<String> =
        all.into_iter().filter_map(|collective| chart(figure, collective, rows)).collect();
    page.charts(&drawings);
    let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(rows, row)).collect();
    page.table(&HEAD, &cells, None);
    page.paragraph(paper(figure));
    page.footer(&crate::made::source());
    page.html()
}

/// Mean and p99 of a collective by size or number of ranks, with a line for each transport.
fn chart(figure: OptinicFigure, collective: Collective, rows: &[Row]) -> Option<String> {
    let by_ranks = figure == OptinicFigure::Transports;
    let x = match by_ranks {
        true => Axis::linear("ranks", Unit::Number),
        false => Axis::linear("tensor", Unit::Bytes),
    };
    let mut chart = LineChart::new(collective.name(), x, Axis::log("time", Unit::Seconds));
    let of = |row: &&Row| row.config.collective == collective;
    let mut carriers: Vec<Carrier> = rows.iter().filter(of).map(|r| r.config.carrier).collect();
    carriers.dedup();
    let mut seen: Vec<Carrier> = Vec::new();
    for carrier in carriers {
        if seen.contains(&carrier) {
            continue;
        }
        seen.push(carrier);
        for (what, time) in [("mean", Row::mean_ms as fn(&Row) -> f64), ("p99", Row::p99_ms)] {
            let at = |row: &Row| match by_ranks {
                true => f64::from(row.config.ranks),
                false => row.config.bytes as f64,
            };
            let own = rows.iter().filter(of).filter(|row| row.config.carrier == carrier);
            let points = own.map(|row| (at(row), time(row) / 1e3)).collect();
            let name = format!("{}, {what}", carrier_name(carrier));
            chart.series.push(Series::line(&name, points));
        }
    }
    chart.source = crate::made::source();
    (!chart.series.is_empty()).then(|| chart.svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(carrier: Carrier, times_ms: &[u64]) -> Row {
        let outcome = CollectivesOutcome {
            times_ns: times_ms.iter().map(|ms| ms * 1_000_000).collect(),
            expected_bytes: 1_000_000,
            repaired_bytes: 0,
            missing_bytes: if carrier == XP { 9_000 } else { 0 },
            drops: 0,
            packets: 1,
        };
        Row { config: CollectivesConfig::new(Collective::Allreduce, MB, 8, carrier), outcome }
    }

    #[test]
    fn bars_are_of_mean_tail_and_promise() {
        let rows = [row(RC, &[16, 16]), row(XP, &[8, 8])];
        assert_eq!(broken(&rows), Vec::<String>::new());
        assert_eq!(speedup(&rows, &rows[1]), Some([2.0, 2.0]));
        let rows = [row(RC, &[16, 16]), row(XP, &[7, 9])];
        assert_eq!(broken(&rows).len(), 1, "the tail is not half as long");
        let mut rows = [row(RC, &[16, 16]), row(XP, &[8, 8])];
        rows[1].outcome.missing_bytes = 10_001;
        assert!(broken(&rows)[0].contains("missing"));
    }

    #[test]
    fn the_bars_hold_in_a_short_run() {
        let args = RunArgs { quick: true, repetitions: Some(3), ..RunArgs::of("optinic-fig5") };
        let rows = measure(configs(OptinicFigure::Sizes, &args), 1, || ()).unwrap();
        assert_eq!(broken(&rows), Vec::<String>::new());
        assert_eq!(table(&rows).lines().count(), rows.len() + 2);
    }

    #[test]
    fn every_row_has_rc_beside_it() {
        for (name, figure, _) in FIGURES {
            for quick in [false, true] {
                let args = RunArgs { quick, ..RunArgs::of(name) };
                let configs = configs(figure, &args);
                let rc = configs.iter().filter(|config| config.carrier == RC).count();
                let xp = configs.iter().filter(|config| config.carrier == XP).count();
                assert_eq!(rc, xp, "{name}");
                assert!(rc > 0, "{name}");
            }
        }
    }
}
