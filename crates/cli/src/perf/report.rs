//! Results, in perftest's format and as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bowline::{Device, FailoverAccount, FecSnapshot};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::account::{Account, Both, End, Loss};
use super::args::{Metric, Replicate, Spec, Test};
use super::interval::IntervalRow;
use crate::output::{JSON_VERSION, say};

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
    /// Share of bytes that arrived, counted by the receiver, if the sender does not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) delivered: Option<f64>,
    /// Additional measurements for a message that goes to many servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replication: Option<Replication>,
    /// Bandwidth in each direction, if both ends send. The other fields are for both together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directions: Option<Directions>,
    #[serde(flatten)]
    pub(crate) test: Circumstances,
}

/// The circumstances of every result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    /// The intervals, with `-i`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) intervals: Vec<IntervalRow>,
    /// Whether the test was interrupted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) interrupted: bool,
    /// The accounts of both ends; absent if a group of servers responds as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ends: Option<Both>,
}

/// Bandwidth of the messages that each end sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Directions {
    pub(crate) client_gbps: f64,
    pub(crate) server_gbps: f64,
}

/// One sender, many servers. Bandwidth counts a message once, when all servers have it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replication {
    pub(crate) servers: usize,
    pub(crate) replicate: Replicate,
    /// From posting a message until all servers have it: the median and the 99th percentile.
    pub(crate) t_typical_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of the sender per GB of messages.
    pub(crate) sender_cpu_s_per_gb: f64,
}

impl BandwidthRow {
    /// Records how many bytes the receiver has.
    fn set_delivered(&mut self, bytes: u64) {
        let sent = u64::from(self.bytes) * self.iterations;
        // An interrupted test has sent more than it counted.
        self.delivered = Some((bytes as f64 / sent.max(1) as f64).min(1.0));
    }

    /// Combines what both ends sent into one result.
    pub(crate) fn of_both(client: BandwidthRow, server: &BandwidthRow) -> BandwidthRow {
        let directions =
            Directions { client_gbps: client.bw_average_gbps, server_gbps: server.bw_average_gbps };
        let interrupted = client.test.interrupted || server.test.interrupted;
        BandwidthRow {
            iterations: client.iterations + server.iterations,
            bw_peak_gbps: client.bw_peak_gbps + server.bw_peak_gbps,
            bw_average_gbps: client.bw_average_gbps + server.bw_average_gbps,
            msg_rate_mpps: client.msg_rate_mpps + server.msg_rate_mpps,
            directions: Some(directions),
            test: Circumstances { interrupted, ..client.test },
            ..client
        }
    }
}

impl Row {
    /// Whether the test was interrupted.
    pub(crate) fn is_interrupted(&self) -> bool {
        match self {
            Row::Bandwidth(row) => row.test.interrupted,
            Row::Latency(row) => row.test.interrupted,
        }
    }

    /// Adds the accounts of both ends.
    pub(crate) fn add_accounts(
        &mut self,
        spec: &Spec,
        end: End,
        ours: &Account,
        theirs: Option<&Account>,
    ) {
        let ends = Some(Both::new(spec, end, ours, theirs));
        match self {
            Row::Latency(row) => row.test.ends = ends,
            Row::Bandwidth(row) => {
                row.test.ends = ends;
                // If the sender cannot know what arrives, the receiver reports it.
                if let (false, Some(theirs)) = (spec.transport.is_reliable(), theirs)
                    && ours.is_counted
                    && theirs.is_counted
                {
                    row.set_delivered(ours.message_bytes + theirs.message_bytes);
                }
            }
        }
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
    #[serde(flatten)]
    test: Circumstances,
}

impl LatencyRow {
    /// Summarizes a histogram of nanoseconds.
    pub(crate) fn new(bytes: u32, histogram: &Histogram<u64>, test: Circumstances) -> LatencyRow {
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
            test,
        }
    }
}

/// The results of a test so far.
#[derive(Serialize)]
pub(crate) struct Report {
    version: u32,
    /// Whether text is printed instead of JSON.
    #[serde(skip)]
    text: bool,
    test: Test,
    transport: String,
    device: IpAddr,
    via: &'static str,
    lanes: usize,
    mtu: u32,
    qps: u16,
    tx_depth: u32,
    /// Whether packets are encrypted and authenticated.
    sealed: bool,
    results: Vec<Row>,
    /// Counters of this end's forward error correction, if it was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    fec: Option<BTreeMap<&'static str, u64>>,
    /// Counters of this end's engines that are not zero.
    nic: BTreeMap<&'static str, u64>,
    /// Counters of this end's ports that are not zero.
    port: BTreeMap<&'static str, u64>,
    /// What happened to this end's connections, if they have a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    failover: Option<serde_json::Value>,
}

/// Counters that are not zero, by name.
fn some(
    all: impl Iterator<Item = (&'static str, &'static str, u64)>,
) -> BTreeMap<&'static str, u64> {
    all.filter(|(_, _, value)| *value > 0).map(|(name, _, value)| (name, value)).collect()
}

impl Report {
    /// A report without results.
    pub(crate) fn new(spec: &Spec, device: &Device, text: bool) -> Report {
        Report {
            version: JSON_VERSION,
            text,
            test: spec.test,
            transport: spec.scheme.clone().unwrap_or_else(|| spec.transport.name().to_owned()),
            device: device.addr(),
            via: device.via(),
            lanes: device.lanes(),
            mtu: device.mtu().bytes(),
            qps: spec.qps,
            tx_depth: spec.tx_depth,
            sealed: false,
            results: Vec::new(),
            fec: None,
            nic: BTreeMap::new(),
            port: BTreeMap::new(),
            failover: None,
        }
    }

    /// Records whether packets are encrypted and authenticated.
    pub(crate) fn sealed(self, sealed: bool) -> Report {
        Report { sealed, ..self }
    }

    /// Prints a line, unless the output is JSON.
    pub(crate) fn say(&self, line: &str) {
        if self.text {
            say(line);
        }
    }

    /// Prints the parameters and the column names.
    pub(crate) fn print_header(&self) {
        let Report { test, transport, device, via, lanes, mtu, qps, tx_depth, .. } = self;
        let line = "-".repeat(109);
        self.say(&line);
        let sealed = if self.sealed { ", sealed" } else { "" };
        self.say(&format!(" bowline perf {}{sealed}", test.name()));
        self.say(&format!(
            " device {device} ({via}, lanes {lanes})   transport {transport}   MTU {mtu} B   QPs {qps}   TX depth {tx_depth}"
        ));
        self.say(&line);
        self.say(&match test.metric() {
            Metric::Bandwidth => format!(
                " {:<10} {:<12} {:<18} {:<20} {:<15} CPU[%] client, server",
                "#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]"
            ),
            Metric::Latency => format!(
                " {:<8} {:<12} {:<11} {:<11} {:<15} {:<11} {:<13} {:<21} {:<23} CPU[%] client, server",
                "#bytes",
                "#iterations",
                "t_min[usec]",
                "t_max[usec]",
                "t_typical[usec]",
                "t_avg[usec]",
                "t_stdev[usec]",
                "99% percentile[usec]",
                "99.9% percentile[usec]"
            ),
        });
    }

    /// Adds a result and prints it.
    pub(crate) fn add(&mut self, row: Row) {
        match &row {
            Row::Bandwidth(r) => self.say(&format!(
                " {:<10} {:<12} {:<18.3} {:<20.3} {:<15.6} {}",
                r.bytes,
                r.iterations,
                r.bw_peak_gbps,
                r.bw_average_gbps,
                r.msg_rate_mpps,
                r.more()
            )),
            Row::Latency(r) => self.say(&format!(
                " {:<8} {:<12} {:<11.2} {:<11.2} {:<15.2} {:<11.2} {:<13.2} {:<21.2} {:<23.2} {}",
                r.bytes,
                r.iterations,
                r.t_min_us,
                r.t_max_us,
                r.t_typical_us,
                r.t_avg_us,
                r.t_stdev_us,
                r.p99_us,
                r.p999_us,
                r.test.text()
            )),
        }
        self.results.push(row);
    }

    /// Adds and prints the counters of forward error correction at this end.
    pub(crate) fn add_fec(&mut self, counters: &FecSnapshot) {
        self.say(&format!(
            " FEC at this end: {} repairs sent, {} received; {} packets recovered, {} unrecoverable; \
             {} repairs wasted",
            counters.repairs_sent,
            counters.repairs_received,
            counters.recovered,
            counters.unrecoverable,
            counters.wasted
        ));
        self.fec = Some(counters.iter().map(|(name, _, value)| (name, value)).collect());
    }

    /// Adds the counters of this end's engines and ports, which are not printed.
    pub(crate) fn add_counters(&mut self, device: &Device) {
        if let (Ok(nic), Ok(port)) = (device.counters(), device.port_counters()) {
            self.nic = some(nic.iter());
            self.port = some(port.iter());
        }
    }

    /// Adds and prints what happened to this end's connections.
    pub(crate) fn add_failover(&mut self, account: &FailoverAccount) {
        let FailoverAccount { mode, connections, ready, failed, moves: [away, back], .. } = account;
        self.say(&format!(
            " failover ({mode}) at this end: {ready} of {connections} QPs have a backup; {away} moves to it, \
             {back} back; {failed} failed"
        ));
        self.failover = serde_json::from_str(&account.to_json()).ok();
    }

    /// The whole report as one JSON object on one line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("a report has nothing that JSON lacks")
    }
}

impl Circumstances {
    /// The text after the columns.
    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(ends) = &self.ends {
            let server = ends.server_cpu_percent.map_or("-".to_owned(), |p| format!("{p:.0}"));
            text = format!("{:.0}, {server}", ends.client_cpu_percent);
            for (loss, to) in [(ends.to_server, "server"), (ends.to_client, "client")] {
                if let Some(loss) = loss.filter(|loss| loss.lost_packets > 0) {
                    text += &format!("  {}", describe(loss, to));
                }
            }
        }
        if self.interrupted {
            text += "  interrupted";
        }
        text
    }
}

fn describe(loss: Loss, to: &str) -> String {
    let Loss { sent_packets, lost_packets } = loss;
    let percent = loss.share() * 100.0;
    format!("lost {lost_packets} of {sent_packets} packets to the {to} ({percent:.3} %)")
}

impl BandwidthRow {
    /// The text after the columns.
    fn more(&self) -> String {
        let mut text = self.test.text();
        if let Some(Directions { client_gbps, server_gbps }) = self.directions {
            text += &format!("  client sends {client_gbps:.3}, server {server_gbps:.3} Gb/s");
        }
        if let Some(part) = self.delivered {
            text += &format!("  {:.2} % delivered", part * 100.0);
        }
        if let Some(r) = &self.replication {
            text += &format!(
                "  to {}: median {:.1} us, 99 % {:.1} us, CPU {:.3} s/GB",
                r.servers, r.t_typical_us, r.p99_us, r.sender_cpu_s_per_gb
            );
        }
        text
    }
}
