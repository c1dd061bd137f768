//! The results, and the conclusions from them.

use std::fmt::Write;

use serde::Serialize;

use super::allreduce::AllreduceRow;
use super::link::Link;
use super::load::Load;
use super::scheme::Outcome;
use crate::output::JSON_VERSION;

/// One scheme over one link.
#[derive(Serialize)]
pub(super) struct Row {
    link: &'static str,
    scheme: &'static str,
    rtt_ms: f64,
    loss: f64,
    rate_gbps: Option<f64>,
    messages: usize,
    message_bytes: usize,
    goodput_gbps: f64,
    completion_mean_ms: f64,
    completion_p99_ms: f64,
    sent_packets: u64,
    /// Packets that the link lost, in both directions.
    lost_packets: u64,
    retransmitted_packets: u64,
    wrong_bytes: u64,
    verified: bool,
    /// Time from the NIC's failure until another one sends; absent if no NIC was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    handover_ms: Option<f64>,
}

impl Row {
    pub(super) fn new(link: &Link, scheme: &'static str, load: &Load, outcome: &Outcome) -> Row {
        let mut times_ms: Vec<f64> =
            outcome.completion_times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
        times_ms.sort_by(f64::total_cmp);
        let messages = times_ms.len();
        let p99 = times_ms.get((messages * 99).div_ceil(100).saturating_sub(1));
        let bits = (messages * load.message_bytes) as f64 * 8.0;
        Row {
            link: link.name,
            scheme,
            rtt_ms: link.rtt.as_secs_f64() * 1e3,
            loss: link.loss,
            rate_gbps: link.rate_gbps(),
            messages,
            message_bytes: load.message_bytes,
            goodput_gbps: bits / outcome.elapsed.as_secs_f64().max(1e-9) / 1e9,
            completion_mean_ms: times_ms.iter().sum::<f64>() / messages.max(1) as f64,
            completion_p99_ms: p99.copied().unwrap_or(0.0),
            sent_packets: outcome.sent_packets,
            lost_packets: outcome.lost_packets,
            retransmitted_packets: outcome.retransmitted_packets,
            wrong_bytes: outcome.wrong_bytes,
            verified: outcome.wrong_bytes == 0 && messages > 0,
            handover_ms: outcome.handover.map(|t| t.as_secs_f64() * 1e3),
        }
    }

    /// The row as text.
    pub(super) fn text(&self) -> String {
        format!(
            "{:<30} {:<15} {:>3}x{:>2} MiB {:>6.3} Gb/s {:>8.1} ms {:>7.1} ms {:>8} {:>14}  {}",
            self.link,
            self.scheme,
            self.messages,
            self.message_bytes >> 20,
            self.goodput_gbps,
            self.completion_mean_ms,
            self.completion_p99_ms,
            self.lost_packets,
            self.retransmitted_packets,
            if self.verified { "yes" } else { "NO" },
        )
    }

    /// Share of the link's rate that became goodput.
    fn utilisation(&self) -> Option<f64> {
        self.rate_gbps.map(|rate| self.goodput_gbps / rate)
    }
}

/// All rows of a run.
#[derive(Serialize)]
pub(super) struct Table {
    version: u32,
    seed: u64,
    rows: Vec<Row>,
    conclusion: String,
    allreduce: Vec<AllreduceRow>,
}

impl Table {
    pub(super) fn new(seed: u64) -> Table {
        Table {
            version: JSON_VERSION,
            seed,
            rows: Vec::new(),
            conclusion: String::new(),
            allreduce: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, row: Row) {
        self.rows.push(row);
        self.conclusion = format!("{}{}", conclude(&self.rows), survived(&self.rows));
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn add_allreduce(&mut self, row: AllreduceRow) {
        self.allreduce.push(row);
    }

    /// Whether every byte of every row arrived unchanged.
    pub(super) fn all_verified(&self) -> bool {
        self.rows.iter().all(|row| row.verified)
            && self.allreduce.iter().all(AllreduceRow::is_verified)
    }

    /// The whole table as one JSON object on one line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("a table has nothing that JSON lacks")
    }

    /// A summary of the results.
    pub(super) fn conclusion(&self) -> String {
        format!("\n{}", self.conclusion)
    }
}

/// The column names.
pub(super) fn header() -> String {
    format!(
        "{:<30} {:<15} {:>9} {:>12} {:>11} {:>10} {:>8} {:>14}  verified",
        "link", "scheme", "messages", "goodput", "mean", "p99", "lost", "retransmitted"
    )
}

/// Summarizes the numbers in a sentence.
fn conclude(rows: &[Row]) -> String {
    // Rows in which a NIC was killed measure something else.
    let compared = || rows.iter().filter(|row| row.handover_ms.is_none());
    let limited = || compared().filter_map(|row| row.utilisation().map(|u| (u, row)));
    let by_use = |a: &(f64, &Row), b: &(f64, &Row)| a.0.total_cmp(&b.0);
    let (Some((best_use, best)), Some((worst_use, worst))) =
        (limited().max_by(by_use), limited().min_by(by_use))
    else {
        return "No limited link was measured, so there is nothing to compare.".to_owned();
    };
    if worst_use > 0.8 * best_use {
        return format!(
            "{} loses little to distance and loss here: {:.0} % of the rate at best, {:.0} % at worst.",
            worst.scheme,
            best_use * 100.0,
            worst_use * 100.0
        );
    }
    let lost = worst.loss * (worst.sent_packets as f64);
    let per_loss = worst.retransmitted_packets as f64 / lost.max(1.0);
    let mut text = format!(
        "{} uses {:.0} % of the rate over \"{}\" but {:.0} % over \"{}\": each lost packet costs \
         about {per_loss:.0} packets sent again, and the slowest messages take {:.1} times as long.",
        worst.scheme,
        best_use * 100.0,
        best.link,
        worst_use * 100.0,
        worst.link,
        worst.completion_p99_ms / best.completion_p99_ms.max(1e-9),
    );
    let others = || limited().filter(|(_, r)| r.link == worst.link && r.scheme != worst.scheme);
    let fastest = others().max_by(by_use);
    let surest = others().min_by(|a, b| a.1.completion_p99_ms.total_cmp(&b.1.completion_p99_ms));
    if let (Some((fast_use, fast)), Some((_, sure))) = (fastest, surest) {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\nThere, {} uses {:.0} % of it, and with {} 99 of 100 messages take no longer than \
             {:.0} ms instead of {:.0}.",
            fast.scheme,
            fast_use * 100.0,
            sure.scheme,
            sure.completion_p99_ms,
            worst.completion_p99_ms,
        );
    }
    text
}

/// Says in a sentence what happened to a connection whose NIC was killed.
fn survived(rows: &[Row]) -> String {
    let Some((row, ms)) = rows.iter().find_map(|row| Some((row, row.handover_ms?))) else {
        return String::new();
    };
    format!(
        "\nWhen the sending NIC was killed halfway, {} continued over another one {ms:.1} ms \
         later, and lost nothing.",
        row.scheme
    )
}
