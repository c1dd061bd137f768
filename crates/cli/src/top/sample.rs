//! Samples the devices of running processes, and computes the changes between two samples.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use bowline_io::control::{self, Peer};
use serde::Serialize;
use serde_json::Value;

use crate::devinfo::ask;

/// The counters of all devices at one time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) devices: BTreeMap<Peer, Value>,
}

impl Sample {
    /// Asks every process.
    pub(super) fn take() -> io::Result<Sample> {
        let peers = control::live()?;
        let at = Instant::now();
        let devices = peers.into_iter().map(|peer| {
            let account = ask(&peer, "counters");
            (peer, account)
        });
        Ok(Sample { at, devices: devices.collect() })
    }
}

/// One device as a row of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) device: String,
    pub(super) addr: String,
    pub(super) via: String,
    pub(super) qps: u64,
    /// Rates since the previous sample; absent for a device that is not in it.
    #[serde(flatten)]
    pub(super) rates: Option<Rates>,
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
    pub(super) resent_packets: u64,
    pub(super) dropped_packets: u64,
    pub(super) timeouts: u64,
    pub(super) rtt_min_us: Option<f64>,
    pub(super) rtt_max_us: Option<f64>,
    /// Absent for a device without a backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failover: Option<Moves>,
    /// Why there is nothing to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// The values that change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) tx_gbps: f64,
    pub(super) rx_gbps: f64,
    pub(super) tx_packets_per_s: f64,
    pub(super) rx_packets_per_s: f64,
    pub(super) resent_per_s: f64,
    pub(super) dropped_per_s: f64,
}

/// Failover counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Moves {
    pub(super) to_backup: u64,
    pub(super) back: u64,
    pub(super) failed: u64,
    /// Connections that are on the backup now.
    pub(super) away: u64,
}

/// The activity of the devices in a sample since an earlier one, the busiest first.
pub(super) fn rows(before: &Sample, now: &Sample) -> Vec<Row> {
    let seconds = (now.at - before.at).as_secs_f64();
    let mut rows: Vec<Row> = now
        .devices
        .iter()
        .map(|(peer, account)| {
            let before = before.devices.get(peer).filter(|_| seconds > 0.0);
            row(peer, account, before.map(|before| (before, seconds)))
        })
        .collect();
    let load = |row: &Row| row.rates.map_or(0.0, |rates| rates.tx_gbps + rates.rx_gbps);
    // The sort is stable: equally busy devices stay in the order of their processes.
    rows.sort_by(|a, b| load(b).total_cmp(&load(a)));
    rows
}

fn row(peer: &Peer, account: &Value, before: Option<(&Value, f64)>) -> Row {
    let text = |key: &str| account[key].as_str().unwrap_or_default().to_owned();
    let rtt = |key: &str| account["rtt_ns"][key].as_u64().map(|ns| ns as f64 / 1e3);
    let program = text("program");
    let rates = before.filter(|(before, _)| before["error"].is_null()).map(|(before, seconds)| {
        let rate =
            |of: &dyn Fn(&Value) -> u64| of(account).saturating_sub(of(before)) as f64 / seconds;
        Rates {
            tx_gbps: rate(&|v| nic(v, "tx_bytes")) * 8e-9,
            rx_gbps: rate(&|v| nic(v, "rx_bytes")) * 8e-9,
            tx_packets_per_s: rate(&|v| nic(v, "tx_packets")),
            rx_packets_per_s: rate(&|v| nic(v, "rx_packets")),
            resent_per_s: rate(&|v| nic(v, "retransmitted_packets")),
            dropped_per_s: rate(&dropped),
        }
    });
    let error = account["error"].as_str().map(str::to_owned);
    Row {
        pid: peer.pid,
        program: program.rsplit('/').next().unwrap_or_default().to_owned(),
        device: peer.device.clone(),
        addr: text("addr"),
        via: text("via"),
        qps: account["qps"].as_u64().unwrap_or(0),
        rates: rates.filter(|_| error.is_none()),
        tx_bytes: nic(account, "tx_bytes"),
        rx_bytes: nic(account, "rx_bytes"),
        resent_packets: nic(account, "retransmitted_packets"),
        dropped_packets: dropped(account),
        timeouts: nic(account, "timeouts"),
        rtt_min_us: rtt("min"),
        rtt_max_us: rtt("max"),
        failover: moves(&account["failover"]),
        error,
    }
}

fn nic(account: &Value, name: &str) -> u64 {
    account["nic"][name].as_u64().unwrap_or(0)
}

/// Packets that a device dropped, or that the link before it lost.
fn dropped(account: &Value) -> u64 {
    // These count messages, not packets. Their packets were lost elsewhere.
    const MESSAGES: [&str; 2] = ["drop_message", "drop_no_receive"];
    const LINK: [&str; 6] = [
        "rx_overflow",
        "rx_truncated",
        "impair_lost",
        "impair_queue_full",
        "fault_dropped_in",
        "fault_dropped_out",
    ];
    let sum = |part: &str, counts: &dyn Fn(&str) -> bool| -> u64 {
        let counters = account[part].as_object().into_iter().flatten();
        let counted = counters.filter(|(name, _)| counts(name));
        counted.filter_map(|(_, value)| value.as_u64()).fold(0, u64::saturating_add)
    };
    let by_nic = sum("nic", &|name| name.starts_with("drop_") && !MESSAGES.contains(&name));
    let by_port = sum("port", &|name| name.contains("drop_") || LINK.contains(&name));
    by_nic.saturating_add(by_port)
}

fn moves(failover: &Value) -> Option<Moves> {
    let number = |key: &str| failover[key].as_u64().unwrap_or(0);
    failover.is_object().then(|| Moves {
        to_backup: number("to_backup"),
        back: number("back"),
        failed: number("failed"),
        away: number("away"),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn packets_are_dropped_by_engines_ports_and_links() {
        let account = json!({
            "nic": { "drop_icrc": 1, "drop_sequence": 10, "drop_message": 7, "tx_packets": 99 },
            "port": { "impair_lost": 100, "tx_drop_denied": 1000, "rx_frames": 5, "rx_overflow": 10_000 },
        });
        assert_eq!(dropped(&account), 11_111);
        assert_eq!(dropped(&json!({ "error": "no answer" })), 0);
    }

    #[test]
    fn rates_are_what_has_changed_in_the_time_between() {
        // This process's own device is found like any other.
        let server = control::ControlServer::start("top-test", |_| String::new()).unwrap();
        let peers = control::live().unwrap();
        let own = |peer: &&Peer| peer.device == "top-test" && peer.pid == std::process::id();
        let peer = peers.iter().find(own).unwrap().clone();
        drop(server);
        let account = |bytes: u64| {
            json!({
                "program": "/usr/bin/ib_write_bw", "addr": "127.0.0.1", "via": "udp", "qps": 3,
                "rtt_ns": { "min": 1500, "max": 2500 },
                "nic": { "tx_bytes": bytes, "tx_packets": bytes / 1000, "timeouts": 4 },
                "port": {},
                "failover": { "to_backup": 2, "back": 1, "failed": 0, "away": 1 },
            })
        };
        let at = Instant::now();
        let sample = |at, bytes| Sample { at, devices: [(peer.clone(), account(bytes))].into() };
        let before = sample(at, 1_000_000);
        let now = sample(at + Duration::from_secs(2), 501_000_000);
        let row = rows(&before, &now).remove(0);
        let rates = row.rates.unwrap();
        assert!((rates.tx_gbps - 2.0).abs() < 1e-9, "{rates:?}");
        assert!((rates.tx_packets_per_s - 250_000.0).abs() < 1e-6, "{rates:?}");
        assert_eq!((row.program.as_str(), row.qps, row.timeouts), ("ib_write_bw", 3, 4));
        assert_eq!((row.rtt_min_us, row.rtt_max_us), (Some(1.5), Some(2.5)));
        assert_eq!(row.failover.unwrap().to_backup, 2);
        let empty = Sample { at, devices: BTreeMap::new() };
        assert!(rows(&empty, &now)[0].rates.is_none(), "nothing is known of before");
    }
}
