//! `bowline fault` on devices of other processes: a `bowline perf` between two.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const PATIENCE: Duration = Duration::from_secs(20);

/// A test between two processes, killed when dropped.
struct Pair {
    server: Child,
    client: Child,
    server_addr: String,
    client_addr: String,
}

impl Pair {
    /// Starts a transfer of some seconds, and waits until both processes have their devices.
    fn start(seconds: &str) -> Pair {
        let (server_addr, client_addr) = (random_addr(), random_addr());
        let listener = TcpListener::bind((server_addr.as_str(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut server = Command::new(BOWLINE)
            .args(["perf", "write-bw", "-d", &server_addr, "-p", &port])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut first).unwrap();
        let client = Command::new(BOWLINE)
            .args(["perf", "write-bw", &server_addr, "-d", &client_addr, "-p", &port])
            .args(["-D", seconds, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pair = Pair { server, client, server_addr, client_addr };
        for addr in [&pair.server_addr, &pair.client_addr] {
            wait_until(|| fault(&[addr]).status.success());
        }
        pair
    }

    fn client_json(mut self) -> Value {
        let status = self.client.wait().unwrap();
        let mut lines = BufReader::new(self.client.stdout.take().unwrap()).lines();
        let last = lines.by_ref().map_while(Result::ok).last().unwrap_or_default();
        assert!(status.success(), "{last}");
        serde_json::from_str(&last).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.client] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn random_addr() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

fn wait_until(mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn fault(args: &[&str]) -> Output {
    Command::new(BOWLINE).arg("fault").args(args).output().unwrap()
}

/// The only device that an order reaches, as JSON.
fn order(args: &[&str]) -> Value {
    let output = fault(&[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["devices"].as_array().unwrap().len(), 1, "{json}");
    json["devices"][0].clone()
}

/// What a process has sent and received.
fn counters(addr: &str) -> (u64, u64) {
    let output = Command::new(BOWLINE).args(["devinfo", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = json["processes"].as_array().unwrap().iter().find(|p| p["addr"] == addr);
    let port = &process.expect("it is alive")["port"];
    (port["tx_packets"].as_u64().unwrap(), port["fault_dropped_in"].as_u64().unwrap())
}

#[test]
fn the_device_of_another_process_goes_down_and_up() {
    let pair = Pair::start("1");
    let addr = pair.server_addr.clone();
    let down = order(&[&addr, "down", "--for", "200ms"]);
    assert_eq!((down["link"].as_str(), down["addr"].as_str()), (Some("down"), Some(&*addr)));
    assert_eq!(down["pid"].as_u64(), Some(u64::from(pair.server.id())));
    assert_eq!(down["faults"][0]["fault"], "down");
    assert!(down["faults"][0]["left_ms"].as_u64().unwrap() <= 200);
    wait_until(|| counters(&addr).1 > 0);
    wait_until(|| order(&[&addr])["link"] == "up");
    assert_eq!(order(&[&addr, "list"])["faults"].as_array().unwrap().len(), 0);

    let client = pair.client_addr.clone();
    let pid = pair.client.id().to_string();
    assert_eq!(order(&[&client, "loss=0.5%", "--pid", &pid])["link"], "up");
    assert_eq!(order(&[&client, "blackhole=in"])["faults"].as_array().unwrap().len(), 2);
    assert_eq!(order(&[&client, "clear"])["faults"].as_array().unwrap().len(), 0);
    let json = pair.client_json();
    assert!(json["results"][0]["iterations"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn a_link_that_stays_down_ends_the_transfer() {
    let mut pair = Pair::start("30");
    let text = String::from_utf8(fault(&[&pair.client_addr, "down"]).stdout).unwrap();
    assert!(text.contains("link down, down"), "{text}");
    // Everybody's devices are listed, and this one among them.
    let all = String::from_utf8(fault(&["list"]).stdout).unwrap();
    assert!(all.contains(&pair.client_addr) && all.contains(&pair.server_addr), "{all}");
    assert_eq!(pair.client.wait().unwrap().code(), Some(1));
}

#[test]
fn errors_say_what_is_wrong() {
    let fails = |args: &[&str], code: i32, hint: &str| {
        let output = fault(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(hint), "{args:?}: {text}");
    };
    fails(&["no-such-device", "down"], 1, "no live process of yours has a device no-such-device");
    fails(
        &["no-such-device", "--pid", "1"],
        1,
        "process 1 has no device no-such-device, or is no live process",
    );
    fails(&["bl0", "sideways"], 2, "write down, up");
    fails(&["bl0", "loss=200%"], 2, "probability");
    fails(&["bl0", "down", "--for", "ever"], 1, "duration");
    fails(&["bl0", "up", "--for", "5s"], 1, "for good");
    fails(&["bl0", "list", "--for", "5s"], 1, "not with a list");
}
