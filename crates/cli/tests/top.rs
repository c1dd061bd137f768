//! `bowline top` during a `bowline perf` between two processes.

#[path = "common/pair.rs"]
mod pair;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use pair::{BOWLINE, Pair};
use serde_json::Value;

fn top(args: &[&str]) -> Command {
    let mut command = Command::new(BOWLINE);
    command.arg("top").args(args).stdin(Stdio::null());
    command
}

/// The device at an address, from one sample.
fn device(addr: &str) -> Value {
    let output = top(&["--once", "--json", "-i", "300ms"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["version"], 1);
    let devices = json["devices"].as_array().unwrap();
    devices.iter().find(|device| device["addr"] == addr).unwrap_or_else(|| panic!("{json}")).clone()
}

#[test]
fn rates_round_trips_and_losses_of_live_processes_are_shown() {
    let pair = Pair::start("write-bw", "30s");
    let sender = device(&pair.client_addr);
    assert_eq!(sender["pid"].as_u64(), Some(u64::from(pair.client.id())));
    assert_eq!(sender["program"], "bowline");
    assert_eq!(sender["qps"], 1);
    assert!(sender["tx_gbps"].as_f64().unwrap() > 0.0, "{sender}");
    assert!(sender["tx_packets_per_s"].as_f64().unwrap() > 0.0, "{sender}");
    let (min, max) = (sender["rtt_min_us"].as_f64(), sender["rtt_max_us"].as_f64());
    assert!(min.unwrap() > 0.0 && min <= max, "{sender}");
    let receiver = device(&pair.server_addr);
    assert!(receiver["rx_gbps"].as_f64().unwrap() > 0.0, "{receiver}");

    let faulted = Command::new(BOWLINE).args(["fault", &pair.client_addr, "loss=2%"]).output();
    assert!(faulted.unwrap().status.success());
    let sender = device(&pair.client_addr);
    assert!(sender["dropped_per_s"].as_f64().unwrap() > 0.0, "{sender}");
    assert!(sender["resent_per_s"].as_f64().unwrap() > 0.0, "{sender}");

    let table = top(&["--once", "-i", "200ms"]).output().unwrap();
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(text.starts_with("    PID PROGRAM"), "{text}");
    assert!(text.contains(&pair.client_addr) && text.contains(&pair.server_addr), "{text}");
    assert!(!text.contains('\u{1b}'), "no terminal, no control sequences: {text}");
}

#[test]
fn prometheus_gets_the_counters_of_all_devices() {
    let pair = Pair::start("write-bw", "30s");
    let mut server = top(&["--prometheus", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let at =
        line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
    let mut stream = TcpStream::connect(&at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let _ = server.kill();
    let _ = server.wait();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let (client, server) = (pair.client.id(), pair.server.id());
    let value = |name: &str, pid: u32| {
        let begins = format!("{name}{{pid=\"{pid}\",");
        let found = answer.lines().find(|line| line.starts_with(&begins));
        let found = found.unwrap_or_else(|| panic!("{begins} is not in {answer}"));
        found.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(value("bowline_tx_packets_total", client) > 0.0);
    assert!(value("bowline_rx_message_bytes_total", server) > 0.0);
    assert!(value("bowline_rtt_max_seconds", client) > 0.0);
    assert!(value("bowline_up", server) == 1.0);
    assert_eq!(answer.matches("# TYPE bowline_tx_packets_total counter").count(), 1);
    // The body contains nothing that the format does not allow.
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    assert!(
        body.lines().all(|line| line.starts_with("# ") || line.starts_with("bowline_")),
        "{body}"
    );
}

#[test]
fn wrong_options_say_what_is_right() {
    for (args, hint) in [
        (&["-i", "1"][..], "invalid duration `1`: add a unit"),
        (&["-i", "1ms"], "the shortest is 100ms"),
        (&["--prometheus", "nowhere"], "127.0.0.1:18518"),
    ] {
        let output = top(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(hint), "{args:?}: {text}");
    }
}
