//! What the measurements come to.

use std::fmt::Write;
use std::time::Duration;

use bowline_bench_common::bars::{self, Bar};
use serde::Serialize;

/// Most times the ideal that each may take: mean of EC-MDS, its p99, p99 of SR with NACK.
const EC_MEAN_BAR: f64 = 1.30;
const EC_P99_BAR: f64 = 1.35;
const SR_NACK_P99_BAR: f64 = 1.8;

/// Completion times of one scheme.
#[derive(Serialize)]
pub(crate) struct Row {
    scheme: &'static str,
    messages: usize,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    mean_slowdown: f64,
    p99_slowdown: f64,
}

impl Row {
    pub(crate) fn new(scheme: &'static str, ideal_ms: f64, times: &[Duration]) -> Row {
        let mut ms: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let quantile = |q: f64| ms[((ms.len() as f64 * q).ceil() as usize).clamp(1, ms.len()) - 1];
        let mean_ms = ms.iter().sum::<f64>() / ms.len() as f64;
        Row {
            scheme,
            messages: ms.len(),
            mean_ms,
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            mean_slowdown: mean_ms / ideal_ms,
            p99_slowdown: quantile(0.99) / ideal_ms,
        }
    }
}

/// All schemes, and whether the bars hold.
#[derive(Serialize)]
pub(crate) struct Report {
    ideal_ms: f64,
    rows: Vec<Row>,
}

impl Report {
    pub(crate) fn new(ideal_ms: f64) -> Report {
        Report { ideal_ms, rows: Vec::new() }
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    fn bars(&self) -> Vec<Bar> {
        let of = |scheme: &str, value: fn(&Row) -> f64| {
            self.rows.iter().find(|row| row.scheme == scheme).map_or(f64::NAN, value)
        };
        let bar = |name: &str, value: f64, most: f64| Bar::at_most(name, value, most);
        vec![
            bar("ec_mds_mean_slowdown", of("ec-mds", |r| r.mean_slowdown), EC_MEAN_BAR),
            bar("ec_mds_p99_slowdown", of("ec-mds", |r| r.p99_slowdown), EC_P99_BAR),
            bar("sr_nack_p99_slowdown", of("sr-nack", |r| r.p99_slowdown), SR_NACK_P99_BAR),
        ]
    }

    pub(crate) fn holds(&self) -> bool {
        bars::hold(&self.bars())
    }

    pub(crate) fn table(&self) -> String {
        let mut text = format!("ideal: {:.1} ms\n", self.ideal_ms);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<10} {:>8} {:>10} {:>10} {:>10} {:>8} {:>8}",
            "scheme", "messages", "mean ms", "p50 ms", "p99 ms", "mean x", "p99 x"
        );
        for row in &self.rows {
            let _ = writeln!(
                text,
                "{:<10} {:>8} {:>10.1} {:>10.1} {:>10.1} {:>8.3} {:>8.3}",
                row.scheme,
                row.messages,
                row.mean_ms,
                row.p50_ms,
                row.p99_ms,
                row.mean_slowdown,
                row.p99_slowdown
            );
        }
        text + &bars::text(&self.bars())
    }

    pub(crate) fn json(&self) -> String {
        bars::json(&self.bars(), self)
    }
}
