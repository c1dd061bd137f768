//! `bowline perf` as people run it: two processes on loopback.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// A server on an address of its own, ended when dropped.
struct Server {
    child: Child,
    addr: String,
    port: String,
}

impl Server {
    fn start(test: &str, args: &[&str]) -> Server {
        let addr = random_addr();
        // Free a moment ago, and on an address that nobody else listens on.
        let port = TcpListener::bind((addr.as_str(), 0)).unwrap().local_addr().unwrap().port();
        let port = port.to_string();
        let mut child = Command::new(BOWLINE)
            .args(["perf", test, "-d", &addr, "-p", &port])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("waiting for a client"), "{first}");
        Server { child, addr, port }
    }

    fn client(&self, test: &str, args: &[&str]) -> Output {
        Command::new(BOWLINE)
            .args(["perf", test, &self.addr, "-p", &self.port, "--json"])
            .args(args)
            .output()
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends by itself after one client; after a failed test it may still wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn random_addr() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

/// Runs a test between two processes; returns the client's JSON.
fn run(test: &str, args: &[&str]) -> Value {
    run_with(Server::start(test, &[]), test, args)
}

fn run_with(mut server: Server, test: &str, args: &[&str]) -> Value {
    let output = server.client(test, args);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(server.child.wait().unwrap().success(), "the server failed");
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

#[test]
fn bandwidth_tests_move_every_message() {
    for test in ["write-bw", "send-bw", "read-bw"] {
        let json = run(test, &["-d", &random_addr(), "-n", "300", "-s", "16K", "-q", "3"]);
        assert_eq!(json["test"], test);
        let row = &json["results"][0];
        assert_eq!((row["bytes"].as_u64(), row["iterations"].as_u64()), (Some(16_384), Some(900)));
        let (peak, average) = (row["bw_peak_gbps"].as_f64(), row["bw_average_gbps"].as_f64());
        assert!(average.unwrap() > 0.0 && peak >= average, "{test}: {row}");
    }
}

#[test]
fn unreliable_bandwidth_is_counted_where_it_arrives() {
    let cases = [("write-bw", "uc"), ("write-bw", "xp"), ("send-bw", "xp"), ("read-bw", "xp")];
    for (test, transport) in cases {
        let report = run(test, &["-s", "64K", "-n", "300", "--transport", transport]);
        let delivered = report["results"][0]["delivered"].as_f64();
        // Senders of one host wait for its receivers, unless these get no turn for long.
        let delivered = delivered.unwrap_or_else(|| panic!("{report}"));
        assert!((0.01..=1.0).contains(&delivered), "{test} {transport}: {report}");
    }
    let report = run("write-bw", &["-s", "64K", "-n", "300"]);
    assert!(report["results"][0]["delivered"].is_null(), "{report}");
}

#[test]
fn latency_tests_order_their_quantiles() {
    for test in ["write-lat", "send-lat", "read-lat", "atomic-lat"] {
        // Both processes on the server's address.
        let json = run(test, &["-n", "200"]);
        let row = &json["results"][0];
        assert_eq!(row["iterations"].as_u64(), Some(200), "{test}: {row}");
        let us = |name: &str| row[name].as_f64().unwrap();
        assert!(us("t_min_us") > 0.0 && us("t_min_us") <= us("t_typical_us"), "{test}: {row}");
        assert!(us("t_typical_us") <= us("p99_us") && us("p99_us") <= us("t_max_us"), "{test}");
    }
}

#[test]
fn a_duration_ends_the_test_and_odd_sizes_work() {
    for test in ["write-bw", "write-lat"] {
        let json = run(test, &["-D", "0.2", "-s", "4097", "-m", "1024", "-t", "7"]);
        assert!(json["results"][0]["iterations"].as_u64().unwrap() > 0);
        assert_eq!(json["mtu"].as_u64(), Some(1024));
    }
}

#[test]
fn inline_and_small_sizes_work() {
    for size in ["1", "7", "8", "64"] {
        let json = run("write-lat", &["-n", "50", "-s", size, "-I", "64"]);
        assert_eq!(json["results"][0]["bytes"].as_u64(), Some(size.parse().unwrap()));
    }
    run("send-bw", &["-n", "500", "-s", "32", "-I", "32"]);
}

#[test]
fn an_impaired_link_is_survived_and_captured() {
    let file: PathBuf = std::env::temp_dir().join(format!("bowline-{}.pcap", std::process::id()));
    let args = ["-n", "200", "-s", "8K", "--link", "loss=1%,delay=100us", "--pcap"];
    let json = run("write-bw", &[&args[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(json["results"][0]["iterations"].as_u64(), Some(200));
    let dissected = Command::new(BOWLINE).arg("dissect").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8(dissected.stdout).unwrap();
    assert!(
        dissected.status.success()
            && text.contains("RC_WRITE_ONLY") | text.contains("RC_WRITE_FIRST")
    );
}

#[test]
fn connections_can_have_a_backup() {
    let store = std::env::temp_dir().join(format!("bowline-perf-{}", std::process::id()));
    let url = format!("file://{}", store.display());
    let server = Server::start(
        "write-lat",
        &["--failover=shift", "--backup", &random_addr(), "--store", &url],
    );
    let (addr, backup) = (random_addr(), random_addr());
    let args = ["--failover=shift", "-d", &addr, "--backup", &backup, "--store", &url, "-D", "1"];
    let json = run_with(server, "write-lat", &args);
    std::fs::remove_dir_all(&store).unwrap();
    assert_eq!(json["failover"]["mode"], "shift");
    assert_eq!(json["failover"]["ready"].as_u64(), Some(1), "{json}");
}

#[test]
fn two_different_tests_do_not_hang() {
    let server = Server::start("write-bw", &[]);
    let output = server.client("read-bw", &[]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("asks for read-bw, but this server runs write-bw"), "{stderr}");
}

#[test]
fn errors_are_one_line_and_a_hint() {
    let nobody = Command::new(BOWLINE)
        .args(["perf", "write-bw", &random_addr(), "-p", "9"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    let stderr = String::from_utf8(nobody.stderr).unwrap();
    let lines: Vec<_> = stderr.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("start the server first"), "{stderr}");
    assert!(lines[1].starts_with("hint: "), "{stderr}");

    for wrong in [&["perf", "write-bw", "-m", "1500"][..], &["perf", "fly"], &["nonsense"]] {
        let output = Command::new(BOWLINE).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}
