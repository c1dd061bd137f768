//! Prints the NIC's report after the program has ended.

use std::error::Error;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::timeline;
use crate::output;

/// A file to which the program's library writes its report. It is removed on drop.
pub(super) struct File(PathBuf);

impl File {
    pub(super) fn new() -> std::io::Result<File> {
        let name = format!("bowline-report-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Create the file here, and only if it does not exist, so that nobody else's file is
        // overwritten.
        std::fs::OpenOptions::new().write(true).create_new(true).open(&path).map_err(|e| {
            std::io::Error::new(e.kind(), format!("cannot make {}: {e}", path.display()))
        })?;
        Ok(File(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // At worst the file stays behind.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Prints the reports of all devices that the program opened. They go to stderr, because stdout is
/// the program's.
pub(super) fn print(file: &File, json: bool) -> Result<(), Box<dyn Error>> {
    let path = file.path();
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read the report in {}: {e}", path.display()))?;
    let objects = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let reports: Vec<Value> = objects.map(output::versioned).collect();
    if reports.is_empty() {
        eprintln!("bowline: no report: the program opened no device, or was killed");
    }
    for report in &reports {
        if json {
            eprintln!("{report}");
        } else {
            describe(report).lines().for_each(|line| eprintln!("{}", output::plain(line)));
        }
    }
    Ok(())
}

/// A device's report: the counters that are not zero, one per line.
pub(crate) fn describe(report: &Value) -> String {
    let text = |key: &str| report[key].as_str().unwrap_or("?").to_owned();
    let mut lines = String::new();
    for part in ["nic", "port", "fec"] {
        let Some(counters) = report[part].as_object() else { continue };
        for (name, value) in counters.iter().filter(|(_, v)| v.as_u64() != Some(0)) {
            lines.push_str(&format!("  {part:4} {name:24} {value}\n"));
        }
    }
    if report["failover"].is_object() {
        lines.push_str(&timeline::describe(&report["failover"]));
    }
    let what = if lines.is_empty() { "saw nothing yet" } else { "saw" };
    let via = report["via"].as_str().map_or_else(String::new, |via| format!(" ({via})"));
    format!("{} at {}{via} {what}\n{lines}", text("device"), text("addr"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_happened_and_nothing_else() {
        let report = serde_json::json!({
            "device": "bl0", "addr": "127.0.0.1", "via": "udp",
            "nic": {"tx_packets": 7, "drop_icrc": 0}, "port": {"rx_overflow": 2}
        });
        let text = describe(&report);
        assert!(text.starts_with("bl0 at 127.0.0.1 (udp) saw"), "{text}");
        assert!(text.contains("tx_packets") && text.contains("rx_overflow"), "{text}");
        assert!(!text.contains("drop_icrc"), "{text}");
    }
}
