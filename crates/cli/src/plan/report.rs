//! One page for a design review.

use bowline_chart::{Axis as ChartAxis, LineChart, Page, Unit, text};
use bowline_plan::{Axis, Completion, Scheme};
use bowline_planner::{Point, Question, Shown, Sweep, scheme_series};

use super::allreduce::Ring;
use super::args::named;
use super::heatmap;

/// The whole page; `source` is the command and the date.
pub(super) fn html(
    question: &Question,
    point: &Point,
    ring: Option<&Ring>,
    source: &str,
) -> Result<String, String> {
    let mut page = Page::new("Which reliability scheme suits this link", &point.headline());
    page.lead(&format!("Take {}", point.advice.reason));
    summary(&mut page, point);
    let schemes = question.schemes().map_err(named)?;
    if let Some(ring) = ring {
        page.heading("Ring allreduce").paragraph(&ring.headline());
        page.table(&Ring::HEAD, &ring.cells(), None);
        page.paragraph(
            "The bound is (2N − 2) times the mean of one write; no schedule of the ring is faster \
             in the mean.",
        );
    }
    page.heading("How it changes with loss, size, distance and bandwidth");
    page.paragraph("Relative to the ideal time at the same point: the time without loss.");
    let mut charts = Vec::new();
    for axis in [Axis::Loss, Axis::Size, Axis::Distance, Axis::Bandwidth] {
        let sweep = Sweep::new(question, axis).map_err(named)?;
        charts.push(sweep.chart(Shown::Mean).svg());
        charts.push(sweep.chart(Shown::Tail).svg());
    }
    page.charts(&charts);
    page.heading("Where coding leads, and the tail of one message");
    page.charts(&[heatmap(question)?.svg(), tail(point, &schemes).svg()]);
    numbers(&mut page, point);
    page.footer(&format!(
        "{source}. bowline {}. Completion is from the first chunk's injection until the sender has the \
         last acknowledgement. Laws of the SDR-RDMA paper, section 4.2 and appendices A to C; \
         docs/plan.md has each definition and what the model leaves out.",
        env!("CARGO_PKG_VERSION")
    ));
    Ok(page.html())
}

fn summary(page: &mut Page, point: &Point) {
    let highlight = point.rows.iter().position(|row| row.name == point.advice.scheme);
    page.table(&Point::HEAD, &point.cells(), highlight);
    let missing = point.rows.iter().find(|row| row.name == "best-effort");
    if let Some(row) = missing {
        let share = text::share(row.repair_probability);
        page.paragraph(&format!("Best effort leaves something out of {share} of messages."));
    }
    page.paragraph(&format!("Run it by {}.", point.advice.command.replace('`', "")));
    page.heading("What each scheme needs at the other end").list(&point.needs);
    let lines = point.advice.crossover_lines(&point.transfer);
    if !lines.is_empty() {
        page.heading("Where the answer changes").list(&lines);
    }
}

/// Share of messages that are not complete yet, by time.
fn tail(point: &Point, schemes: &[Scheme]) -> LineChart {
    const POINTS: usize = 240;
    const LEAST: f64 = 1e-5;
    let laws: Vec<(&str, Completion)> = schemes
        .iter()
        .filter(|scheme| scheme.is_reliable() && !matches!(scheme, Scheme::GoBackN))
        .filter_map(|scheme| Some((scheme.name(), point.transfer.completion(scheme).ok()?)))
        .collect();
    let first_s = point.transfer.ideal_s() * 0.98;
    let last_s = laws.iter().map(|(_, law)| law.quantile_s(1.0 - LEAST)).fold(first_s, f64::max);
    let mut chart = LineChart::new(
        "Share of messages not complete, by time",
        ChartAxis::linear("time", Unit::Seconds).over(first_s, last_s * 1.01),
        ChartAxis::log("share of messages", Unit::Probability).over(LEAST, 1.0),
    );
    for (name, law) in &laws {
        let at = |i: usize| first_s + (last_s * 1.01 - first_s) * i as f64 / POINTS as f64;
        let points = (0..=POINTS).map(|i| (at(i), (1.0 - law.cdf(at(i))).max(LEAST / 10.0)));
        chart.series.push(scheme_series(name, points.collect()));
    }
    chart
}

fn numbers(page: &mut Page, point: &Point) {
    let transfer = &point.transfer;
    let (link, message) = (transfer.link(), transfer.message());
    let bdp_bytes = link.bandwidth_bps * link.rtt_s / 8.0;
    let rows = [
        ("Message", format!("{} ({} bytes)", text::size(message.bytes as f64), message.bytes)),
        ("Chunks (M)", transfer.chunks().to_string()),
        (
            "Chunk, MTU",
            format!("{}, {} B", text::size(message.chunk_bytes as f64), message.mtu_bytes),
        ),
        ("Injection of a chunk (T_INJ)", text::time(transfer.inject_s())),
        ("Bandwidth", text::rate(link.bandwidth_bps)),
        ("Round trip", text::time(link.rtt_s)),
        ("Bandwidth-delay product", text::size(bdp_bytes)),
        ("Chunk loss (P_drop)", text::loss(transfer.chunk_loss())),
        ("Ideal completion", text::time(transfer.ideal_s())),
    ];
    let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
    page.heading("The numbers behind it").table(&["", ""], &rows, None);
    let exact: Vec<Vec<String>> = point
        .rows
        .iter()
        .map(|row| {
            let t = row.times;
            let mut cells = vec![row.name.to_owned()];
            cells.extend([t.mean_s, t.p50_s, t.p99_s, t.p999_s].map(|s| format!("{s:.6}")));
            cells.push(format!("{:.3e}", row.repair_probability));
            cells
        })
        .collect();
    let head = ["scheme", "mean", "p50", "p99", "p99.9", "P(something is sent again)"];
    page.paragraph("The same times in full, in seconds:").table(&head, &exact, None);
}
