//! The counters of all devices in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;

use bowline_io::PortCounters;
use bowline_nic::Counters;
use serde_json::Value;

use super::sample::Sample;

/// A metric's name and meaning, with a sample for each device.
struct Family {
    help: String,
    kind: &'static str,
    samples: Vec<String>,
}

/// All devices of a sample, as text.
pub(super) fn text(sample: &Sample) -> String {
    let mut families = BTreeMap::new();
    for (peer, account) in &sample.devices {
        let labels = labels(peer.pid, &peer.device, account);
        let is_up = account["error"].is_null();
        add(
            &mut families,
            "bowline_up",
            "gauge",
            "Whether the process answers.",
            &labels,
            u8::from(is_up),
        );
        if is_up {
            add_device(&mut families, &labels, account);
        }
    }
    let mut out = String::new();
    for (name, family) in families {
        let Family { help, kind, samples } = family;
        // Writing to a String cannot fail.
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}", samples.concat());
    }
    out
}

type Families = BTreeMap<String, Family>;

fn add_device(families: &mut Families, labels: &str, account: &Value) {
    let (nic, port) = (Counters::default(), PortCounters::default());
    add_counters(families, labels, "", &account["nic"], nic.iter());
    add_counters(families, labels, "port_", &account["port"], port.iter());
    if let Some(fec) = account["fec"].as_object() {
        for (name, value) in fec.iter().filter(|(name, _)| is_name(name)) {
            let name = format!("bowline_fec_{name}_total");
            let value = value.as_u64().unwrap_or(0);
            add(families, &name, "counter", "Forward error correction.", labels, value);
        }
    }
    if let Some(qps) = account["qps"].as_u64() {
        add(families, "bowline_qps", "gauge", "Queue pairs.", labels, qps);
    }
    for (of, help) in [("min", "fastest"), ("max", "slowest")] {
        if let Some(ns) = account["rtt_ns"][of].as_u64() {
            let name = format!("bowline_rtt_{of}_seconds");
            let help = format!("Smoothed round trip of the {help} connection.");
            add(families, &name, "gauge", &help, labels, ns as f64 / 1e9);
        }
    }
    let failover = &account["failover"];
    for (key, kind, help) in [
        ("to_backup", "counter", "Connections moved to the backup."),
        ("back", "counter", "Connections moved back."),
        ("failed", "counter", "Connections that could not move."),
        ("away", "gauge", "Connections on the backup."),
    ] {
        if let Some(value) = failover[key].as_u64() {
            let suffix = if kind == "counter" { "_total" } else { "" };
            add(families, &format!("bowline_failover_{key}{suffix}"), kind, help, labels, value);
        }
    }
}

/// Adds a block of counters. It skips names that this release does not know, because it has no help
/// for them.
fn add_counters(
    families: &mut Families,
    labels: &str,
    part: &str,
    values: &Value,
    known: impl Iterator<Item = (&'static str, &'static str, u64)>,
) {
    for (name, help, _) in known {
        let Some(value) = values[name].as_u64() else { continue };
        let help = help.trim();
        if name.contains("_max_") {
            add(families, &format!("bowline_{part}{name}"), "gauge", help, labels, value);
        } else {
            add(families, &format!("bowline_{part}{name}_total"), "counter", help, labels, value);
        }
    }
}

fn add(
    families: &mut Families,
    name: &str,
    kind: &'static str,
    help: &str,
    labels: &str,
    value: impl std::fmt::Display,
) {
    let family = families.entry(name.to_owned()).or_insert_with(|| Family {
        help: help.replace('\\', "\\\\").replace('\n', " "),
        kind,
        samples: Vec::new(),
    });
    family.samples.push(format!("{name}{{{labels}}} {value}\n"));
}

fn labels(pid: u32, device: &str, account: &Value) -> String {
    let text = |key: &str| escape(account[key].as_str().unwrap_or_default());
    let device = escape(device);
    let (program, addr) = (text("program"), text("addr"));
    format!("pid=\"{pid}\",program=\"{program}\",device=\"{device}\",addr=\"{addr}\"")
}

/// Escapes the characters that the format reserves in a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_name_is_explained_once_and_has_a_sample_for_each_device() {
        let mut families = Families::new();
        for (pid, program) in [(1, "a"), (2, "b\"c")] {
            let account = json!({
                "program": program, "addr": "127.0.0.1", "qps": 2, "rtt_ns": { "min": 1000, "max": 2_000_000 },
                "nic": { "tx_packets": 10 * pid, "not-a-name": 5 },
                "port": { "impair_lost": 3, "impair_max_lateness_ns": 7 },
                "failover": { "to_backup": 1, "away": 0 },
            });
            add_device(&mut families, &labels(pid, "bl0", &account), &account);
        }
        let packets = &families["bowline_tx_packets_total"];
        assert_eq!((packets.kind, packets.help.as_str()), ("counter", "Packets sent."));
        assert_eq!(
            packets.samples,
            [
                "bowline_tx_packets_total{pid=\"1\",program=\"a\",device=\"bl0\",addr=\"127.0.0.1\"} 10\n",
                "bowline_tx_packets_total{pid=\"2\",program=\"b\\\"c\",device=\"bl0\",addr=\"127.0.0.1\"} 20\n",
            ]
        );
        assert_eq!(
            families["bowline_rtt_max_seconds"].samples[0].split(' ').next_back(),
            Some("0.002\n")
        );
        assert_eq!(families["bowline_port_impair_max_lateness_ns"].kind, "gauge");
        assert_eq!(families["bowline_failover_to_backup_total"].samples.len(), 2);
        assert!(families.keys().all(|name| is_name(name)), "{:?}", families.keys());
    }
}
