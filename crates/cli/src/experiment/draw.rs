//! An experiment's charts, and the HTML page that contains them.

use std::io;
use std::path::{Path, PathBuf};

use bowline_chart::{Axis as Drawn, Heatmap, LineChart, Page, Series, Style, Unit, scheme_colour};

use super::plan::{Axis, Metric, Statistic};
use super::report::{Report, Values};
use super::sweep::Row;
use crate::made;

/// Writes all files into a directory, and returns their paths.
pub(super) fn write(report: &Report<'_>, dir: &Path) -> io::Result<Vec<PathBuf>> {
    let drawings = drawings(report);
    let mut files = vec![(format!("{}.json", report.name), report.json().to_string())];
    for (i, svg) in drawings.iter().enumerate() {
        let number = if i == 0 { String::new() } else { format!("-{}", i + 1) };
        files.push((format!("{}{number}.svg", report.name), svg.clone()));
    }
    files.push((format!("{}.html", report.name), page(report, &drawings)));
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text)?;
        paths.push(path);
    }
    Ok(paths)
}

fn page(report: &Report<'_>, drawings: &[String]) -> String {
    let plan = report.plan;
    let mut page = Page::new(&plan.title, &format!("bowline sim run {}", report.name));
    page.paragraph(&plan.about);
    page.paragraph("Lines show the model; dots show the protocol code in virtual time.");
    page.charts(drawings);
    page.heading("Where the code ran");
    let (head, cells) = report.cells(false);
    let labels = report.rows.iter().filter(|row| row.simulated.is_some());
    let axis = plan.x.chart_axis().label;
    let head: Vec<&str> = ["scheme", &axis].into_iter().chain(head).collect();
    let rows: Vec<Vec<String>> = labels
        .zip(cells)
        .map(|(row, cells)| {
            let label = [report.series(row), plan.x.text(plan.x.value(&row.point))];
            label.into_iter().chain(cells).collect()
        })
        .collect();
    page.table(&head, &rows, None);
    let broken = report.broken();
    if !broken.is_empty() {
        page.heading("What does not hold").list(&broken);
    }
    page.footer(&format!(
        "{}. Chunks are packets of 256 bytes and rates are scaled to match: what counts are ratios. \
         ± is the standard error of the code's mean, off its distance from the model's.",
        made::source()
    ));
    page.html()
}

fn drawings(report: &Report<'_>) -> Vec<String> {
    match (report.plan.metric, report.others().as_slice()) {
        (Metric::Speedup, [y]) if *y != Axis::Datacenters => {
            let of = |title: &str, value: fn(Values) -> Option<f64>| {
                heatmap(report, *y, title, value).svg()
            };
            vec![of("model", |v| Some(v.model)), of("code", |v| v.simulated)]
        }
        _ => vec![lines(report).svg()],
    }
}

fn lines(report: &Report<'_>) -> LineChart {
    let plan = report.plan;
    let statistic = match plan.statistic {
        Statistic::Mean => "mean",
        Statistic::P999 => "99.9th percentile of",
    };
    let y = match plan.metric {
        Metric::Slowdown => Drawn::log(&format!("{statistic} slowdown"), Unit::Factor),
        Metric::Speedup => Drawn::linear(&format!("{statistic} speedup"), Unit::Factor),
        Metric::ChunkLoss => Drawn::log("chunk loss", Unit::Probability),
    };
    let mut chart = LineChart::new(&plan.title, plan.x.chart_axis(), y);
    chart.source = made::source();
    let mut names: Vec<(String, &str)> = Vec::new();
    for row in &report.rows {
        let name = report.series(row);
        if report.values(row).is_some() && names.iter().all(|(seen, _)| *seen != name) {
            names.push((name, &row.point.scheme));
        }
    }
    // A scheme has its own colour, unless it has several lines in the chart.
    let is_single = |scheme: &str| names.iter().filter(|(_, other)| *other == scheme).count() == 1;
    let by_scheme = names.iter().all(|(_, scheme)| is_single(scheme));
    for (i, (name, scheme)) in names.iter().enumerate() {
        let colour = if by_scheme { scheme_colour(scheme) } else { i };
        let rows = || report.rows.iter().filter(|row| report.series(row) == *name);
        let point = |row: &Row, value: f64| (plan.x.value(&row.point), value);
        let mut model: Vec<(f64, f64)> =
            rows().filter_map(|row| Some(point(row, report.values(row)?.model))).collect();
        model.sort_by(|a, b| a.0.total_cmp(&b.0));
        let code: Vec<(f64, f64)> =
            rows().filter_map(|row| Some(point(row, report.values(row)?.simulated?))).collect();
        chart.series.push(Series::line(name, model).coloured(colour));
        if !code.is_empty() {
            chart.series.push(Series::line("", code).styled(Style::Dots).coloured(colour));
        }
    }
    chart
}

fn heatmap(report: &Report<'_>, y: Axis, title: &str, value: fn(Values) -> Option<f64>) -> Heatmap {
    let x = report.plan.x;
    let found: Vec<(f64, f64, f64)> = report
        .rows
        .iter()
        .filter_map(|row| {
            let value = value(report.values(row)?)?;
            Some((x.value(&row.point), y.value(&row.point), value))
        })
        .collect();
    let along = |of: fn(&(f64, f64, f64)) -> f64| {
        let mut values: Vec<f64> = found.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    };
    let (xs, ys) = (along(|f| f.0), along(|f| f.1));
    let at = |x: f64, y: f64| found.iter().find(|f| f.0 == x && f.1 == y).map_or(f64::NAN, |f| f.2);
    let rows = ys.iter().map(|y| xs.iter().map(|x| at(*x, *y)).collect()).collect();
    let schemes: Vec<String> = {
        let mut names: Vec<String> = report.rows.iter().map(|r| r.point.scheme_text()).collect();
        names.dedup();
        names
    };
    let side = |i: usize| schemes.get(i).cloned().unwrap_or_default();
    Heatmap {
        title: format!("{}: {title}", report.plan.title),
        x: x.chart_axis(),
        y: y.chart_axis(),
        xs,
        ys,
        rows,
        sides: (format!("{} is faster", side(0)), format!("{} is faster", side(1))),
        here: None,
        source: made::source(),
    }
}
