//! Shared by the tests of `bowline send` and `bowline recv`: two processes on loopback.

#![allow(dead_code, unreachable_pub, reason = "each test uses some of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

pub const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
pub const MIB: usize = 1 << 20;

/// A separate directory for each test. It is removed on drop.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("bowline-transfer-{:x}", random()));
        fs::create_dir_all(path.join("out")).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
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

/// Runs the program with a separate configuration directory.
pub fn bowline(config: &Path) -> Command {
    let mut command = Command::new(BOWLINE);
    command.env("XDG_CONFIG_HOME", config).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A receiver on its own address. It is killed on drop.
pub struct Recv {
    pub child: Child,
    pub addr: String,
    pub port: String,
    /// Its stderr, from the next line on.
    pub stderr: BufReader<ChildStderr>,
    /// Configuration directory of its senders.
    config: PathBuf,
}

impl Recv {
    /// Starts a receiver that accepts processes of this host.
    pub fn start(dir: &Path, args: &[&str]) -> Recv {
        let config = dir.parent().unwrap().join("config");
        let mut all = vec!["--json"];
        all.extend(args);
        Recv::with_config(dir, &config, &config, &all)
    }

    /// Starts a receiver with its own configuration and that of its senders.
    pub fn with_config(dir: &Path, config: &Path, senders: &Path, args: &[&str]) -> Recv {
        let addr = random_addr();
        let mut child = bowline(config)
            .arg("recv")
            .arg(dir)
            .args(["-d", &addr, "-p", "0"])
            .args(args)
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("receiving into") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
        }
        let (_, port) = line.trim().rsplit_once(':').unwrap_or_else(|| panic!("{line}"));
        let port = port.to_owned();
        Recv { child, addr, port, stderr, config: senders.to_owned() }
    }

    /// The next line on stderr that contains `text`.
    pub fn line_with(&mut self, text: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "no line with {text}");
            if line.contains(text) {
                return line.trim().to_owned();
            }
        }
    }

    /// The code that the receiver shows.
    pub fn code(&mut self) -> String {
        self.line_with("code: ").trim_start_matches("code: ").to_owned()
    }

    pub fn send_command(&self, paths: &[&Path], args: &[&str]) -> Command {
        let mut command = bowline(&self.config);
        command
            .arg("send")
            .args(paths)
            .args(["--to", &self.addr, "-p", &self.port, "-d", &random_addr(), "--json"])
            .args(args);
        command
    }

    pub fn send(&self, paths: &[&Path], args: &[&str]) -> Output {
        self.send_command(paths, args).output().unwrap()
    }

    /// Sends, which must succeed. Returns the sender's report.
    pub fn send_ok(&self, paths: &[&Path], args: &[&str]) -> Value {
        let output = self.send(paths, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
        report(&output)
    }

    /// The receiver's report. The receiver must have exited successfully.
    pub fn report(mut self) -> Value {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        last_object(&text)
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last object on stdout, which must contain nothing but JSON.
pub fn report(output: &Output) -> Value {
    last_object(&String::from_utf8_lossy(&output.stdout))
}

fn last_object(text: &str) -> Value {
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    assert!(objects.iter().all(|object| object["version"] == 1), "{text}");
    objects.into_iter().next_back().unwrap()
}

pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

pub fn random_addr() -> String {
    let [a, b, c, ..] = random().to_le_bytes();
    format!("127.{}.{}.{}", a.max(1), b, c.clamp(1, 254))
}

/// Pseudo-random bytes.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Checks the exit status and the error message.
pub fn ended(output: &Output, status: i32, expected: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert!(stderr.contains(expected), "{stderr}");
}

pub fn failed(output: &Output, expected: &str) {
    ended(output, 1, expected);
}

/// Checks that something was left out, and that the message names it.
pub fn left_out(output: &Output, expected: &str) {
    ended(output, 3, expected);
}
