//! The failover part of a report: what happened to connections, and when.

use std::fmt::Write;

use serde_json::Value;

/// Lines of the timeline that are printed; `--json` has all of them.
const MAX_SHOWN: usize = 40;

/// The counters and the timeline of a device's failover.
pub(super) fn describe(failover: &Value) -> String {
    let number = |key: &str| failover[key].as_u64().unwrap_or(0);
    let mut text = format!(
        "  failover ({}): {} to the backup, {} back, {} failed, {} requests moved along; {}\n",
        failover["mode"].as_str().unwrap_or("?"),
        counted(number("to_backup"), "move"),
        number("back"),
        number("failed"),
        number("requests"),
        match number("away") {
            0 => "all on the first NIC at the end".to_owned(),
            away => format!("{away} on the backup at the end"),
        }
    );
    let events = failover["timeline"].as_array().map_or(&[][..], Vec::as_slice);
    for event in events.iter().take(MAX_SHOWN) {
        text.push_str(&line(event));
    }
    if events.len() > MAX_SHOWN {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    … and {} more", events.len() - MAX_SHOWN);
    }
    text
}

fn line(event: &Value) -> String {
    let milliseconds = |key: &str| event[key].as_u64().map(|ns| ns as f64 / 1e6);
    let seconds = event["at_ns"].as_u64().unwrap_or(0) as f64 / 1e9;
    let qpn = event["qpn"].as_u64().unwrap_or(0);
    let cause = match event["cause"].as_str().unwrap_or("?") {
        "local-port" => "local port down",
        "peer-port" => "peer's port down",
        "path" => "path dead",
        "return" => "first NIC good again",
        other => other,
    };
    let mut text = format!("    {seconds:9.3} s  QP {qpn:#08x}  {cause:<20}");
    if let Some(detect) = milliseconds("detect_ns") {
        let _ = write!(text, "  noticed after {detect:.2} ms");
    }
    match (event["outcome"].as_str(), milliseconds("handover_ns")) {
        (Some("moved"), Some(handover)) => {
            let requests = event["requests"].as_u64().unwrap_or(0);
            let rail = event["rail"].as_str().unwrap_or("?");
            let _ = write!(
                text,
                "  on the {rail} NIC {handover:.2} ms later with {}",
                counted(requests, "request")
            );
        }
        (outcome, _) => {
            let _ = write!(text, "  failed: {}", outcome.unwrap_or("?"));
        }
    }
    text.push('\n');
    text
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_says_why_how_fast_and_where() {
        let text = describe(&serde_json::json!({
            "mode": "exact", "connections": 1, "ready": 1, "away": 0, "to_backup": 1, "back": 1,
            "failed": 1, "requests": 17,
            "timeline": [
                {"at_ns": 5_000_000_000_u64, "qpn": 17, "epoch": 1, "rail": "backup", "cause": "path",
                 "outcome": "moved", "detect_ns": 16_000_000, "handover_ns": 1_500_000, "requests": 17},
                {"at_ns": 9_000_000_000_u64, "qpn": 17, "epoch": 2, "rail": "first", "cause": "return",
                 "outcome": "moved", "detect_ns": null, "handover_ns": 90_000, "requests": 1},
                {"at_ns": 9_500_000_000_u64, "qpn": 18, "epoch": 1, "rail": "backup",
                 "cause": "local-port", "outcome": "no-answer", "detect_ns": null,
                 "handover_ns": null, "requests": null}
            ]
        }));
        for part in [
            "1 move to the backup, 1 back, 1 failed",
            "path dead",
            "noticed after 16.00 ms",
            "on the backup NIC 1.50 ms later with 17 requests",
            "on the first NIC 0.09 ms later with 1 request\n",
            "failed: no-answer",
            "all on the first NIC",
        ] {
            assert!(text.contains(part), "{part:?} in:\n{text}");
        }
    }
}
