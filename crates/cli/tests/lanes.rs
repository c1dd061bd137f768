//! `bowline perf` on devices with eight lanes: what is left behind when an end is killed.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const PATIENCE: Duration = Duration::from_secs(40);

/// A process that is killed on drop.
struct Process(Child);

impl Process {
    fn start(args: &[&str]) -> Process {
        let child = Command::new(BOWLINE)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        Process(child)
    }

    /// Waits for the first line on stderr.
    fn first_note(&mut self) {
        let mut line = String::new();
        let stderr = self.0.stderr.take().expect("it is piped");
        BufReader::new(stderr).read_line(&mut line).expect("it is text");
    }

    /// Whether it exited successfully, and what it printed.
    fn end(&mut self) -> (bool, String) {
        let start = Instant::now();
        while self.0.try_wait().expect("it is a child").is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        let stdout = self.0.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_to_string(&mut text).expect("it is text");
        (self.0.wait().expect("it is a child").success(), text)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn addr(last: u8) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{last}", 150 + pid / 250 % 50, pid % 250 + 1)
}

fn free_port(addr: &str) -> String {
    let listener = TcpListener::bind((addr, 0)).expect("loopback can be bound");
    listener.local_addr().expect("it is bound").port().to_string()
}

fn run(server: &str, client: &str, seconds: &str) -> [Process; 2] {
    let (port, time) = (free_port(server), format!("{seconds}s"));
    let common = ["-p", &port, "--lanes", "8"];
    let mut at_server =
        Process::start(&[&["perf", "write-bw", "-d", server], &common[..]].concat());
    at_server.first_note();
    let args = ["perf", "write-bw", server, "-d", client, "-q", "8", "-D", &time, "--json"];
    [at_server, Process::start(&[&args[..], &common[..]].concat())]
}

#[test]
fn a_peer_that_is_killed_leaves_nothing_behind() {
    let (server, client) = (addr(1), addr(2));
    for killed in 0..2 {
        let mut ends = run(&server, &client, "30");
        // Long enough that all lanes are busy.
        std::thread::sleep(Duration::from_millis(800));
        ends[killed].0.kill().expect("it runs");
        let (well, text) = ends[1 - killed].end();
        assert!(!well, "its peer is gone, and it says: {text}");
    }
    // All lanes of both addresses are available again, and work.
    let [_server, mut client_end] = run(&server, &client, "0.5");
    let (well, text) = client_end.end();
    assert!(well, "{text}");
    let last: serde_json::Value =
        serde_json::from_str(text.lines().last().expect("a report")).expect("JSON");
    assert_eq!(last["lanes"], 8, "{last}");
}
