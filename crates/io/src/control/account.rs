//! What a device tells about itself: one JSON object, in reports and to those who ask.

use std::fmt::Write;
use std::sync::Arc;

use super::{ControlServer, faults};
use crate::Lane;

/// A device's account of itself, as one line of JSON: process, program, name, address, what carries its
/// packets, counters.
/// `None` once the lane has ended.
pub fn account(device: &str, lane: &Lane) -> Option<String> {
    let (nic, port) = lane.counters().ok()?;
    Some(format!(
        "{{\"pid\":{},\"program\":{},\"device\":{},\"addr\":\"{}\",\"via\":\"{}\",\"nic\":{},\"port\":{}}}",
        std::process::id(),
        quote(&std::env::args().next().unwrap_or_default()),
        quote(device),
        lane.port_caps().addr,
        lane.port_caps().via,
        counters(nic.iter()),
        counters(port.iter()),
    ))
}

/// What a device answers: its [`account`] to `counters`, its faults on demand to `faults`; to `fault`
/// and a [`FaultRequest`](crate::FaultRequest) what came of that; nothing to anything else.
pub fn answer(device: &str, lane: &Lane, line: &str) -> String {
    match line.split_once(' ').unwrap_or((line, "")) {
        ("counters", "") => account(device, lane).unwrap_or_default(),
        ("faults", "") => faults::state(device, lane),
        ("fault", request) => faults::order(device, lane, request),
        _ => String::new(),
    }
}

impl ControlServer {
    /// Answers for a lane ([`answer`]), which it does not keep alive.
    pub fn for_lane(device: &str, lane: &Arc<Lane>) -> std::io::Result<ControlServer> {
        let (name, lane) = (device.to_owned(), Arc::downgrade(lane));
        ControlServer::start(device, move |line| {
            lane.upgrade().map_or_else(String::new, |lane| answer(&name, &lane, line))
        })
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
