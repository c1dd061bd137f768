//! One message on one link: the table, the recommendation, and both as JSON.

use std::fmt::Write;

use bowline_chart::text;
use bowline_plan::{PlanError, Scheme, Transfer};
use serde_json::{Value, json};

use crate::advice::{Advice, loss_kind};
use crate::needs;
use crate::question::Question;
use crate::row::Row;

/// The answer for one point.
pub struct Point {
    /// The message on its link.
    pub transfer: Transfer,
    /// The table.
    pub rows: Vec<Row>,
    /// What the schemes of the rows require of the other end.
    pub needs: Vec<String>,
    /// The recommendation for one receiver.
    pub advice: Advice,
}

impl Point {
    /// Computes the answer. `cores` returns how many cores a scheme's code takes, where that is
    /// known.
    ///
    /// # Errors
    /// What cannot be planned.
    pub fn new(
        question: &Question,
        cores: &dyn Fn(&Scheme) -> Option<f64>,
    ) -> Result<Point, PlanError> {
        let transfer = question.transfer()?;
        let schemes = question.schemes()?;
        let row = |scheme: &Scheme| Row::new(&transfer, scheme, cores(scheme));
        let rows = schemes.iter().map(row).collect::<Result<_, _>>()?;
        let advice = Advice::new(&transfer, &question.candidates()?, question.goal)?;
        Ok(Point { transfer, rows, needs: needs::lines(&schemes), advice })
    }

    /// The link and the message in a line.
    pub fn headline(&self) -> String {
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

    /// Names of the table's columns.
    pub const HEAD: [&'static str; 9] =
        ["scheme", "mean", "p50", "p99", "p99.9", "slowdown", "at p99.9", "overhead", "cores"];

    /// The table, scheme by scheme.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let row = |row: &Row| {
            let t = row.times;
            let mut cells = vec![row.name.to_owned()];
            cells.extend([t.mean_s, t.p50_s, t.p99_s, t.p999_s].map(text::time));
            cells.extend([row.slowdown, row.p999_slowdown].map(text::factor));
            cells.push(text::share(row.bandwidth_overhead));
            cells.push(row.cores.map_or("-".to_owned(), text::digits));
            cells
        };
        self.rows.iter().map(row).collect()
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", self.headline());
        let _ = writeln!(out, "ideal: {}\n", text::time(self.transfer.ideal_s()));
        let head = Self::HEAD.map(str::to_owned).to_vec();
        let _ = writeln!(out, "{}", line(&head));
        for (row, cells) in self.rows.iter().zip(self.cells()) {
            let mark = if row.name == self.advice.scheme { "  <" } else { "" };
            let _ = writeln!(out, "{}{mark}", line(&cells));
            if let Some(drawn) = &row.sampled {
                let times = [drawn.mean_s, drawn.p50_s, drawn.p99_s, drawn.p999_s].map(text::time);
                let cells = [&["  drawn".to_owned()][..], &times].concat();
                let _ = writeln!(out, "{}", line(&cells));
            }
        }
        if let Some(missing) = self.rows.iter().find(|row| row.name == "best-effort") {
            let share = text::share(missing.repair_probability);
            let _ = writeln!(out, "best-effort leaves something out of {share} of messages");
        }
        let _ = writeln!(out, "\nneeded at the other end");
        for line in &self.needs {
            let _ = writeln!(out, "  {line}");
        }
        let _ = writeln!(out, "\nrecommended: {}", self.advice.reason);
        let _ = writeln!(out, "  run it by {}", self.advice.command);
        for line in self.advice.crossover_lines(&self.transfer) {
            let _ = writeln!(out, "  {line}");
        }
        out
    }

    /// The JSON form: see `docs/plan.md`.
    pub fn json(&self) -> Value {
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
            "command": self.advice.command,
            "crossovers": self.advice.json(),
            "schemes": self.rows,
        })
    }
}

/// A line of the table.
fn line(cells: &[String]) -> String {
    let mut out = format!("{:<12}", cells[0]);
    for (i, cell) in cells.iter().enumerate().skip(1) {
        let width = if i <= 4 { 10 } else { 9 };
        // Writing to a String cannot fail.
        let _ = write!(out, " {cell:>width$}");
    }
    out
}
