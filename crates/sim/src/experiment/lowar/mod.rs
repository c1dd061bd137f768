//! Reproduces figures 9 to 13 of the LoWAR paper with the real engines: one connection with and
//! without FEC.

mod goodput;
mod latency;

use core::fmt;

use bowline_fec::FecMode;
use bowline_link::{LinkConfig, Loss, Prob};
use bowline_nic::Mtu;

use super::{Goodput, GoodputConfig};

/// Which figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowarFigure {
    /// Goodput against loss at 40 and 80 ms.
    Goodput,
    /// Completion times of messages of 1 MB.
    Completion,
    /// Bursts of losses under LoWAR(64, 8).
    Bursts,
    /// Small messages.
    Small,
    /// Latency that FEC adds, without losses and with one.
    Latency,
}

/// A figure as numbers.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured, in which unit.
    pub title: &'static str,
    /// Names of the columns.
    pub columns: &'static [&'static str],
    /// The rows.
    pub rows: Vec<FigureRow>,
    /// What must hold.
    pub bars: Vec<FigureBar>,
}

/// A row of a figure.
#[derive(Clone, Debug)]
pub struct FigureRow {
    /// One number per column.
    pub values: Vec<f64>,
    /// What the paper says about it, if anything.
    pub paper: &'static str,
}

/// A number with a required minimum.
#[derive(Clone, Debug)]
pub struct FigureBar {
    /// What it is.
    pub what: String,
    /// The number.
    pub value: f64,
    /// The least that it may be.
    pub least: f64,
}

impl FigureBar {
    /// Whether the number reaches the minimum.
    pub fn holds(&self) -> bool {
        self.value >= self.least
    }
}

/// A connection gave up, so there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaveUp;

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a connection gave up")
    }
}

impl std::error::Error for GaveUp {}

/// Measures a figure; `quick` measures its trend only.
///
/// # Errors
/// If a connection gives up.
pub fn lowar(figure: LowarFigure, seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    match figure {
        LowarFigure::Goodput => goodput::against_loss(seed, quick),
        LowarFigure::Completion => latency::completion(seed, quick),
        LowarFigure::Bursts => goodput::bursts(seed, quick),
        LowarFigure::Small => goodput::small(seed, quick),
        LowarFigure::Latency => latency::added(seed, quick),
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let width = |name: &str| name.len().max(9);
        for name in self.columns {
            write!(f, " {name:>0$}", width(name))?;
        }
        let any_paper = self.rows.iter().any(|row| !row.paper.is_empty());
        writeln!(f, "{}", if any_paper { "   paper" } else { "" })?;
        for row in &self.rows {
            for (name, value) in self.columns.iter().zip(&row.values) {
                write!(f, " {value:>0$.3}", width(name))?;
            }
            let gap = if row.paper.is_empty() { "" } else { "   " };
            writeln!(f, "{gap}{}", row.paper)?;
        }
        Ok(())
    }
}

/// 10 Gbit/s, as in all of the paper's figures.
const RATE_BPS: u64 = 10_000_000_000;

/// One connection that WRITEs 1 MiB at a time, with slightly more than a bandwidth-delay product in
/// flight.
pub fn wan(
    seed: u64,
    bandwidth_bps: u64,
    rtt_us: u64,
    loss: Loss,
    fec: Option<FecMode>,
) -> GoodputConfig {
    let bdp = (bandwidth_bps / 8 * rtt_us / 1_000_000) as u32;
    let message_bytes = 1 << 20;
    // Never less than a message.
    let window_bytes = (bdp / 100 * 102).max(message_bytes);
    GoodputConfig {
        seed,
        cable: LinkConfig {
            rate_bps: Some(bandwidth_bps),
            delay_ns: rtt_us * 500,
            // Holds twice what is in flight, so that only the requested losses occur.
            queue_bytes: u64::from(bdp * 2).max(16 << 20),
            ecn: None,
        },
        loss,
        changes: &[],
        fec,
        mtu: Mtu::B1024,
        message_bytes,
        messages: 1_000,
        depth: window_bytes / message_bytes + 8,
        window_bytes,
        timeout: 18,
    }
}

impl Goodput {
    /// Payload bits per second once the link is full: excludes the first round trip.
    pub fn steady_bps(&self, config: &GoodputConfig) -> f64 {
        let skip = self.progress.len() / 10;
        let (first, last) = (self.progress[skip].0, self.progress[self.progress.len() - 1].0);
        let messages = (self.progress.len() - 1 - skip) as f64;
        messages * f64::from(config.message_bytes) * 8.0 / (last.nanos_since(first) as f64 / 1e9)
    }
}

fn run(config: &GoodputConfig) -> Result<Goodput, GaveUp> {
    super::goodput(config).ok_or(GaveUp)
}

fn gbps(config: &GoodputConfig) -> Result<f64, GaveUp> {
    Ok(run(config)?.steady_bps(config) / 1e9)
}

fn iid(loss: f64) -> Loss {
    if loss == 0.0 { Loss::None } else { Loss::Iid(Prob::new(loss)) }
}

fn code(r: u8, c: u8) -> Option<FecMode> {
    bowline_fec::Params::new(r, c).ok().map(FecMode::Fixed)
}

fn row(values: &[f64]) -> FigureRow {
    FigureRow { values: values.to_vec(), paper: "" }
}

fn bar(what: impl Into<String>, value: f64, least: f64) -> FigureBar {
    FigureBar { what: what.into(), value, least }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_loss_costs_a_block_and_none_costs_the_repairs() {
        let figure = lowar(LowarFigure::Latency, 1, true).unwrap();
        assert!(figure.bars.iter().all(FigureBar::holds), "{figure}\n{:?}", figure.bars);
        let text = figure.to_string();
        assert_eq!(text.lines().count(), 2 + figure.rows.len(), "{text}");
    }
}
