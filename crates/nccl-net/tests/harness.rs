//! Loads the plug-in as NCCL does, driven by two processes (`src/harness`). `lab/nccl/run` plays
//! all scenes over all transports, up to 64 MiB.

use std::path::PathBuf;
use std::process::Command;

/// The directory of the library that Cargo built.
fn plugin() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.parent().unwrap().join("libnccl_net_bowline.so")
}

fn play(transport: &str, versions: &str, scenes: &str) {
    play_with(&[], transport, versions, scenes);
}

fn play_with(vars: &[(&str, &str)], transport: &str, versions: &str, scenes: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_nccl-net-harness"))
        .arg("--plugin")
        .arg(plugin())
        .args(["--transports", transport, "--versions", versions, "--scenes", scenes])
        .envs(vars.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{failed}");
    println!("{said}");
}

const MESSAGES: &str = "sizes,connections,groups";
const DEATHS: &str = "killed-receiver,killed-sender,killed-listener";

#[test]
fn every_version_drives_every_call() {
    play("rc", "8,9,10,11", "rules,sizes,groups");
}

#[test]
fn connections_strangers_and_unloading() {
    play("rc", "11", "connections,strangers,reload");
}

#[test]
fn a_killed_peer_is_an_error() {
    play("rc", "8,11", DEATHS);
}

#[test]
fn messages_over_xp() {
    play("xp", "11", MESSAGES);
}

#[test]
fn messages_over_sdr() {
    play("sr-nack", "11", MESSAGES);
    play("ec-mds", "10", MESSAGES);
}

#[test]
fn a_killed_peer_is_an_error_over_xp_and_sdr() {
    play("xp", "11", DEATHS);
    play("auto", "9", DEATHS);
}

#[test]
fn nothing_is_lost_on_a_link_that_loses() {
    let lossy = [("BOWLINE_LINK", "loss=2%")];
    for transport in ["rc", "xp", "sr-nack"] {
        play_with(&lossy, transport, "11", MESSAGES);
    }
}

#[test]
fn packets_are_sealed_if_asked_for() {
    let sealed = [("BOWLINE_NCCL_SEAL", "on")];
    for transport in ["rc", "xp", "ec-mds"] {
        play_with(&sealed, transport, "11", "groups,strangers");
    }
}
