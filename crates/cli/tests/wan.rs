//! `bowline wan` with real namespaces. If the system allows none, the tests say so and pass.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");
const PATIENCE: Duration = Duration::from_secs(20);

fn wan(args: &[&str]) -> Output {
    Command::new(BOWLINE).arg("wan").args(args).output().expect("the program is there")
}

fn can_make_namespaces() -> bool {
    let tried = wan(&["--right", "true"]);
    if !tried.status.success() {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&tried.stderr).trim());
    }
    tried.status.success()
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn report(output: &Output) -> Value {
    let lines = lines(output);
    serde_json::from_str(lines.last().expect("a report")).expect("JSON")
}

#[test]
fn commands_run_at_their_ends_and_the_right_one_decides() {
    if !can_make_namespaces() {
        return;
    }
    let left = "echo at {left}; exec sleep 100";
    let ended = wan(&[
        "--json",
        "--start-after",
        "300ms",
        "--left",
        left,
        "--right",
        "echo to {left}; exit 3",
    ]);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let lines = lines(&ended);
    assert!(lines.contains(&"left  | at 10.42.0.1".to_owned()), "{lines:?}");
    assert!(lines.contains(&"right | to 10.42.0.1".to_owned()), "{lines:?}");
    let report = report(&ended);
    assert_eq!(report["right_status"], 3);
    // The command was terminated and did not exit by itself.
    assert!(report["left_status"].is_null(), "{report}");
}

/// Arguments for running `bowline perf` at both ends.
fn perf_args(iterations: &str) -> [String; 4] {
    let left = format!("{BOWLINE} perf send-bw -d {{left}} --insecure");
    let right = format!("{BOWLINE} perf send-bw {{left}} -d {{right}} -n {iterations} --insecure");
    ["--left".to_owned(), left, "--right".to_owned(), right]
}

#[test]
fn what_a_program_sends_crosses_the_link() {
    if !can_make_namespaces() {
        return;
    }
    let perf = perf_args("200");
    let mut args: Vec<&str> = perf.iter().map(String::as_str).collect();
    // However busy the machine is that runs this test.
    args.extend(["--json", "--late-limit", "10s", "--link", "rate=1Gbps,delay=2ms,loss=0.5%"]);
    args.extend(["--seed", "7"]);
    let done = wan(&args);
    assert!(done.status.success(), "{done:?}");
    let report = report(&done);
    let there = &report["to_left"];
    let count = |key: &str| there[key].as_u64().expect("a count");
    // 200 messages of 64 KiB in packets of 1024 bytes, plus retransmissions.
    assert!(count("segments") > 12_800, "{report}");
    assert!(count("lost") > 20, "{report}");
    assert!(
        count("segments") - count("lost") - count("tail_drops") >= count("released"),
        "{report}"
    );
    assert_eq!(report["seed"], 7);
    assert!(report["refused"].is_null(), "{report}");
}

#[test]
fn a_late_run_is_refused() {
    if !can_make_namespaces() {
        return;
    }
    let perf = perf_args("5");
    let mut args: Vec<&str> = perf.iter().map(String::as_str).collect();
    args.extend(["--link", "delay=1ms", "--late-limit", "1ns", "--json"]);
    let refused = wan(&args);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("invalid run"));
    assert!(report(&refused)["refused"].as_str().is_some_and(|why| why.contains("late")));
}

#[test]
fn nothing_is_left_when_it_is_told_to_end() {
    if !can_make_namespaces() {
        return;
    }
    let mut held = Command::new(BOWLINE)
        .args(["wan", "--hold", "--left", "echo pid $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program is there");
    let mut stdout = BufReader::new(held.stdout.take().expect("piped")).lines();
    let mut next = || stdout.next().expect("a line").expect("text");
    let entrance = next();
    assert!(entrance.starts_with("left") && entrance.contains("nsenter"), "{entrance}");
    let pid = loop {
        let line = next();
        if let Some(pid) = line.strip_prefix("left  | pid ") {
            break pid.to_owned();
        }
    };
    let process = Path::new("/proc").join(pid);
    assert!(process.exists());
    let held_pid = Pid::from_raw(i32::try_from(held.id()).expect("a pid")).expect("not 0");
    kill_process(held_pid, Signal::TERM).expect("it is ours");
    let status = held.wait().expect("it is ours");
    assert_eq!(status.code(), Some(128 + 15));
    let until = Instant::now() + PATIENCE;
    while process.exists() {
        assert!(Instant::now() < until, "{process:?} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let nothing = wan(&[]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nothing.stderr).contains("--hold"));
    let link = wan(&["--link", "queue=1bdp", "--right", "true"]);
    assert_eq!(link.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&link.stderr).contains("takes a rate"));
}
