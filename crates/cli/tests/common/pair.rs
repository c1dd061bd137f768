//! A `bowline perf` between two processes, for tests that observe it from outside.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const PATIENCE: Duration = Duration::from_secs(20);

/// A test between two processes, which are killed on drop.
pub struct Pair {
    pub server: Child,
    pub client: Child,
    pub server_addr: String,
    pub client_addr: String,
}

impl Pair {
    /// Starts a test of this duration, and waits until both processes have opened their devices.
    pub fn start(test: &str, time: &str) -> Pair {
        Pair::on(test, time, |_| random_addr())
    }

    /// The same; the client's address is computed from the server's.
    pub fn on(test: &str, time: &str, client_addr: impl Fn(&str) -> String) -> Pair {
        let server_addr = random_addr();
        let client_addr = client_addr(&server_addr);
        let listener = TcpListener::bind((server_addr.as_str(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut server = Command::new(BOWLINE)
            .args(["perf", test, "-d", &server_addr, "-p", &port])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut first).unwrap();
        let client = Command::new(BOWLINE)
            .args(["perf", test, &server_addr, "-d", &client_addr, "-p", &port])
            .args(["-D", time, "--json"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pair = Pair { server, client, server_addr, client_addr };
        for addr in [&pair.server_addr, &pair.client_addr] {
            let look = || Command::new(BOWLINE).args(["fault", addr]).output().unwrap();
            wait_until(|| look().status.success());
        }
        pair
    }

    /// The client's report, after it has exited.
    pub fn client_json(mut self) -> Value {
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

pub fn random_addr() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

pub fn wait_until(mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}
