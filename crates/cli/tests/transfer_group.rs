//! `bowline send` to several receivers at once.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{BOWLINE, MIB, Recv, Scratch, bowline, noise, random_addr, report};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// The command that sends to all receivers.
fn send_command(scratch: &Scratch, to: &[&Recv], paths: &[&Path], args: &[&str]) -> Command {
    let to: Vec<String> = to.iter().map(|recv| format!("{}:{}", recv.addr, recv.port)).collect();
    let mut command = bowline(&scratch.path("config"));
    command
        .arg("send")
        .args(paths)
        .args(["--to", &to.join(","), "-d", &random_addr(), "--json"])
        .args(args);
    command
}

fn is_same(scratch: &Scratch, dir: &str, name: &str) -> bool {
    fs::read(scratch.path(dir).join(name)).ok() == fs::read(scratch.path("src").join(name)).ok()
}

fn errors(report: &Value) -> Vec<Option<&str>> {
    report["receivers"].as_array().unwrap().iter().map(|r| r["error"].as_str()).collect()
}

fn tree(scratch: &Scratch) {
    scratch.write("src/large.bin", &noise(40 * MIB, 1));
    scratch.write("src/small.txt", b"to everyone");
    scratch.write("src/empty", b"");
    for number in 0..50 {
        scratch.write(&format!("src/many/{number}"), &noise(1000 + number, number as u64));
    }
}

fn receivers(scratch: &Scratch, count: usize, args: &[&str]) -> Vec<Recv> {
    let start = |number: usize| {
        let dir = scratch.path(&format!("out{number}"));
        fs::create_dir_all(&dir).unwrap();
        Recv::start(&dir, args)
    };
    (0..count).map(start).collect()
}

#[test]
fn what_any_receiver_lacks_reaches_all_of_them() {
    let scratch = Scratch::new();
    tree(&scratch);
    let recvs = receivers(&scratch, 3, &[]);
    // The second receiver already has one of the files.
    let bytes = fs::read(scratch.path("src/large.bin")).unwrap();
    scratch.write("out1/src/large.bin", &bytes);
    let all: Vec<&Recv> = recvs.iter().collect();
    let source = scratch.path("src");
    for (scheme, is_new) in [("ec-mds", true), ("sr-nack", false)] {
        let args = ["--scheme", scheme, "--link", "loss=1%,seed=4"];
        let output = send_command(&scratch, &all, &[&source], &args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}{stderr}", String::from_utf8_lossy(&output.stdout));
        let report = report(&output);
        assert_eq!(errors(&report), [None, None, None], "{report}");
        assert_eq!(report["moved_bytes"].as_u64() > Some(0), is_new, "{report}");
        assert_eq!(report["files"], 53, "{report}");
        for out in ["out0/src", "out1/src", "out2/src"] {
            for name in ["large.bin", "small.txt", "empty", "many/0", "many/49"] {
                assert!(is_same(&scratch, out, name), "{scheme}: {out}/{name}");
            }
        }
    }
}

#[test]
fn a_receiver_that_dies_is_named_and_the_others_get_everything() {
    let scratch = Scratch::new();
    tree(&scratch);
    let mut recvs = receivers(&scratch, 3, &[]);
    let source = scratch.path("src");
    let all: Vec<&Recv> = recvs.iter().collect();
    // This takes some seconds.
    let command = send_command(&scratch, &all, &[&source], &["--rate", "100Mbps"]).spawn().unwrap();
    let begun = scratch.path("out1/src/large.bin.bowline-part");
    let started = Instant::now();
    while !begun.exists() {
        assert!(started.elapsed() < PATIENCE, "nothing arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    recvs[1].child.kill().unwrap();
    let output = command.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&recvs[1].addr) && stderr.contains("lost the connection"), "{stderr}");
    let report = report(&output);
    let errors = errors(&report);
    assert!(errors[0].is_none() && errors[1].is_some() && errors[2].is_none(), "{report}");
    assert!(is_same(&scratch, "out0/src", "large.bin") && is_same(&scratch, "out2/src", "many/7"));
    // Running the same command again resumes; the other receivers have everything.
    recvs[1] = Recv::start(&scratch.path("out1"), &[]);
    let all: Vec<&Recv> = recvs.iter().collect();
    let output = send_command(&scratch, &all, &[&source], &[]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    assert!(is_same(&scratch, "out1/src", "large.bin") && is_same(&scratch, "out1/src", "many/3"));
}

#[test]
fn what_one_receiver_leaves_out_the_others_take() {
    let scratch = Scratch::new();
    tree(&scratch);
    let recvs = receivers(&scratch, 2, &["--once"]);
    scratch.write("out0/src/small.txt", b"something else here");
    let all: Vec<&Recv> = recvs.iter().collect();
    let source = scratch.path("src");
    let output = send_command(&scratch, &all, &[&source], &[]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let report = report(&output);
    assert_eq!(errors(&report), [None, None]);
    assert_eq!(report["receivers"][0]["left_out"][0]["path"], "src/small.txt", "{report}");
    assert_eq!(report["receivers"][1]["left_out"], Value::Array(vec![]), "{report}");
    assert!(is_same(&scratch, "out0/src", "large.bin"));
    assert!(is_same(&scratch, "out1/src", "small.txt"));
    let kept = fs::read(scratch.path("out0/src/small.txt")).unwrap();
    assert_eq!(kept, b"something else here");
}

#[test]
fn several_receivers_and_a_code_do_not_go_together() {
    let output = Command::new(BOWLINE)
        .args(["send", "x", "--to", "127.0.0.2,127.0.0.3", "--code", "acorn-comet-tulip"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && stderr.contains("one receiver"), "{stderr}");
}
