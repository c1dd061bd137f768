//! `bowline send` and `bowline recv` as people run them: two processes on loopback.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const MIB: usize = 1 << 20;

/// A directory of the test's own, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("bowline-transfer-{:x}", random()));
        fs::create_dir_all(path.join("out")).unwrap();
        Scratch(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A receiver on an address of its own, ended when dropped.
struct Recv {
    child: Child,
    addr: String,
    port: String,
}

impl Recv {
    fn start(dir: &Path, args: &[&str]) -> Recv {
        let addr = random_addr();
        let mut child = Command::new(BOWLINE)
            .arg("recv")
            .arg(dir)
            .args(["-d", &addr, "-p", "0", "--json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let (_, port) = line.trim().rsplit_once(':').unwrap_or_else(|| panic!("{line}"));
        let port = port.to_owned();
        // Kept open and read to the end, so that it can go on writing.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Recv { child, addr, port }
    }

    fn send_command(&self, paths: &[&Path], args: &[&str]) -> Command {
        let mut command = Command::new(BOWLINE);
        command
            .arg("send")
            .args(paths)
            .args([&self.addr, "-p", &self.port, "-d", &random_addr(), "--json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn send(&self, paths: &[&Path], args: &[&str]) -> Output {
        self.send_command(paths, args).output().unwrap()
    }

    /// Sends, which must work; returns the sender's report.
    fn send_ok(&self, paths: &[&Path], args: &[&str]) -> Value {
        let output = self.send(paths, args);
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stdout}{stderr}");
        serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
    }

    /// The receiver's report, after which it must have ended well.
    fn report(mut self) -> Value {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        serde_json::from_str(text.lines().last().unwrap()).unwrap()
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn random_addr() -> String {
    let [a, b, c, ..] = random().to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

/// Bytes that differ everywhere.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

fn failed(output: &Output, expected: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(expected), "{stderr}");
}

#[test]
fn lanes_carry_blocks_together_as_many_as_both_ends_have() {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..40 * MIB + 12_345).map(|at| (at * 31 + at / 255) as u8).collect();
    let file = scratch.write("in/file", &bytes);
    for (ours, theirs) in [("3", "2"), ("1", "4")] {
        let out = scratch.path(&format!("out/{ours}-{theirs}"));
        fs::create_dir_all(&out).unwrap();
        let recv = Recv::start(&out, &["--once", "--lanes", theirs, "--link", "loss=0.1%"]);
        recv.send_ok(&[&file], &["--lanes", ours, "--link", "loss=0.1%"]);
        recv.report();
        assert!(fs::read(out.join("file")).unwrap() == bytes);
    }
}

#[test]
fn a_tree_arrives_as_it_is() {
    let scratch = Scratch::new();
    let big = noise(50_000_000, 1);
    scratch.write("tree/big", &big);
    scratch.write("tree/empty", b"");
    for i in 0..2_500 {
        scratch.write(&format!("tree/small/{}/{i}", i % 7), &noise(i % 300, i as u64));
    }
    fs::create_dir(scratch.path("tree/nothing")).unwrap();
    fs::set_permissions(scratch.path("tree/big"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("/etc/passwd", scratch.path("tree/link")).unwrap();
    let single = scratch.write("sing\u{e9}", b"alone");

    let out = scratch.path("out");
    let recv = Recv::start(&out, &["--once"]);
    let sent = recv.send_ok(&[&scratch.path("tree"), &single], &[]);
    let received = recv.report();
    assert_eq!(sent["files"], 2_503);
    assert_eq!(sent["digest"], received["digest"]);
    let hash = blake3::hash(&big).to_string();
    let listed = received["contents"].as_array().unwrap();
    let entry = listed.iter().find(|entry| entry["path"] == "tree/big").unwrap();
    assert_eq!(entry["blake3"], hash);

    assert!(fs::read(out.join("tree/big")).unwrap() == big);
    assert_eq!(fs::read(out.join("sing\u{e9}")).unwrap(), b"alone");
    assert_eq!(fs::metadata(out.join("tree/empty")).unwrap().len(), 0);
    assert!(out.join("tree/nothing").is_dir());
    assert!(fs::symlink_metadata(out.join("tree/link")).is_err(), "links are skipped");
    for i in 0..2_500 {
        let name = format!("tree/small/{}/{i}", i % 7);
        assert_eq!(fs::read(out.join(name)).unwrap(), noise(i % 300, i as u64));
    }
    let (ours, theirs) = (scratch.path("tree/big"), out.join("tree/big"));
    let (ours, theirs) = (fs::metadata(ours).unwrap(), fs::metadata(theirs).unwrap());
    assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
    assert_eq!(theirs.permissions().mode() & 0o777, 0o751);
    let leftovers = fs::read_dir(out.join("tree")).unwrap().count();
    assert_eq!(leftovers, 4, "big, empty, nothing, small");
}

#[test]
fn every_scheme_survives_a_lossy_link() {
    let scratch = Scratch::new();
    let bytes = noise(5 * MIB / 2, 2);
    let file = scratch.write("file", &bytes);
    for scheme in ["sr-nack", "sr-rto", "ec-mds", "ec-xor"] {
        let out = scratch.path(scheme);
        fs::create_dir(&out).unwrap();
        let link = "loss=1%,delay=2ms";
        let recv = Recv::start(&out, &["--once", "--link", link]);
        let args = ["--scheme", scheme, "--rate", "400Mbps", "--link", link];
        let sent = recv.send_ok(&[&file], &args);
        assert_eq!(sent["scheme"], scheme);
        recv.report();
        assert!(fs::read(out.join("file")).unwrap() == bytes, "{scheme}");
    }
}

/// Waits until a part of a file has been recorded as there.
fn wait_for_progress(state: &Path) {
    let start = Instant::now();
    while fs::metadata(state).map_or(0, |m| m.len()) < 36 + 36 {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing arrives");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_transfer_goes_on_where_either_end_was_killed() {
    let scratch = Scratch::new();
    let bytes = noise(80 * MIB + 5, 3);
    let file = scratch.write("file", &bytes);
    let out = scratch.path("out");
    let state = out.join("file.bowline-state");
    for kill_sender in [true, false] {
        let mut recv = Recv::start(&out, &[]);
        let mut sender = recv.send_command(&[&file], &["--rate", "1Gbps"]).spawn().unwrap();
        wait_for_progress(&state);
        // SIGKILL.
        if kill_sender { &mut sender } else { &mut recv.child }.kill().unwrap();
        if kill_sender {
            // The receiver takes the next one.
            let sent = recv.send_ok(&[&file], &[]);
            check_resumed(&sent, &bytes, &out);
            fs::remove_file(out.join("file")).unwrap();
            sender.wait().unwrap();
        } else {
            let output = sender.wait_with_output().unwrap();
            failed(&output, "the receiver is gone");
            let recv = Recv::start(&out, &["--once"]);
            let sent = recv.send_ok(&[&file], &[]);
            check_resumed(&sent, &bytes, &out);
        }
    }
}

fn check_resumed(sent: &Value, bytes: &[u8], out: &Path) {
    let moved = sent["moved_bytes"].as_u64().unwrap();
    assert!(moved < bytes.len() as u64, "{moved} bytes moved");
    assert!(fs::read(out.join("file")).unwrap() == bytes);
    assert_eq!(fs::read_dir(out).unwrap().count(), 1, "nothing partial is left");
}

#[test]
fn a_partial_file_that_was_changed_is_not_believed() {
    let scratch = Scratch::new();
    let bytes = noise(40 * MIB, 4);
    let file = scratch.write("file", &bytes);
    let out = scratch.path("out");
    let recv = Recv::start(&out, &[]);
    let mut sender = recv.send_command(&[&file], &["--rate", "500Mbps"]).spawn().unwrap();
    wait_for_progress(&out.join("file.bowline-state"));
    sender.kill().unwrap();
    sender.wait().unwrap();
    let part = out.join("file.bowline-part");
    let mut damaged = fs::read(&part).unwrap();
    damaged.iter_mut().step_by(1 << 20).for_each(|byte| *byte = !*byte);
    // The receiver may still be closing the file.
    fs::write(&part, damaged).unwrap();
    let sent = recv.send_ok(&[&file], &[]);
    assert_eq!(sent["moved_bytes"], bytes.len() as u64);
    assert!(fs::read(out.join("file")).unwrap() == bytes);
}

#[test]
fn what_exists_is_kept_unless_told_otherwise() {
    let scratch = Scratch::new();
    let mut bytes = noise(17 * MIB, 5);
    let file = scratch.write("d/file", &bytes);
    let dir = scratch.path("d");
    let out = scratch.path("out");
    let recv = Recv::start(&out, &[]);
    recv.send_ok(&[&dir], &[]);
    let again = recv.send_ok(&[&dir], &[]);
    assert_eq!(again["moved_bytes"], 0, "the same is not moved again");

    bytes[0] ^= 1;
    fs::write(&file, &bytes).unwrap();
    failed(&recv.send(&[&dir], &[]), "d/file exists there and differs");
    drop(recv);
    // Left by an attempt with another version, which was longer.
    fs::write(out.join("d/file.bowline-part"), noise(20 * MIB, 6)).unwrap();
    let recv = Recv::start(&out, &["--overwrite"]);
    let sent = recv.send_ok(&[&dir], &[]);
    assert_eq!(sent["moved_bytes"], 16 * MIB as u64, "what both have stays");
    assert!(fs::read(out.join("d/file")).unwrap() == bytes);

    // A link in the place of a directory leads nowhere.
    let elsewhere = scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::remove_dir_all(out.join("d")).unwrap();
    symlink(&elsewhere, out.join("d")).unwrap();
    failed(&recv.send(&[&dir], &[]), "cannot make the directory");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    fs::remove_file(out.join("d")).unwrap();
    recv.send_ok(&[&dir], &[]);
    assert!(fs::read(out.join("d/file")).unwrap() == bytes);
}

#[test]
fn a_client_that_says_nothing_holds_up_nobody() {
    let scratch = Scratch::new();
    let file = scratch.write("file", b"x");
    let recv = Recv::start(&scratch.path("out"), &[]);
    let port: u16 = recv.port.parse().unwrap();
    let idle = std::net::TcpStream::connect((recv.addr.as_str(), port)).unwrap();
    let start = Instant::now();
    recv.send_ok(&[&file], &[]);
    // The client that was first would be waited for ten seconds.
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    drop(idle);
}

#[test]
fn names_from_the_network_do_nothing_to_a_terminal() {
    let scratch = Scratch::new();
    let name = "evil\u{1b}[2J\u{9b}31m\r\u{202e}name";
    let file = scratch.write(name, b"new");
    scratch.write(&format!("out/{name}"), b"old");
    let recv = Recv::start(&scratch.path("out"), &[]);
    let output = recv.send(&[&file], &[]);
    failed(&output, r"evil\u{1b}[2J\u{9b}31m\u{d}\u{202e}name exists there and differs");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.chars().all(|c| c == '\n' || !c.is_control()), "{stderr:?}");
}

#[test]
fn errors_say_what_to_do() {
    let scratch = Scratch::new();
    let file = scratch.write("file", b"x");
    let nobody = Command::new(BOWLINE)
        .args(["send", file.to_str().unwrap(), &random_addr(), "-p", "9"])
        .output()
        .unwrap();
    failed(&nobody, "nothing listens there");
    let recv = Recv::start(&scratch.path("out"), &[]);
    failed(&recv.send(&[&scratch.path("nothing")], &[]), "cannot read");
    failed(&recv.send(&[&file, &file], &[]), "named twice");
    let output = Command::new(BOWLINE)
        .args(["recv", scratch.path("missing").to_str().unwrap()])
        .output()
        .unwrap();
    failed(&output, "cannot receive into");
    let wrong =
        Command::new(BOWLINE).args(["send", "a", "b", "--scheme", "luck"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
