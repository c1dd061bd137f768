//! `bowline perf` as users run it: two processes on loopback.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// A server on its own address. It is killed on drop.
struct Server {
    child: Child,
    addr: String,
    port: String,
}

impl Server {
    fn start(test: &str, args: &[&str]) -> Server {
        let addr = random_addr();
        // A port that was free a moment ago, on an address that nobody else listens on.
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
        // The server exits after one client, but may still wait after a failed test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn random_addr() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

/// Runs a test between two processes. Returns the client's JSON.
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
        // On one host, senders wait for receivers, unless these are not scheduled for a long time.
        let delivered = delivered.unwrap_or_else(|| panic!("{report}"));
        assert!((0.01..=1.0).contains(&delivered), "{test} {transport}: {report}");
    }
    let report = run("write-bw", &["-s", "64K", "-n", "300"]);
    assert!(report["results"][0]["delivered"].is_null(), "{report}");
}

/// The reported loss equals what the link lost, packet by packet.
#[test]
fn the_loss_figure_is_what_the_link_lost() {
    for (test, transport, size) in [
        ("write-bw", "rc", "8K"),
        ("write-bw", "uc", "16K"),
        ("send-bw", "ud", "1K"),
        ("write-bw", "xp", "16K"),
    ] {
        // At a rate that overflows no socket buffer.
        let link = "loss=3%,rate=400Mbps,delay=2ms,queue=64MiB,seed=5";
        let args = ["-s", size, "-n", "400", "--transport", transport, "--link", link, "-t", "16"];
        let report = run(test, &args);
        let loss = &report["results"][0]["ends"]["to_server"];
        let lost = loss["lost_packets"].as_u64().unwrap_or_else(|| panic!("{report}"));
        assert!(loss["sent_packets"].as_u64().unwrap() >= 400, "{transport}: {report}");
        assert!(lost > 0, "{transport}: {report}");
        assert_eq!(lost, counter(&report, "port", "impair_lost"), "{transport}: {report}");
    }
    // The same with a scheme.
    let link = "loss=3%,rate=400Mbps,delay=2ms,queue=64MiB,seed=5";
    let report =
        run("write-bw", &["-s", "256K", "-n", "30", "--scheme", "sr-nack", "--link", link]);
    let lost = report["results"][0]["ends"]["to_server"]["lost_packets"].as_u64().unwrap();
    let of_link = counter(&report, "port", "impair_lost");
    // The ends keep exchanging packets while they count: as many as the link holds may be in
    // flight, which are 24 of 4 KiB at this rate and delay.
    assert!(lost > 0 && lost.abs_diff(of_link) <= 32, "{report}");
}

/// Both ends of a scheme must cut messages in the same way, so the server uses the MTU that only
/// the client was given.
#[test]
fn a_schemes_server_takes_the_clients_mtu() {
    let report = run("write-bw", &["-s", "64K", "-n", "20", "--scheme", "sr-nack", "-m", "1024"]);
    assert_eq!(report["results"][0]["iterations"], 20, "{report}");
    assert_eq!(report["mtu"], 1024, "{report}");
}

#[test]
fn both_ends_send_at_the_same_time() {
    for (test, transport) in
        [("write-bw", "rc"), ("send-bw", "rc"), ("read-bw", "rc"), ("send-bw", "ud")]
    {
        let report =
            run(test, &["-b", "-s", "1K", "-n", "300", "-q", "2", "--transport", transport]);
        let row = &report["results"][0];
        assert_eq!(row["iterations"], 2 * 2 * 300, "{test} {transport}: {row}");
        let ways = &row["directions"];
        let sum = ways["client_gbps"].as_f64().unwrap() + ways["server_gbps"].as_f64().unwrap();
        assert!((sum - row["bw_average_gbps"].as_f64().unwrap()).abs() < 1e-9, "{row}");
        // Data flows in both directions.
        for way in ["to_server", "to_client"] {
            assert!(row["ends"][way]["sent_packets"].as_u64().unwrap() > 0, "{row}");
        }
    }
    let timed = run("write-bw", &["-b", "-D", "300ms", "-s", "4K"]);
    assert!(timed["results"][0]["iterations"].as_u64() > Some(0), "{timed}");
}

#[test]
fn datagrams_are_sent_and_counted() {
    let report = run("send-bw", &["--transport", "ud", "-n", "500"]);
    let row = &report["results"][0];
    assert_eq!((row["bytes"].as_u64(), row["iterations"].as_u64()), (Some(1024), Some(500)));
    assert!(row["delivered"].as_f64().unwrap() > 0.01, "{row}");
    let report = run("send-lat", &["--transport", "ud", "-n", "100", "-s", "64"]);
    assert_eq!(report["results"][0]["iterations"], 100, "{report}");
    let server = Server::start("write-bw", &[]);
    let output = server.client("write-bw", &["--transport", "ud"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("write-bw does not work over UD"), "{stderr}");
    let server = Server::start("send-bw", &[]);
    let output = server.client("send-bw", &["--transport", "ud", "-s", "8K"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("at most 4096 bytes here: use -s 4096"), "{stderr}");
}

#[test]
fn intervals_and_cpu_are_told() {
    for test in ["write-bw", "write-lat"] {
        let server = Server::start(test, &[]);
        let output = server.client(test, &["-D", "900ms", "-i", "200ms", "-s", "4K"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 1, "JSON and nothing else: {text}");
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["version"], 1);
        let row = &report["results"][0];
        let intervals = row["intervals"].as_array().unwrap();
        assert!((2..=4).contains(&intervals.len()), "{row}");
        let measured = if test == "write-bw" { "bw_gbps" } else { "t_typical_us" };
        assert!(intervals.iter().all(|i| i[measured].as_f64() > Some(0.0)), "{row}");
        for end in ["client_cpu_percent", "server_cpu_percent"] {
            let percent = row["ends"][end].as_f64().unwrap_or_else(|| panic!("{row}"));
            assert!(percent > 0.0 && percent < 6400.0, "{row}");
        }
    }
}

/// Without JSON, lines appear while the test runs.
#[test]
fn interval_lines_are_printed() {
    let server = Server::start("write-bw", &[]);
    let output = Command::new(BOWLINE)
        .args(["perf", "write-bw", &server.addr, "-p", &server.port, "-D", "1s", "-i", "100ms"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter(|line| line.contains("packets resent")).count();
    // A busy machine skips some intervals.
    assert!((1..=10).contains(&lines), "{text}");
}

#[test]
fn ctrl_c_prints_what_was_measured() {
    for (test, transport) in [("write-bw", "rc"), ("write-lat", "rc"), ("write-bw", "uc")] {
        let mut server = Server::start(test, &[]);
        let client = Command::new(BOWLINE)
            .args(["perf", test, &server.addr, "-p", &server.port, "--json", "-D", "60s"])
            .args(["--transport", transport, "-s", "4K", "-d", &random_addr()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let pid = rustix::process::Pid::from_child(&client);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = client.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{test}: {stderr}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &report["results"][0];
        assert_eq!(row["interrupted"], true, "{test}: {row}");
        assert!(row["iterations"].as_u64() > Some(0), "{test}: {row}");
        // The server was told, and has its own result.
        assert!(server.child.wait().unwrap().success(), "{test}");
    }
}

#[test]
fn without_libibverbs_a_verbs_device_says_what_to_install() {
    let missing = |args: &[&str]| {
        let mut command = Command::new(BOWLINE);
        let output = command.env("BOWLINE_LIBIBVERBS", "/nowhere/libibverbs.so.1").args(args);
        output.output().unwrap()
    };
    let output = missing(&["perf", "write-bw", "-d", "verbs:rxe0"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("/nowhere/libibverbs.so.1") && stderr.contains("apt install"),
        "{stderr}"
    );

    let output = missing(&["devinfo"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && stdout.contains("no verbs devices: "), "{stdout}");

    let output = missing(&["run", "--device", "bl0=verbs:rxe0", "--", "true"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("the system's own libibverbs"), "{stderr}");
}

#[test]
fn latency_tests_order_their_quantiles() {
    for test in ["write-lat", "send-lat", "read-lat", "atomic-lat"] {
        // Both processes use the server's address.
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
        let json = run(test, &["-D", "200ms", "-s", "4097", "-m", "1024", "-t", "7"]);
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

/// A counter of one end's NIC or port; counters that are zero are left out.
fn counter(json: &Value, part: &str, name: &str) -> u64 {
    json[part][name].as_u64().unwrap_or(0)
}

#[test]
fn processes_of_a_host_share_memory() {
    for (test, args) in [
        ("write-bw", &["-s", "256K", "-n", "400"][..]),
        ("send-bw", &["-s", "4000", "-n", "2000", "-q", "4"]),
        ("read-bw", &["-s", "64K", "-n", "300"]),
        ("write-lat", &["-n", "500"]),
        ("write-bw", &["-s", "64K", "-n", "200", "--lanes", "2", "-q", "4"]),
        ("write-bw", &["-s", "256K", "-n", "20", "--scheme", "sr-nack"]),
        ("write-bw", &["-s", "64K", "-n", "300", "--fec", "auto"]),
    ] {
        let server = Server::start(test, &["--via", "shm"]);
        let addr = random_addr();
        let args = [args, &["--via", "auto", "-d", &addr]].concat();
        let json = run_with(server, test, &args);
        assert_eq!(json["via"], "auto", "{test}");
        if json["transport"] != "rc" {
            continue;
        }
        let (all, shared) =
            (counter(&json, "port", "tx_bursts"), counter(&json, "port", "shm_tx_bursts"));
        // WRITEs need no packets there; a code needs all of them.
        let is_direct = test.starts_with("write") && !args.contains(&"--fec");
        assert_eq!(counter(&json, "nic", "direct_writes") > 0, is_direct, "{test}: {json}");
        let few = if is_direct { shared + 2 } else { shared };
        assert!(few > 0 && few * 2 > all, "{test}: {shared} of {all}: {json}");
        assert_eq!(counter(&json, "nic", "drop_icrc"), 0, "{test}: {json}");
        assert_eq!(counter(&json, "port", "shm_refused"), 0, "{test}: {json}");
    }
}

/// Nobody closes the door of a process that was killed.
#[test]
fn memory_of_a_process_that_was_killed_is_soon_not_written_any_longer() {
    let mut server = Server::start("write-bw", &["--via", "shm"]);
    let mut client = Command::new(BOWLINE)
        .args(["perf", "write-bw", &server.addr, "-p", &server.port, "-D", "60s"])
        .args(["--via", "shm", "-d", &random_addr(), "-s", "64K"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(client.try_wait().unwrap().is_none(), "it measures for a minute");
    server.child.kill().unwrap();
    let killed = Instant::now();
    let status = loop {
        if let Some(status) = client.try_wait().unwrap() {
            break status;
        }
        if killed.elapsed() > Duration::from_secs(30) {
            client.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // A signal is not a code.
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
}

#[test]
fn a_capture_of_shared_memory_has_right_icrcs() {
    let file = std::env::temp_dir().join(format!("bowline-shm-{}.pcap", std::process::id()));
    let server = Server::start("write-bw", &["--via", "shm"]);
    let addr = random_addr();
    let args = ["-n", "200", "-s", "9000", "--via", "shm", "-d", &addr, "--pcap"];
    let json = run_with(server, "write-bw", &[&args[..], &[file.to_str().unwrap()]].concat());
    assert!(counter(&json, "port", "shm_tx_bursts") > 0, "{json}");
    let dissected = Command::new(BOWLINE).args(["dissect", "--json"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    let text = String::from_utf8(dissected.stdout).unwrap();
    let packets: Value = serde_json::from_str(&text).unwrap();
    let icrcs = packets["packets"].as_array().unwrap().iter().map(|packet| &packet["icrc"]);
    let (right, wrong): (Vec<_>, Vec<_>) = icrcs.partition(|icrc| *icrc == "ok");
    assert!(right.len() > 600 && wrong.is_empty(), "{} right, {} not", right.len(), wrong.len());
}

#[test]
fn a_peer_without_shared_memory_is_reached_by_udp_and_that_is_said() {
    let server = Server::start("write-bw", &["--via", "udp"]);
    let addr = random_addr();
    let output = server.client("write-bw", &["-n", "100", "--via", "shm", "-v", "-d", &addr]);
    let (stdout, stderr) =
        [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap()).into();
    assert!(output.status.success(), "{stdout}{stderr}");
    let json: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(counter(&json, "port", "shm_tx_bursts"), 0, "{json}");
    assert_eq!(counter(&json, "port", "shm_fallbacks"), 1, "{json}");
    assert!(stderr.contains(&server.addr) && stderr.contains("UDP"), "{stderr}");
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
    let args = ["--failover=shift", "-d", &addr, "--backup", &backup, "--store", &url, "-D", "1s"];
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

    let units = ["perf", "write-bw", "-D", "5"];
    let output = Command::new(BOWLINE).args(units).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("invalid duration `5`: add a unit, e.g. 5s"), "{stderr}");
    for wrong in [&["perf", "write-bw", "-m", "1500"][..], &["perf", "fly"], &["nonsense"], &units]
    {
        let output = Command::new(BOWLINE).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

/// Measures against several servers, which must all exit successfully.
fn to_many(servers: Vec<Server>, args: &[&str]) -> Value {
    let to: Vec<String> =
        servers.iter().map(|server| format!("{}:{}", server.addr, server.port)).collect();
    let output = Command::new(BOWLINE)
        .args(["perf", "write-bw", "--to", &to.join(","), "-d", &random_addr(), "--json"])
        .args(args)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for mut server in servers {
        assert!(server.child.wait().unwrap().success(), "a server failed");
    }
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_scheme_reaches_many_servers_in_the_port_and_by_fan_out() {
    for (scheme, replicate) in [("ec-mds", "port"), ("sr-nack", "port"), ("ec-mds", "fan-out")] {
        let servers = (0..3).map(|_| Server::start("write-bw", &[])).collect();
        let report = to_many(
            servers,
            &[
                "--scheme",
                scheme,
                "--replicate",
                replicate,
                "-s",
                "256K",
                "-n",
                "40",
                "--link",
                "loss=0.5%,seed=3",
            ],
        );
        let row = &report["results"][0];
        assert_eq!((&row["bytes"], &row["iterations"]), (&262_144.into(), &40.into()), "{report}");
        let replication = &row["replication"];
        assert_eq!(replication["servers"], 3, "{report}");
        assert_eq!(replication["replicate"], replicate, "{report}");
        assert!(replication["t_typical_us"].as_f64() > Some(0.0), "{report}");
    }
}

#[test]
fn many_servers_are_reached_by_multicast_where_it_works() {
    for (args, expected) in [
        (&["--replicate", "multicast"][..], "multicast"),
        (&["--replicate", "multicast", "--link", "loss=1%,seed=3"], "multicast"),
        (&[], "multicast"),
        (&["--replicate", "port"], "port"),
    ] {
        for count in [2, 3] {
            let servers = (0..count).map(|_| Server::start("write-bw", &[])).collect();
            let sizes = ["-s", "256K", "-n", "40", "-t", "8"];
            let report = to_many(servers, &[args, &sizes].concat());
            let replication = &report["results"][0]["replication"];
            assert_eq!(replication["replicate"], expected, "{report}");
            assert_eq!(replication["servers"], count, "{report}");
        }
    }
}

/// Measures a chain of three servers, one of which may be killed meanwhile.
fn chain(test: &str, args: &[&str], kill: Option<usize>) -> (Vec<Server>, Output) {
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(test, &[])).collect();
    let to: Vec<String> =
        servers.iter().map(|server| format!("{}:{}", server.addr, server.port)).collect();
    let sender = Command::new(BOWLINE)
        .args(["perf", test, "--to", &to.join(","), "-d", &random_addr(), "--json"])
        .args(["--replicate", "chain"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(kill) = kill {
        std::thread::sleep(std::time::Duration::from_secs(1));
        servers[kill].child.kill().unwrap();
    }
    (servers, sender.wait_with_output().unwrap())
}

#[test]
fn a_chain_of_servers_has_every_byte_also_where_packets_get_lost() {
    let sizes = ["-s", "100000", "-n", "300", "-t", "16"];
    let cases = [
        ("write-bw", &sizes[..]),
        ("send-bw", &sizes),
        ("write-bw", &["-s", "64K", "-n", "200", "--link", "loss=1%,seed=3"]),
        ("write-bw", &["-a", "-n", "20", "-t", "4"]),
    ];
    for (test, args) in cases {
        let (servers, output) = chain(test, args, None);
        // The sender has compared each server's data with what it sent.
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{test} {args:?}: {stderr}");
        for mut server in servers {
            assert!(server.child.wait().unwrap().success(), "{test} {args:?}: a server failed");
        }
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let row = &report["results"][0];
        let count = args.iter().position(|arg| *arg == "-n").map(|n| args[n + 1]);
        assert_eq!(row["iterations"].as_u64(), count.and_then(|count| count.parse().ok()));
        assert_eq!(row["replication"]["replicate"], "chain", "{report}");
        assert_eq!(row["replication"]["servers"], 3, "{report}");
        assert!(row["replication"]["t_typical_us"].as_f64() > Some(0.0), "{report}");
    }
}

#[test]
fn a_server_that_dies_in_a_chain_is_named() {
    for dead in 0..3 {
        let (servers, output) = chain("write-bw", &["-s", "64K", "-D", "20s"], Some(dead));
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        let (addr, port) = (&servers[dead].addr, &servers[dead].port);
        assert!(stderr.contains(&format!("{addr}:{port}: disconnected")), "{stderr}");
    }
}

#[test]
fn chains_and_ip_multicast_take_no_scheme() {
    for way in ["chain", "multicast"] {
        let args = ["perf", "write-bw", "--to", "127.0.0.1", "--replicate", way];
        let args = args.into_iter().chain(["--scheme", "ec-mds"]);
        let output = Command::new(BOWLINE).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        let expected = format!("--replicate {way} uses RC: remove --scheme");
        assert!(stderr.contains(&expected), "{stderr}");
    }
}
