//! `bowline group` against a running `bowline switch`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(args: &[&str]) -> Process {
    let mut command = Command::new(BOWLINE);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    Process(command.spawn().unwrap())
}

/// A loopback network for this test alone.
fn net() -> String {
    use std::hash::{BuildHasher, RandomState};
    let [a, b, ..] = RandomState::new().hash_one(0).to_le_bytes();
    format!("127.{}.{b}", a.max(1))
}

/// A port that was free a moment ago, on an address that nobody else listens on.
fn free_port(addr: &str) -> String {
    TcpListener::bind((addr, 0)).unwrap().local_addr().unwrap().port().to_string()
}

/// A server that waits for its client.
fn server(addr: &str, port: &str) -> (Process, BufReader<ChildStderr>) {
    let mut server = start(&["perf", "write-bw", "-d", addr, "-p", port]);
    let mut stderr = BufReader::new(server.0.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for a client"), "{line}");
    (server, stderr)
}

fn group(args: &[&str]) -> Output {
    Command::new(BOWLINE).arg("group").args(args).output().unwrap()
}

/// The only switch in a JSON answer.
fn switch(args: &[&str]) -> Value {
    let output = group(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let mut answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["version"], 1);
    answer["switches"][0].take()
}

#[test]
fn a_switch_tells_about_its_groups_and_evicts() {
    let net = net();
    let at = format!("{net}.100");
    let members: Vec<(String, String)> = (2..5)
        .map(|host| {
            let addr = format!("{net}.{host}");
            let port = free_port(&addr);
            (addr, port)
        })
        .collect();
    let servers: Vec<_> = members.iter().map(|(addr, port)| server(addr, port)).collect();
    let to: Vec<String> = members.iter().map(|(addr, port)| format!("{addr}:{port}")).collect();
    let listen = free_port(&at);
    let mut process = start(&["switch", &at, "--members", &to.join(","), "--listen", &listen]);
    let mut ready = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let here = ["--switch", &*at, "--json"];
    assert_eq!(switch(&[&["ls"], &here[..]].concat())["groups"], Value::Array(vec![]));

    let own = format!("{net}.1");
    let _sender =
        start(&["perf", "write-bw", &at, "-p", &listen, "-d", &own, "-D", "120s", "-s", "64K"]);
    let started = Instant::now();
    let found = loop {
        let found = switch(&[&["stats"], &here[..]].concat());
        if found["counters"]["copies_out"].as_u64() > Some(0) {
            break found;
        }
        assert!(started.elapsed() < PATIENCE, "{found}");
    };
    let one = &found["groups"][0];
    assert_eq!((&one["sender"], &one["epoch"]), (&own.as_str().into(), &1.into()), "{found}");
    assert_eq!(one["policy"], "fail");
    let listed: Vec<&Value> = one["members"].as_array().unwrap().iter().collect();
    assert_eq!(listed.len(), 3);
    assert!(listed.iter().all(|member| member["live"] == true), "{found}");

    let id = one["id"].as_str().unwrap();
    let evicted = switch(&[&["evict", id, &members[2].0], &here[..]].concat());
    let gone = &evicted["groups"][0]["members"][2];
    assert_eq!((&gone["addr"], &gone["live"]), (&members[2].0.as_str().into(), &false.into()));
    // The sender continues.
    let before = evicted["counters"]["acks_out"].as_u64().unwrap();
    while switch(&[&["stats"], &here[..]].concat())["counters"]["acks_out"].as_u64().unwrap()
        <= before
    {
        assert!(started.elapsed() < PATIENCE, "nothing is acknowledged any more");
    }
    // A second eviction comes too late, and the last member stays.
    let twice = group(&["evict", id, &members[2].0, "--switch", &at]);
    assert_eq!(twice.status.code(), Some(1));
    let why = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(why.contains("no live member"), "{why}");
    switch(&[&["evict", id, listed[1]["id"].as_str().unwrap()], &here[..]].concat());
    let last = group(&["evict", id, &members[0].0, "--switch", &at]);
    let why = String::from_utf8_lossy(&last.stderr).into_owned();
    assert!(last.status.code() == Some(1) && why.contains("too few members"), "{why}");

    let text = group(&["ls", "--switch", &at]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("switch {at}")) && text.contains("evicted"), "{text}");
    // A switch is not a device, so other processes do not see it as one.
    let devinfo = Command::new(BOWLINE).args(["devinfo", "--json"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&devinfo.stdout).contains("switch@"));
    drop(servers);
}

#[test]
fn mistakes_are_explained() {
    let nobody = group(&["ls", "--switch", "127.255.255.1"]);
    let why = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(nobody.status.code() == Some(1) && why.contains("127.255.255.1"), "{why}");
    let wrong = group(&["evict", "everyone", "0xfe0001"]);
    let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(1) && why.contains("0xfe0001"), "{why}");
}
