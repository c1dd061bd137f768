//! `bowline switch --managed` and `--through`: tables for a switch that another process controls.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Scratch, bowline, ended, failed, random, report};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// A process that is killed on drop.
struct Process {
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program, and waits until it prints a line with this text.
fn start(config: &Path, args: &[&str], text: &str) -> Process {
    let mut command = bowline(config);
    command.args(args).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let streams: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stderr.take().unwrap()), Box::new(child.stdout.take().unwrap())];
    let (found, is_found) = std::sync::mpsc::channel();
    // Both are read to the end, so that the program is never stopped by a full pipe.
    for stream in streams {
        let (found, expected) = (found.clone(), text.to_owned());
        std::thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                if line.contains(&expected) {
                    let _ = found.send(());
                }
            }
        });
    }
    is_found.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{args:?} did not print {text}"));
    Process { child }
}

fn free_port(addr: &str) -> String {
    TcpListener::bind((addr, 0)).unwrap().local_addr().unwrap().port().to_string()
}

fn run(config: &Path, args: &[&str]) -> Output {
    bowline(config).args(args).output().unwrap()
}

/// Three members, the first two of which are behind a managed switch.
struct Place {
    net: String,
    ports: Vec<String>,
    members: Vec<Process>,
}

impl Place {
    fn new(config: &Path) -> Place {
        let [a, b, ..] = random().to_le_bytes();
        let net = format!("127.{}.{b}", a.max(1));
        let (mut ports, mut members) = (Vec::new(), Vec::new());
        for host in 2..5 {
            let addr = format!("{net}.{host}");
            let port = free_port(&addr);
            let args = ["perf", "write-bw", "-d", &addr, "-p", &port];
            members.push(start(config, &args, "waiting for a client"));
            ports.push(port);
        }
        Place { net, ports, members }
    }

    fn managed_addr(&self) -> String {
        format!("{}.99", self.net)
    }

    fn managed(&self, config: &Path, port: &str, args: &[&str]) -> Process {
        let addr = self.managed_addr();
        let all = [&["switch", &addr, "--managed", "--listen", port], args].concat();
        start(config, &all, "waiting for controllers")
    }

    /// The arguments of the root, without its port.
    fn root(&self, managed_port: &str) -> Vec<String> {
        let net = &self.net;
        let members: Vec<String> =
            self.ports.iter().zip(2..).map(|(port, host)| format!("{net}.{host}:{port}")).collect();
        let through = format!("{net}.99:{managed_port}={net}.2,{net}.3");
        let root = format!("{net}.100");
        ["switch", &root, "--members", &members.join(","), "--through", &through]
            .map(str::to_owned)
            .to_vec()
    }

    /// The groups of the managed switch.
    fn groups(&self, config: &Path) -> Vec<Value> {
        let args = ["group", "ls", "--json", "--switch", &self.managed_addr()];
        let answer = report(&run(config, &args));
        answer["switches"][0]["groups"].as_array().cloned().unwrap_or_default()
    }
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn until(what: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !what() {
        assert!(Instant::now() < deadline, "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_managed_switch_wants_to_know_its_controller() {
    let scratch = Scratch::new();
    let (here, there) = (scratch.path("here"), scratch.path("there"));
    let place = Place::new(&here);
    let port = free_port(&place.managed_addr());
    let _managed = place.managed(&there, &port, &["--secure"]);
    let root = place.root(&port);
    let listen = free_port(&place.managed_addr());
    let with = |more: &[&'static str]| {
        let mut args = strs(&root);
        args.extend(["--listen", &listen]);
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // Nobody who does not say who he is, and no stranger.
    let plain = run(&here, &strs(&with(&[])));
    failed(&plain, "wants to know who connects");
    failed(&run(&here, &strs(&with(&["--secure"]))), "is not known");
    failed(&run(&here, &strs(&with(&["--secure", "--accept-new"]))), "bowline key trust");
    let key = report(&run(&here, &["key", "show", "--json"]))["key"].as_str().unwrap().to_owned();
    assert!(run(&there, &["key", "trust", &key]).status.success());
    let args = with(&["--secure", "--accept-new", "--once"]);
    let _root = start(&here, &strs(&args), "waiting for senders");
    let to = format!("{}.100:{listen}", place.net);
    let from = format!("{}.1", place.net);
    let perf = run(&here, &["perf", "write-bw", &to, "-d", &from, "-s", "64K", "-n", "200"]);
    assert!(perf.status.success(), "{}", String::from_utf8_lossy(&perf.stderr));
    until(|| place.groups(&there).is_empty());
}

#[test]
fn tables_go_with_the_root_and_nothing_is_acknowledged_without_the_switch() {
    let scratch = Scratch::new();
    let config = scratch.path("config");
    for kills_root in [true, false] {
        let place = Place::new(&config);
        let port = free_port(&place.managed_addr());
        let managed = place.managed(&config, &port, &[]);
        let listen = free_port(&place.managed_addr());
        let mut args = place.root(&port);
        args.extend(["--listen".to_owned(), listen.clone()]);
        let root = start(&config, &strs(&args), "waiting for senders");
        assert!(place.groups(&config).is_empty());
        let (to, from) = (format!("{}.100:{listen}", place.net), format!("{}.1", place.net));
        let mut sender = bowline(&config);
        sender.args(["perf", "write-bw", &to, "-d", &from, "-s", "64K", "-D", "60s"]);
        let mut sender = Process { child: sender.spawn().unwrap() };
        until(|| place.groups(&config).len() == 1);
        let group = &place.groups(&config)[0];
        assert_eq!(group["members"].as_array().map(Vec::len), Some(2), "{group}");
        assert_eq!(group["epoch"], 1);
        if kills_root {
            drop(root);
            until(|| place.groups(&config).is_empty());
        } else {
            drop(managed);
        }
        let mut status = None;
        let deadline = Instant::now() + PATIENCE;
        while status.is_none() && Instant::now() < deadline {
            status = sender.child.try_wait().unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(status.is_some_and(|status| !status.success()), "{status:?}");
        drop(place.members);
    }
}

#[test]
fn mistakes_are_explained() {
    let scratch = Scratch::new();
    let config = scratch.path("config");
    let with = |args: &[&str]| run(&config, &[&["switch", "127.0.0.99"], args].concat());
    ended(&with(&[]), 2, "--members");
    ended(&with(&["--managed", "--members", "127.0.0.2:1"]), 2, "cannot be used with");
    ended(&with(&["--members", "127.0.0.2:1", "--through", "127.0.0.98"]), 2, "SWITCH=MEMBER");
    let unknown = ["--members", "127.0.0.2:1", "--through", "127.0.0.98=127.0.0.3"];
    failed(&with(&unknown), "`127.0.0.3` is neither in --members");
    let quorum = ["--members", "127.0.0.2:1", "--through", "127.0.0.98=127.0.0.2"];
    failed(&with(&[&quorum[..], &["--policy", "quorum=1,1s"]].concat()), "use evict=TIME");
    let port = free_port("127.0.0.98");
    let gone = format!("127.0.0.98:{port}=127.0.0.2");
    failed(&with(&["--members", "127.0.0.2:1", "--through", &gone]), "127.0.0.98");
    let own = ["--members", "127.0.0.99:18515"];
    failed(&with(&own), "its own member");
}
