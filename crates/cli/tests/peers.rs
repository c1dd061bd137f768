//! Peers that authenticate each other by keys or by a code, as users do; and others, which are
//! rejected.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use common::{BOWLINE, MIB, Recv, Scratch, bowline, failed, noise, random, report};

fn key(config: &Path, args: &[&str]) -> Output {
    bowline(config).arg("key").args(args).output().unwrap()
}

fn public_key(config: &Path) -> String {
    let shown = key(config, &["show", "--json"]);
    assert!(shown.status.success(), "{shown:?}");
    report(&shown)["key"].as_str().unwrap().to_owned()
}

#[test]
fn keys_are_made_shown_trusted_and_forgotten() {
    let scratch = Scratch::new();
    let config = scratch.path("config");
    let ours = public_key(&config);
    assert_eq!(public_key(&config), ours);
    failed(&key(&config, &["new"]), "has a key already");
    assert!(key(&config, &["new", "--force"]).status.success());
    assert_ne!(public_key(&config), ours);

    assert!(key(&config, &["trust", &ours, "ada"]).status.success());
    assert!(key(&config, &["trust", "--host", "nas", &ours]).status.success());
    let list = report(&key(&config, &["ls", "--json"]));
    assert_eq!(list["authorized_keys"][0]["name"], "ada");
    assert_eq!(list["known_hosts"][0]["host"], "nas:18517");
    assert!(key(&config, &["forget", "nas"]).status.success());
    assert!(key(&config, &["forget", "ada"]).status.success());
    failed(&key(&config, &["forget", "ada"]), "is not trusted");
    let wrong = key(&config, &["trust", "nonsense"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

#[test]
fn a_known_peer_sends_and_a_stranger_is_told_what_to_do() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let file = scratch.write("file", &noise(3 * MIB, 1));
    let mut recv = Recv::with_config(&scratch.path("out"), &there, &here, &["--json"]);
    // The host is unknown, and there is no user to ask.
    let output = recv.send(&[&file], &["--secure"]);
    failed(&output, "is not known yet");
    let fingerprint = report(&key(&there, &["show", "--json"]));
    let fingerprint = fingerprint["fingerprint"].as_str().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains(fingerprint));
    // The host's key is accepted at first use, but the receiver does not know the sender.
    let output = recv.send(&[&file], &["--secure", "--accept-new"]);
    let ours = public_key(&here);
    failed(&output, &format!("bowline key trust {ours}"));
    recv.line_with(&format!("bowline key trust {ours}"));
    assert!(!scratch.path("out/file").exists());
    // Now the receiver knows it, without a restart.
    assert!(key(&there, &["trust", &ours, "ada"]).status.success());
    let sent = recv.send_ok(&[&file], &["--secure"]);
    assert_eq!(sent["peer"], fingerprint);
    assert_eq!(fs::read(scratch.path("out/file")).unwrap(), noise(3 * MIB, 1));
    assert!(key(&there, &["forget", "ada"]).status.success());
    failed(&recv.send(&[&file], &["--secure"]), "does not know this end's key");
}

#[test]
fn a_host_whose_key_changed_is_refused() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let file = scratch.write("file", b"secret");
    let recv = Recv::with_config(&scratch.path("out"), &there, &here, &["--json"]);
    assert!(key(&there, &["trust", &public_key(&here)]).status.success());
    recv.send_ok(&[&file], &["--secure", "--accept-new"]);
    assert!(key(&there, &["new", "--force"]).status.success());
    let host = format!("{}:{}", recv.addr, recv.port);
    let output = recv.send(&[&file], &["--secure", "--accept-new"]);
    failed(&output, &format!("THE KEY OF {host} HAS CHANGED"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("bowline key forget"));
    assert!(key(&here, &["forget", &host]).status.success());
    recv.send_ok(&[&file], &["--secure", "--accept-new"]);
}

#[test]
fn a_code_is_enough_and_a_wrong_one_is_void() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let file = scratch.write("file", &noise(MIB, 2));
    let mut recv = Recv::with_config(&scratch.path("out"), &there, &here, &["--code", "--json"]);
    let first = recv.code();
    assert_eq!(first.split('-').count(), 3, "{first}");
    let words: Vec<&str> = first.split('-').collect();
    let wrong =
        format!("{}-{}-{}", words[0], words[1], if words[2] == "fox" { "owl" } else { "fox" });
    let wrong = wrong.replace("owl", "otter");
    failed(&recv.send(&[&file], &["--code", &wrong]), "the code is wrong, and void now");
    let second = recv.code();
    assert_ne!(first, second);
    // The first code is void, whoever has it. Trying it counts as an attempt too.
    failed(&recv.send(&[&file], &["--code", &first]), "the code is wrong, and void now");
    let third = recv.code();
    let sent = recv.send_ok(&[&file], &["--code", &third.to_uppercase().replace('-', " ")]);
    let received = recv.report();
    assert_eq!(sent["digest"], received["digest"]);
    assert!(sent["peer"].is_string() && received["peer"].is_string());
    // No key was stored.
    let list = report(&key(&there, &["ls", "--json"]));
    assert_eq!(list["authorized_keys"].as_array().unwrap().len(), 0);
}

#[test]
fn three_wrong_tries_end_the_receiver() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let file = scratch.write("file", b"x");
    let mut recv = Recv::with_config(&scratch.path("out"), &there, &here, &["--code"]);
    for _ in 0..3 {
        let code = recv.code();
        let words: Vec<&str> = code.split('-').collect();
        let other = if words[0] == "acorn" { "zebra" } else { "acorn" };
        let wrong = format!("{other}-{}-{}", words[1], words[2]);
        failed(&recv.send(&[&file], &["--code", &wrong]), "void");
    }
    recv.line_with("somebody may be guessing");
    assert_eq!(recv.child.wait().unwrap().code(), Some(1));
}

#[test]
fn a_pair_that_remembers_needs_no_second_code() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let file = scratch.write("file", b"x");
    let mut recv =
        Recv::with_config(&scratch.path("out"), &there, &here, &["--code", "--remember"]);
    let code = recv.code();
    let sent = recv.send(&[&file], &["--code", &code, "--remember"]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(recv.child.wait().unwrap().success());
    let hosts = report(&key(&here, &["ls", "--json"]));
    assert_eq!(hosts["known_hosts"].as_array().unwrap().len(), 1);
    let peers = report(&key(&there, &["ls", "--json"]));
    assert_eq!(peers["authorized_keys"].as_array().unwrap().len(), 1);
}

#[test]
fn many_silent_strangers_hold_up_nobody() {
    let scratch = Scratch::new();
    let file = scratch.write("file", b"x");
    let recv = Recv::start(&scratch.path("out"), &[]);
    let port: u16 = recv.port.parse().unwrap();
    let strangers: Vec<_> = (0..40)
        .filter_map(|_| std::net::TcpStream::connect((recv.addr.as_str(), port)).ok())
        .collect();
    // All connections come from one address. A sender from there waits until the first ones are
    // given up, and one from elsewhere does not. On loopback the kernel picks 127.0.0.1 for all, so
    // this is the worse case.
    let start = std::time::Instant::now();
    let mut output = recv.send(&[&file], &[]);
    while !output.status.success() && start.elapsed() < Duration::from_secs(30) {
        output = recv.send(&[&file], &[]);
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(strangers);
}

/// A `bowline perf` server with its own configuration, killed on drop, and its output.
struct Perf {
    child: std::process::Child,
    addr: String,
    port: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Perf {
    fn start(config: &Path, args: &[&str]) -> Perf {
        let addr = common::random_addr();
        let free = std::net::TcpListener::bind((addr.as_str(), 0)).unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        drop(free);
        let mut command = bowline(config);
        command.args(["perf", "write-bw", "-d", &addr, "-p", &port]).args(args);
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("waiting for a client"), "{line}");
        Perf { child, addr, port, stderr }
    }

    fn client(&self, config: &Path, args: &[&str]) -> Output {
        let mut command = bowline(config);
        command.args(["perf", "write-bw", &self.addr, "-p", &self.port, "-n", "100", "--json"]);
        command.args(args).output().unwrap()
    }
}

impl Drop for Perf {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn perf_asks_who_is_there_and_seals() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let mut server = Perf::start(&there, &["--seal"]);
    // Neither a stranger nor a client that does not authenticate ends the server.
    failed(&server.client(&here, &["--seal", "--accept-new"]), "bowline key trust");
    failed(&server.client(&here, &[]), "it wants to know who connects");
    assert!(key(&there, &["trust", &public_key(&here)]).status.success());
    let output = server.client(&here, &["--seal"]);
    assert_eq!(report(&output)["sealed"], true, "{output:?}");
    assert!(server.child.wait().unwrap().success());

    let server = Perf::start(&there, &["--insecure"]);
    assert_eq!(report(&server.client(&here, &["--insecure"]))["sealed"], false);
}

#[test]
fn perf_takes_a_code() {
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let mut server = Perf::start(&there, &["--code"]);
    let mut line = String::new();
    server.stderr.read_line(&mut line).unwrap();
    let code = line.trim().strip_prefix("code: ").unwrap().to_owned();
    let wrong = if code.starts_with("acorn") { "zebra" } else { "acorn" };
    let wrong = format!("{wrong}-{}", code.split_once('-').unwrap().1);
    failed(&server.client(&here, &["--code", &wrong]), "the code is wrong, and void now");
    line.clear();
    while !line.contains("code: ") {
        line.clear();
        server.stderr.read_line(&mut line).unwrap();
    }
    let code = line.trim().strip_prefix("code: ").unwrap();
    let output = server.client(&here, &["--code", code, "--scheme", "sr-nack"]);
    assert_eq!(report(&output)["sealed"], true, "{output:?}");
    failed(&server.client(&here, &["--code"]), "--code WORDS");
}

/// Outside loopback both ends must authenticate, unless both are told not to.
#[test]
fn perf_off_loopback_is_authenticated_unless_asked_otherwise() {
    if !can_make_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let (there, here) = (scratch.path("there"), scratch.path("here"));
    let measure = |server: &str, client: &str| {
        let left = format!(
            "XDG_CONFIG_HOME={} exec {BOWLINE} perf write-bw -d {{left}} {server}",
            there.display()
        );
        let right = format!(
            "XDG_CONFIG_HOME={} exec {BOWLINE} perf write-bw {{left}} -d {{right}} -n 50 {client}",
            here.display()
        );
        Command::new(BOWLINE)
            .args(["wan", "--late-limit", "10s", "--left", &left, "--right", &right])
            .output()
            .unwrap()
    };
    let refused = measure("", "--insecure");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("refused") && text.contains("--code or --insecure"), "{text}");
    assert!(measure("--insecure", "--insecure").status.success());
    assert!(key(&there, &["trust", &public_key(&here)]).status.success());
    let sealed = measure("", "--accept-new");
    let text = String::from_utf8_lossy(&sealed.stdout);
    assert!(sealed.status.success(), "{text}{}", String::from_utf8_lossy(&sealed.stderr));
    assert!(text.contains("write-bw, sealed"), "{text}");
}

/// Whether this system allows two network namespaces.
fn can_make_namespaces() -> bool {
    let tried = Command::new(BOWLINE).args(["wan", "--right", "true"]).output().unwrap();
    if !tried.status.success() {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&tried.stderr).trim());
    }
    tried.status.success()
}

/// Two commands and one code between two network namespaces: the file arrives, and nothing of it
/// can be read on the network.
#[test]
fn a_newcomer_needs_two_commands_and_one_code() {
    if !can_make_namespaces() {
        return;
    }
    let scratch = Scratch::new();
    let secret = format!("plaintext-{:016x}-plaintext ", random());
    let file = scratch.write("secret-name.txt", secret.repeat(40_000).as_bytes());
    let (there, here, out) = (scratch.path("there"), scratch.path("here"), scratch.path("out"));
    let (said, capture) = (scratch.path("said"), scratch.path("capture"));
    // One user reads the code to the other.
    let left = format!(
        "XDG_CONFIG_HOME={} exec {BOWLINE} recv --code {} 2>{}",
        there.display(),
        out.display(),
        said.display()
    );
    let right = format!(
        "until code=$(sed -n 's/^code: //p' {} | grep .); do sleep 0.1; done; \
         XDG_CONFIG_HOME={} exec {BOWLINE} send {} --code $code",
        said.display(),
        here.display(),
        file.display()
    );
    let done = Command::new(BOWLINE)
        .args(["wan", "--link", "delay=1ms", "--late-limit", "10s", "--start-after", "300ms"])
        .args(["--left", &left, "--right", &right])
        .arg("--pcap")
        .arg(&capture)
        .output()
        .unwrap();
    let log = fs::read_to_string(&said).unwrap_or_default();
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}{log}");
    assert_eq!(fs::read(out.join("secret-name.txt")).unwrap(), fs::read(&file).unwrap());
    let captured = fs::read(&capture).unwrap();
    assert!(captured.len() > 1_000_000, "the capture has the transfer: {}", captured.len());
    for plain in [secret.as_bytes(), b"secret-name", b"sr-nack"] {
        let found = captured.windows(plain.len()).any(|window| window == plain);
        assert!(!found, "{} was to be read on the way", String::from_utf8_lossy(plain));
    }
}
