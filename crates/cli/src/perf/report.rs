//! Results, as perftest prints them and as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bowline::{Device, FailoverAccount, FecSnapshot};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::args::{Metric, Spec, Test};

/// The result for one message size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Row {
    Bandwidth(BandwidthRow),
    Latency(LatencyRow),
}

/// Bandwidth for one message size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BandwidthRow {
    pub(crate) bytes: u32,
    pub(crate) iterations: u64,
    pub(crate) bw_peak_gbps: f64,
    pub(crate) bw_average_gbps: f64,
    pub(crate) msg_rate_mpps: f64,
    /// Part of the bytes that arrived, as the receiver counts, where the sender does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delivered: Option<f64>,
}

impl BandwidthRow {
    /// Takes note of how many bytes the receiver has.
    pub(crate) fn set_delivered(&mut self, bytes: u64) {
        let sent = u64::from(self.bytes) * self.iterations;
        self.delivered = Some(bytes as f64 / sent.max(1) as f64);
    }
}

/// Latency for one message size, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LatencyRow {
    bytes: u32,
    iterations: u64,
    t_min_us: f64,
    t_max_us: f64,
    t_typical_us: f64,
    t_avg_us: f64,
    t_stdev_us: f64,
    p99_us: f64,
    p999_us: f64,
}

impl LatencyRow {
    /// Sums up a histogram of nanoseconds.
    pub(crate) fn new(bytes: u32, histogram: &Histogram<u64>) -> LatencyRow {
        let us = |nanos: f64| nanos / 1e3;
        let quantile = |q| us(histogram.value_at_quantile(q) as f64);
        LatencyRow {
            bytes,
            iterations: histogram.len(),
            t_min_us: us(histogram.min() as f64),
            t_max_us: us(histogram.max() as f64),
            t_typical_us: quantile(0.5),
            t_avg_us: us(histogram.mean()),
            t_stdev_us: us(histogram.stdev()),
            p99_us: quantile(0.99),
            p999_us: quantile(0.999),
        }
    }
}

/// The results of a test so far.
#[derive(Serialize)]
pub(crate) struct Report {
    test: Test,
    transport: String,
    device: IpAddr,
    via: &'static str,
    lanes: usize,
    mtu: u32,
    qps: u16,
    tx_depth: u32,
    results: Vec<Row>,
    /// What this end's forward error correction did, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    fec: Option<BTreeMap<&'static str, u64>>,
    /// What became of this end's connections, if they have a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    failover: Option<serde_json::Value>,
}

impl Report {
    /// A report without results.
    pub(crate) fn new(spec: &Spec, device: &Device) -> Report {
        Report {
            test: spec.test,
            transport: spec.scheme.clone().unwrap_or_else(|| spec.transport.name().to_owned()),
            device: device.addr(),
            via: device.via(),
            lanes: device.lanes(),
            mtu: device.mtu().bytes(),
            qps: spec.qps,
            tx_depth: spec.tx_depth,
            results: Vec::new(),
            fec: None,
            failover: None,
        }
    }

    /// Prints what is measured, and the names of the columns.
    pub(crate) fn print_header(&self) {
        let Report { test, transport, device, via, lanes, mtu, qps, tx_depth, .. } = self;
        let line = "-".repeat(87);
        println!("{line}");
        println!(" bowline perf {}", test.name());
        println!(
            " device {device} ({via}, lanes {lanes})   transport {transport}   MTU {mtu} B   QPs {qps}   TX depth {tx_depth}"
        );
        println!("{line}");
        match test.metric() {
            Metric::Bandwidth => println!(
                " {:<10} {:<12} {:<18} {:<20} MsgRate[Mpps]",
                "#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]"
            ),
            Metric::Latency => println!(
                " {:<8} {:<12} {:<11} {:<11} {:<15} {:<11} {:<13} {:<21} 99.9% percentile[usec]",
                "#bytes",
                "#iterations",
                "t_min[usec]",
                "t_max[usec]",
                "t_typical[usec]",
                "t_avg[usec]",
                "t_stdev[usec]",
                "99% percentile[usec]"
            ),
        }
    }

    /// Adds a result and prints it.
    pub(crate) fn add(&mut self, row: Row) {
        match &row {
            Row::Bandwidth(r) => {
                let delivered =
                    r.delivered.map(|part| format!("  {:.2} % delivered", part * 100.0));
                println!(
                    " {:<10} {:<12} {:<18.3} {:<20.3} {:.6}{}",
                    r.bytes,
                    r.iterations,
                    r.bw_peak_gbps,
                    r.bw_average_gbps,
                    r.msg_rate_mpps,
                    delivered.unwrap_or_default()
                )
            }
            Row::Latency(r) => println!(
                " {:<8} {:<12} {:<11.2} {:<11.2} {:<15.2} {:<11.2} {:<13.2} {:<21.2} {:.2}",
                r.bytes,
                r.iterations,
                r.t_min_us,
                r.t_max_us,
                r.t_typical_us,
                r.t_avg_us,
                r.t_stdev_us,
                r.p99_us,
                r.p999_us
            ),
        }
        self.results.push(row);
    }

    /// Adds what forward error correction did at this end, and prints it.
    pub(crate) fn add_fec(&mut self, counters: &FecSnapshot) {
        println!(
            " FEC at this end: {} repairs sent, {} received; {} packets recovered, {} unrecoverable; \
             {} repairs wasted",
            counters.repairs_sent,
            counters.repairs_received,
            counters.recovered,
            counters.unrecoverable,
            counters.wasted
        );
        self.fec = Some(counters.iter().map(|(name, _, value)| (name, value)).collect());
    }

    /// Adds what became of this end's connections, and prints it.
    pub(crate) fn add_failover(&mut self, account: &FailoverAccount) {
        let FailoverAccount { mode, connections, ready, failed, moves: [away, back], .. } = account;
        println!(
            " failover ({mode}) at this end: {ready} of {connections} QPs have a backup; {away} moves to it, \
             {back} back; {failed} failed"
        );
        self.failover = serde_json::from_str(&account.to_json()).ok();
    }

    /// Everything as one object on one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON lacks")
    }
}
