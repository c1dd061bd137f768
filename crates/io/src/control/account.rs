//! A device's description of itself, as one JSON object: for reports and for control clients.

use std::fmt::Write;
use std::sync::Arc;

use bowline_nic::Counters;

use super::faults;
use crate::{Gauges, Lane, LaneError, PortCounters};

/// A device's state as one line of JSON: process, program, name, address, transport, number of
/// lanes, queue pairs, round trips, and the counters of all lanes added up. `None` once a lane has
/// ended.
pub fn account(device: &str, lanes: &[Arc<Lane>]) -> Option<String> {
    let caps = lanes.first()?.port_caps();
    let (nic, port) = total_counters(lanes).ok()?;
    let mut gauges = Gauges::default();
    for lane in lanes {
        gauges.merge(&lane.gauges().ok()?);
    }
    let rtt = gauges
        .round_trips_ns
        .map_or("null".to_owned(), |(min, max)| format!("{{\"min\":{min},\"max\":{max}}}"));
    let failures: Vec<String> = lanes.iter().filter_map(|l| l.port_failure()).map(quote).collect();
    Some(format!(
        "{{\"pid\":{},\"program\":{},\"device\":{},\"addr\":\"{}\",\"via\":\"{}\",\"lanes\":{},\
         \"broken\":[{}],\"qps\":{},\"rtt_ns\":{},\"nic\":{},\"port\":{}}}",
        std::process::id(),
        quote(&std::env::args().next().unwrap_or_default()),
        quote(device),
        caps.addr,
        caps.via,
        lanes.len(),
        failures.join(","),
        gauges.qps,
        rtt,
        counters(nic.iter()),
        counters(port.iter()),
    ))
}

/// The engine and port counters of several lanes, added up.
pub fn total_counters(lanes: &[Arc<Lane>]) -> Result<(Counters, PortCounters), LaneError> {
    let mut total = (Counters::default(), PortCounters::default());
    for lane in lanes {
        let (nic, port) = lane.counters()?;
        total.0.merge(&nic);
        total.1.merge(&port);
    }
    Ok(total)
}

/// Answers a control request: `counters` with the device's [`account`], `faults` with its faults on
/// demand, `fault` followed by a [`FaultRequest`](crate::FaultRequest) with that fault's outcome,
/// and anything else with nothing.
pub fn answer(device: &str, lanes: &[Arc<Lane>], line: &str) -> String {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("counters", "") => account(device, lanes).unwrap_or_default(),
        ("faults", "") => faults::state(device, lanes),
        ("fault", request) => faults::order(device, lanes, request),
        _ => String::new(),
    }
}

fn counters<'a>(all: impl Iterator<Item = (&'a str, &'a str, u64)>) -> String {
    let fields: Vec<String> = all.map(|(name, _, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

/// A JSON string.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_counters_are_json() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
        let all = [("a", "help", 1), ("b", "help", 2)];
        assert_eq!(counters(all.into_iter()), "{\"a\":1,\"b\":2}");
    }
}
