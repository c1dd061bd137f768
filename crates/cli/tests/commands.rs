//! What all commands share: JSON, exit statuses, units, logs.

mod common;

use std::process::{Command, Output};

use common::BOWLINE;
use serde_json::Value;

fn bowline(args: &[&str]) -> Output {
    Command::new(BOWLINE).args(args).env_remove("RUST_LOG").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn json_is_alone_on_stdout_and_has_a_version() {
    let plan = ["--bandwidth", "100G", "--rtt", "10ms", "--loss", "0.1%", "--size", "8M"];
    for args in [
        &["devinfo", "--json"][..],
        &["fault", "--json"],
        &["sim", "storm", "--seeds", "2", "--json"],
        &["top", "--once", "--json", "-i", "100ms"],
        &[&["plan"], &plan[..], &["--json"]].concat(),
    ] {
        let output = bowline(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let json: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}"));
        assert_eq!(json["version"], 1, "{args:?}");
    }
}

#[test]
fn a_storm_ends_in_a_line_that_says_how() {
    let output = bowline(&["sim", "storm", "--seeds", "3"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout).lines().last(), Some("storm passed: 3 seeds"));
}

#[test]
fn units_are_the_same_everywhere() {
    for (args, hint) in [
        (
            &["wan", "--start-after", "5", "--right", "true"][..],
            "invalid duration `5`: add a unit, e.g. 5ms",
        ),
        (
            &["collective", "allreduce", "--timeout", "5"],
            "invalid duration `5`: add a unit, e.g. 5s",
        ),
        (&["send", "a", "b", "--bwlimit", "200"], "invalid rate `200`: add a unit, e.g. 200Gbps"),
        (&["plan", "--bandwidth", "400"], "invalid rate `400`: add a unit, e.g. 400Gbps"),
        (&["perf", "write-bw", "-i", "1"], "invalid duration `1`: add a unit, e.g. 1s"),
        (&["run", "--link", "delay=5", "--", "true"], "invalid duration `5`: add a unit, e.g. 5ms"),
        (&["run", "--keepalive", "4", "--", "true"], "invalid duration `4`: add a unit"),
        (&["switch", "127.0.0.9", "--members", "127.0.0.8:1", "--link", "rate=9"], "add a unit"),
    ] {
        let output = bowline(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
}

/// A library that has no effect when preloaded: one that every program loads anyway.
fn harmless_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files.into_iter().find(|file| file.contains("libc.so")).unwrap().to_owned()
}

#[test]
fn run_passes_its_programs_status_on_and_tells_its_own_errors() {
    let library = harmless_library();
    let run = |library: &str, args: &[&str]| {
        let mut command = Command::new(BOWLINE);
        let output = command.arg("run").args(args).env("BOWLINE_VERBS", library).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (status, _) = run(&library, &["--", "sh", "-c", "exit 7"]);
    assert_eq!(status, Some(7));
    let (status, stderr) = run(&library, &["--report", "--", "sh", "-c", "exit 9"]);
    assert_eq!(status, Some(9), "{stderr}");
    let (status, _) = run(&library, &["--report", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(status, Some(143));
    for (args, expected, hint) in [
        (&["--", "no-such-program-anywhere"][..], 127, "not installed"),
        (&["--report", "--", "no-such-program-anywhere"], 127, "not installed"),
        (&["--", "/etc/passwd"], 126, "cannot start /etc/passwd"),
        (&["--device", "bl0=192.0.2.77", "--", "true"], 125, "bl0=192.0.2.77"),
    ] {
        let (status, stderr) = run(&library, args);
        assert_eq!(status, Some(expected), "{args:?}: {stderr}");
        assert!(stderr.contains(hint), "{args:?}: {stderr}");
    }
    let (status, stderr) = run("/no/such/library.so", &["--", "true"]);
    assert_eq!(status, Some(125), "{stderr}");
    assert!(stderr.contains("/no/such/library.so"), "{stderr}");
}

/// Set-up events are logged only on request, and go to stderr.
#[test]
fn logs_are_filtered() {
    let demo = |env: Option<&str>, args: &[&str]| {
        let mut command = Command::new(BOWLINE);
        command.args(["collective", "barrier", "--ranks", "1", "--via", "udp"]);
        command.args(["-n", "1", "-w", "0", "--json"]);
        command.args(args).env_remove("RUST_LOG");
        if let Some(filter) = env {
            command.env("RUST_LOG", filter);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("stdout is the result's alone");
        text(&output.stderr)
    };
    assert_eq!(demo(None, &[]), "");
    assert!(demo(None, &["-v"]).contains("bowline: device: 127.0.78.1 via udp"));
    assert!(demo(Some("bowline::device=info"), &[]).contains("via udp"));
    assert_eq!(demo(Some("bowline::setup=debug"), &[]), "");
    assert_eq!(demo(Some("info"), &["--quiet"]), "", "options count more than the variable");
    assert!(demo(Some("bowline=loud"), &[]).contains("invalid RUST_LOG"));
}

#[test]
fn errors_name_the_address_and_the_port() {
    let addr = common::random_addr();
    let taken = std::net::TcpListener::bind((addr.as_str(), 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = bowline(&["perf", "write-bw", "-d", &addr, "-p", &port]);
    assert!(text(&output.stderr).contains(&format!("{addr}:{port}")), "{}", text(&output.stderr));
    let output = bowline(&["perf", "write-bw", "no-such-host.invalid"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("cannot find no-such-host.invalid:18515"), "{stderr}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let output = bowline(&["--help"]);
    assert!(!text(&output.stdout).contains('\u{1b}'));
}
