//! One message on one link: the table, the recommendation, and both as JSON.

use std::fmt::Write;

use bowline_chart::text;
use bowline_plan::Transfer;
use serde_json::{Value, json};

use super::advice::{Advice, loss_kind};
use super::args::{PlanArgs, named};
use super::cores::CodingRates;
use super::row::Row;

/// What is said about one point.
pub(super) struct Point {
    pub(super) transfer: Transfer,
    pub(super) rows: Vec<Row>,
    pub(super) advice: Advice,
}

impl Point {
    pub(super) fn new(args: &PlanArgs) -> Result<Point, String> {
        let transfer = args.transfer()?;
        let schemes = args.schemes()?;
        let rates = CodingRates::load(&schemes, args.message().chunk_bytes);
        let mut rows = Vec::new();
        for scheme in &schemes {
            let mut row = Row::new(&transfer, scheme, &rates)?;
            if let Some(samples) = args.samples {
                row.sample(&transfer, scheme, samples, args.seed)?;
            }
            rows.push(row);
        }
        let advice = Advice::new(&transfer, &args.candidates()?, args.goal()).map_err(named)?;
        Ok(Point { transfer, rows, advice })
    }

    /// The link and the message in a line.
    pub(super) fn headline(&self) -> String {
        let (link, message) = (self.transfer.link(), self.transfer.message());
        let kind = loss_kind(&link.loss);
        let loss = bowline_plan::Axis::Loss.value(&self.transfer);
        let mut line = format!(
            "{} over {}, {} round trip, {} {kind}",
            text::size(message.bytes as f64),
            text::rate(link.bandwidth_bps),
            text::time(link.rtt_s),
            text::loss(loss),
        );
        if !matches!(link.loss, bowline_plan::Loss::Chunk(_)) {
            let chunk = text::size(message.chunk_bytes as f64);
            let lost = text::loss(self.transfer.chunk_loss());
            let _ = write!(line, " ({lost} of chunks of {chunk})");
        }
        line
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", self.headline());
        let _ = writeln!(out, "ideal: {}\n", text::time(self.transfer.ideal_s()));
        let _ = writeln!(
            out,
            "{:<12} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7}",
            "scheme", "mean", "p50", "p99", "p99.9", "slowdown", "at p99.9", "overhead", "cores"
        );
        for row in &self.rows {
            let mark = if row.name == self.advice.scheme { "  <" } else { "" };
            let cores = row.cores.map_or("-".to_owned(), text::digits);
            let _ = writeln!(
                out,
                "{:<12} {:>10} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9} {:>7}{mark}",
                row.name,
                text::time(row.times.mean_s),
                text::time(row.times.p50_s),
                text::time(row.times.p99_s),
                text::time(row.times.p999_s),
                text::factor(row.slowdown),
                text::factor(row.p999_slowdown),
                text::share(row.bandwidth_overhead),
                cores,
            );
            if let Some(drawn) = &row.sampled {
                let _ = writeln!(
                    out,
                    "{:<12} {:>10} {:>10} {:>10} {:>10}",
                    "  drawn",
                    text::time(drawn.mean_s),
                    text::time(drawn.p50_s),
                    text::time(drawn.p99_s),
                    text::time(drawn.p999_s),
                );
            }
        }
        if let Some(missing) = self.rows.iter().find(|row| row.name == "best-effort") {
            let share = text::share(missing.repair_probability);
            let _ = writeln!(out, "best-effort leaves something out of {share} of messages");
        }
        let _ = writeln!(out, "\nrecommended: {}", self.advice.reason);
        for line in self.advice.crossover_lines(&self.transfer) {
            let _ = writeln!(out, "  {line}");
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let (link, message) = (self.transfer.link(), self.transfer.message());
        json!({
            "bandwidth_bps": link.bandwidth_bps,
            "rtt_s": link.rtt_s,
            "chunk_loss": self.transfer.chunk_loss(),
            "size_bytes": message.bytes,
            "chunk_bytes": message.chunk_bytes,
            "mtu_bytes": message.mtu_bytes,
            "chunks": self.transfer.chunks(),
            "ideal_s": self.transfer.ideal_s(),
            "recommended": self.advice.scheme,
            "reason": self.advice.reason,
            "crossovers": self.advice.json(),
            "schemes": self.rows,
        })
    }
}
