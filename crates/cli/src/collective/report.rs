//! Results, in the columns of nccl-tests and as JSON.

use std::net::IpAddr;

use bowline::{CommTransport, Communicator, Device};
use serde::Serialize;

use super::args::CollectiveArgs;
use crate::output::{JSON_VERSION, say};

/// The result for one size, in or out of place.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Half {
    time_us: f64,
    p99_us: f64,
    algbw_gbytes_per_s: f64,
    busbw_gbytes_per_s: f64,
    /// `None` if results were not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong: Option<u64>,
    /// The share of bytes that were missing, over XP.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
}

impl Half {
    pub(super) fn new(
        bytes: usize,
        mean_s: f64,
        p99_s: f64,
        bus_factor: f64,
        wrong: Option<u64>,
    ) -> Half {
        let algbw = bytes as f64 / mean_s / 1e9;
        Half {
            time_us: mean_s * 1e6,
            p99_us: p99_s * 1e6,
            algbw_gbytes_per_s: algbw,
            busbw_gbytes_per_s: algbw * bus_factor,
            wrong,
            loss: None,
        }
    }

    pub(super) fn with_loss(self, loss: f64) -> Half {
        Half { loss: Some(loss), ..self }
    }

    fn loss_text(&self) -> String {
        self.loss.map_or(String::new(), |loss| format!(" {:>9.4}", loss * 100.0))
    }

    fn text(&self) -> String {
        let wrong = self.wrong.map_or("N/A".to_owned(), |wrong| wrong.to_string());
        format!(
            "{:>10.2} {:>7.2} {:>7.2} {wrong:>6}",
            self.time_us, self.algbw_gbytes_per_s, self.busbw_gbytes_per_s
        )
    }
}

/// The result for one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) bytes: usize,
    pub(super) count: usize,
    pub(super) algorithm: &'static str,
    pub(super) out_of_place: Half,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) in_place: Option<Half>,
}

/// The results of a run so far.
#[derive(Serialize)]
pub(super) struct Report {
    version: u32,
    test: String,
    transport: &'static str,
    /// Whether packets are encrypted and authenticated.
    sealed: bool,
    ranks: u32,
    /// How many of them rank 0 reaches through memory.
    ranks_in_memory: u32,
    #[serde(rename = "type")]
    dtype: &'static str,
    redop: &'static str,
    root: i64,
    device: IpAddr,
    iterations: u32,
    rows: Vec<Row>,
    avg_busbw_gbytes_per_s: f64,
    /// Whether to print text: only rank 0 does, and not with `--json`.
    #[serde(skip)]
    talks: bool,
}

impl Report {
    pub(super) fn new(
        args: &CollectiveArgs,
        comm: &Communicator,
        device: &Device,
        talks: bool,
    ) -> Report {
        Report {
            version: JSON_VERSION,
            test: args.test.name(),
            transport: args.transport.name(),
            sealed: comm.is_sealed(),
            ranks: comm.size(),
            ranks_in_memory: comm.ranks_in_memory(),
            dtype: args.dtype.name(),
            redop: if args.test.reduces() { args.op.name() } else { "none" },
            root: if args.test.is_rooted() { args.root.into() } else { -1 },
            device: device.addr(),
            iterations: args.iters,
            rows: Vec::new(),
            avg_busbw_gbytes_per_s: 0.0,
            talks,
        }
    }

    /// Prints the parameters and the column names.
    pub(super) fn print_header(&self) {
        if !self.talks {
            return;
        }
        let Report { test, transport, ranks, ranks_in_memory, device, iterations, .. } = self;
        say(&format!(
            "# bowline collective {test}: {ranks} ranks over {transport}, {iterations} iterations"
        ));
        let by_packets = ranks - 1 - ranks_in_memory;
        say(&format!(
            "# rank 0 is at {device}; ranks that it reaches through memory: {ranks_in_memory}, \
             by packets: {by_packets}"
        ));
        let half = format!("{:>10} {:>7} {:>7} {:>6}", "time", "algbw", "busbw", "#wrong");
        let units = format!("{:>10} {:>7} {:>7} {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
        say(&format!("#{:>52}{:^33}   {:^33}", "", "out-of-place", "in-place"));
        let of_xp = |what: &str| match *transport == CommTransport::Xp.name() {
            true => format!(" {what:>9} {what:>9}"),
            false => String::new(),
        };
        say(&format!(
            "#{:>11} {:>11} {:>5} {:>7} {:>4} {:>8}  {half}   {half}  {:>10} {:>10}{}",
            "size",
            "count",
            "type",
            "redop",
            "root",
            "algo",
            "p99",
            "p99",
            of_xp("loss")
        ));
        say(&format!(
            "#{:>11} {:>11} {:>5} {:>7} {:>4} {:>8}  {units}   {units}  {:>10} {:>10}{}",
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "",
            "(us)",
            "(us)",
            of_xp("(%)")
        ));
    }

    /// Adds a result and prints it.
    pub(super) fn add(&mut self, row: Row) {
        if self.talks {
            let none = format!("{:>10} {:>7} {:>7} {:>6}", "", "", "", "");
            let in_place = row.in_place.map_or(none, |half| half.text());
            let p99 = row.in_place.map_or(String::new(), |half| format!("{:.2}", half.p99_us));
            let losses = [Some(row.out_of_place), row.in_place].into_iter().flatten();
            let losses: String = losses.map(|half| half.loss_text()).collect();
            let Report { dtype, redop, root, .. } = self;
            say(&format!(
                " {:>11} {:>11} {dtype:>5} {redop:>7} {root:>4} {:>8}  {}   {in_place}  {:>10.2} {p99:>10}{losses}",
                row.bytes,
                row.count,
                row.algorithm,
                row.out_of_place.text(),
                row.out_of_place.p99_us,
            ));
        }
        self.rows.push(row);
        let halves = || self.rows.iter().flat_map(|row| [Some(row.out_of_place), row.in_place]);
        let (sum, count) = halves()
            .flatten()
            .fold((0.0, 0), |(sum, count), half| (sum + half.busbw_gbytes_per_s, count + 1));
        self.avg_busbw_gbytes_per_s = sum / f64::from(count.max(1));
    }

    /// Prints the summary.
    pub(super) fn print_end(&self) {
        if self.talks {
            say(&format!(
                "# Out of bounds values: {}",
                if self.wrong() == 0 { "0 OK" } else { "FAILED" }
            ));
            say(&format!("# Avg bus bandwidth: {:.4} GB/s", self.avg_busbw_gbytes_per_s));
        }
    }

    /// The number of wrong elements.
    pub(super) fn wrong(&self) -> u64 {
        let halves = self.rows.iter().flat_map(|row| [Some(row.out_of_place), row.in_place]);
        halves.flatten().filter_map(|half| half.wrong).sum()
    }

    /// The whole report as one JSON object on one line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON lacks")
    }
}
