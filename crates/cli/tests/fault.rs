//! `bowline fault` on devices of other processes: a `bowline perf` between two of them.

#[path = "common/pair.rs"]
mod pair;

use std::process::{Command, Output};

use pair::{BOWLINE, Pair, wait_until};
use serde_json::Value;

fn fault(args: &[&str]) -> Output {
    Command::new(BOWLINE).arg("fault").args(args).output().unwrap()
}

/// The only device that a command affects, as JSON.
fn order(args: &[&str]) -> Value {
    let output = fault(&[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["devices"].as_array().unwrap().len(), 1, "{json}");
    json["devices"][0].clone()
}

/// Packets that a process has sent and received.
fn counters(addr: &str) -> (u64, u64) {
    let output = Command::new(BOWLINE).args(["devinfo", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = json["processes"].as_array().unwrap().iter().find(|p| p["addr"] == addr);
    let port = &process.expect("it is alive")["port"];
    (port["tx_packets"].as_u64().unwrap(), port["fault_dropped_in"].as_u64().unwrap())
}

#[test]
fn the_device_of_another_process_goes_down_and_up() {
    let pair = Pair::start("write-bw", "1s");
    let addr = pair.server_addr.clone();
    let down = order(&[&addr, "down", "--for", "200ms"]);
    assert_eq!((down["link"].as_str(), down["addr"].as_str()), (Some("down"), Some(&*addr)));
    assert_eq!(down["pid"].as_u64(), Some(u64::from(pair.server.id())));
    assert_eq!(down["faults"][0]["fault"], "down");
    assert!(down["faults"][0]["left_ms"].as_u64().unwrap() <= 200);
    wait_until(|| counters(&addr).1 > 0);
    wait_until(|| order(&[&addr])["link"] == "up");
    assert_eq!(order(&[&addr, "list"])["faults"].as_array().unwrap().len(), 0);

    let client = pair.client_addr.clone();
    let pid = pair.client.id().to_string();
    assert_eq!(order(&[&client, "loss=0.5%", "--pid", &pid])["link"], "up");
    assert_eq!(order(&[&client, "blackhole=in"])["faults"].as_array().unwrap().len(), 2);
    assert_eq!(order(&[&client, "clear"])["faults"].as_array().unwrap().len(), 0);
    let json = pair.client_json();
    assert!(json["results"][0]["iterations"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn a_link_that_stays_down_ends_the_transfer() {
    let mut pair = Pair::start("write-bw", "30s");
    let text = String::from_utf8(fault(&[&pair.client_addr, "down"]).stdout).unwrap();
    assert!(text.contains("link down, down"), "{text}");
    // The list contains all devices, including this one.
    let all = String::from_utf8(fault(&["list"]).stdout).unwrap();
    assert!(all.contains(&pair.client_addr) && all.contains(&pair.server_addr), "{all}");
    assert_eq!(pair.client.wait().unwrap().code(), Some(1));
}

/// Two processes on one address: a command must say which of them it means, or that it means both.
#[test]
fn several_processes_are_not_faulted_by_mistake() {
    let pair = Pair::on("write-bw", "30s", |server| server.to_owned());
    let addr = &pair.server_addr;
    wait_until(|| String::from_utf8_lossy(&fault(&[addr]).stdout).lines().count() == 2);
    let refused = fault(&[addr, "loss=1%"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains("2 devices match") && text.contains("--pid"), "{text}");
    assert!(text.contains(&pair.client.id().to_string()), "{text}");
    let one = order(&[addr, "loss=1%", "--pid", &pair.client.id().to_string()]);
    assert_eq!(one["pid"].as_u64(), Some(u64::from(pair.client.id())));
    let both = fault(&[addr, "clear", "--all", "--json"]);
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(both["devices"].as_array().unwrap().len(), 2, "{both}");
}

#[test]
fn errors_say_what_is_wrong() {
    let fails = |args: &[&str], code: i32, hint: &str| {
        let output = fault(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(hint), "{args:?}: {text}");
    };
    fails(&["no-such-device", "down"], 1, "no live process of yours has a device no-such-device");
    fails(
        &["no-such-device", "--pid", "1"],
        1,
        "process 1 has no device no-such-device, or is not a running process",
    );
    fails(&["bl0", "sideways"], 2, "write down, up");
    fails(&["bl0", "loss=200%"], 2, "probability");
    fails(&["bl0", "loss=1"], 2, "loss=1%");
    fails(&["bl0", "down", "--for", "5"], 1, "invalid duration `5`: add a unit, e.g. 5ms");
    fails(&["bl0", "down", "--for", "ever"], 1, "duration");
    fails(&["bl0", "up", "--for", "5s"], 1, "for good");
    fails(&["bl0", "list", "--for", "5s"], 1, "--for needs a fault");
}
