//! `bowline plan` as users run it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Arguments for a link that can be planned.
const LINK: [&str; 8] =
    ["--bandwidth", "400Gbps", "--rtt", "25ms", "--chunk-loss", "1e-3", "--size", "128MiB"];

/// A separate directory for each test, which also holds the cached coding rates.
fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{name}"));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn plan(name: &str, arguments: &[&str]) -> Output {
    let dir = scratch(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    command.arg("plan").args(arguments).current_dir(&dir).env("XDG_CACHE_HOME", &dir);
    command.output().unwrap()
}

fn json(name: &str, arguments: &[&str]) -> Value {
    let output = plan(name, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn plan_text(arguments: &[&str]) -> String {
    let output = plan("text", arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_json_has_times_and_a_recommendation() {
    let plan = json("json", &LINK);
    let ideal_s = plan["ideal_s"].as_f64().unwrap();
    assert!((ideal_s - (0.025 + 2048.0 * 65536.0 * 8.0 / 400e9)).abs() < 1e-9);
    let names: Vec<&str> =
        plan["schemes"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    for name in ["gbn", "sr-rto", "sr-nack", "ec-mds", "ec-xor", "lowar", "best-effort"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for scheme in plan["schemes"].as_array().unwrap() {
        let time = |key: &str| scheme[key].as_f64().unwrap();
        assert!(ideal_s <= time("mean_s") * (1.0 + 1e-9), "{scheme}");
        assert!(time("p50_s") <= time("p99_s") && time("p99_s") <= time("p999_s"), "{scheme}");
    }
    assert_eq!(plan["recommended"], "lowar");
    assert!(plan["command"].as_str().unwrap().contains("--fec 32,1"), "{plan}");
    assert!(!plan["crossovers"].as_array().unwrap().is_empty());
}

#[test]
fn no_scheme_of_the_table_beats_the_recommended_one() {
    let links = [
        ("1Gbps", "40ms", "1e-3", "4MiB"),
        ("10Gbps", "100us", "1e-8", "1MiB"),
        ("100Gbps", "2ms", "1e-4", "64MiB"),
        ("400Gbps", "25ms", "1e-5", "128MiB"),
        ("400Gbps", "25ms", "1e-2", "128MiB"),
        ("400Gbps", "25ms", "1e-5", "64GiB"),
        ("400Gbps", "25ms", "1e-9", "128KiB"),
    ];
    let mut seen = Vec::new();
    for (bandwidth, rtt, loss, size) in links {
        for (goal, key) in [("mean", "mean_s"), ("p999", "p999_s")] {
            let link = ["--bandwidth", bandwidth, "--rtt", rtt, "--loss", loss, "--size", size];
            let plan = json("best", &[&link[..], &["--goal", goal]].concat());
            let schemes = plan["schemes"].as_array().unwrap();
            let time = |name: &Value| {
                let row = schemes.iter().find(|row| row["name"] == *name).unwrap();
                row[key].as_f64().unwrap()
            };
            let recommended = time(&plan["recommended"]);
            for row in schemes.iter().filter(|row| row["name"] != "best-effort") {
                let other = time(&row["name"]);
                assert!(recommended <= other * 1.0101, "{link:?}: {} {other}", row["name"]);
            }
            seen.push(plan["recommended"].as_str().unwrap().to_owned());
        }
    }
    for name in ["gbn", "sr-nack", "lowar", "ec-mds"] {
        assert!(seen.iter().any(|seen| seen == name), "{name} is never the best: {seen:?}");
    }
}

#[test]
fn every_scheme_says_what_it_needs_and_every_code_what_it_costs() {
    let plan = json("needs", &LINK);
    for row in plan["schemes"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let peer = match name {
            "gbn" | "best-effort" => "any-roce",
            "lowar" => "bowline-fec",
            _ => "bowline-reliable",
        };
        assert_eq!(row["peer"], peer, "{name}");
        let codes = ["lowar", "ec-xor", "ec-mds"].contains(&name);
        assert_eq!(row["cores"].as_f64().is_some_and(|cores| cores > 0.0), codes, "{name}");
    }
    let text = plan_text(&LINK);
    assert!(text.contains("needed at the other end"), "{text}");
    assert!(text.contains("gbn, best-effort: any RoCEv2 NIC"), "{text}");
}

#[test]
fn distance_and_packet_loss_are_other_words_for_the_same() {
    let rtt = json("rtt", &LINK);
    let packet_loss = format!("{:e}", 1.0 - (1.0_f64 - 1e-3).powf(1.0 / 16.0));
    let distance = json(
        "distance",
        &[
            "--bandwidth",
            "0.4Tbps",
            "--distance",
            "3750km",
            "--loss",
            &packet_loss,
            "--size",
            "128M",
        ],
    );
    for (a, b) in
        rtt["schemes"].as_array().unwrap().iter().zip(distance["schemes"].as_array().unwrap())
    {
        let (a, b) = (a["mean_s"].as_f64().unwrap(), b["mean_s"].as_f64().unwrap());
        assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
    }
}

#[test]
fn schemes_that_are_asked_for_are_those_to_choose_from() {
    let plan =
        json("scheme", &[&LINK[..], &["--scheme", "sr-rto,gbn", "--samples", "2000"]].concat());
    assert_eq!(plan["schemes"].as_array().unwrap().len(), 2);
    assert_eq!(plan["recommended"], "gbn");
    for scheme in plan["schemes"].as_array().unwrap() {
        let drawn = scheme["sampled"]["mean_s"].as_f64().unwrap();
        assert!((scheme["mean_s"].as_f64().unwrap() / drawn - 1.0).abs() < 0.05, "{scheme}");
    }
}

#[test]
fn drawings_and_the_report_are_files() {
    let dir = scratch("files");
    let sweep = plan("files", &[&LINK[..], &["--sweep", "loss"]].concat());
    assert!(sweep.status.success());
    assert!(std::fs::read_to_string(dir.join("plan-loss.svg")).unwrap().starts_with("<svg"));
    let map = json("files", &[&LINK[..], &["--heatmap", "--svg", "map.svg"]].concat());
    assert_eq!(map["heatmap"]["coding_speedup"].as_array().unwrap().len(), 40);
    assert!(std::fs::read_to_string(dir.join("map.svg")).unwrap().contains("coding leads"));
    let report =
        plan("files", &[&LINK[..], &["--report", "plan.html", "--allreduce", "4"]].concat());
    assert!(report.status.success());
    let page = std::fs::read_to_string(dir.join("plan.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("Ring allreduce"));
    assert!(!page.contains("<script") && !page.contains("src="));
}

#[test]
fn drawings_name_the_command_that_made_them() {
    let output = plan("source", &[&LINK[..], &["--sweep", "size", "--svg", "size.svg"]].concat());
    assert!(output.status.success());
    let svg = std::fs::read_to_string(scratch("source").join("size.svg")).unwrap();
    assert!(svg.contains("bowline plan --bandwidth 400Gbps --rtt 25ms --chunk-loss 1e-3"), "{svg}");
}

#[test]
fn bursts_keep_the_rate_of_losses() {
    let link = ["--bandwidth", "10Gbps", "--rtt", "40ms", "--loss", "1e-4", "--size", "64MiB"];
    let with = |burst: &str| json("burst", &[&link[..], &["--burst", burst]].concat());
    let mean = |plan: &Value| plan["schemes"][0]["mean_s"].as_f64().unwrap();
    let plain = json("burst", &link);
    assert_eq!(with("1")["schemes"][2], plain["schemes"][2]);
    // Go-back-N goes back only once for a burst.
    assert!(mean(&with("8")) < mean(&plain));
    for wrong in ["0", "-1", "many"] {
        let output = plan("burst", &[&link[..], &["--burst", wrong]].concat());
        assert!(!output.status.success(), "{wrong}");
    }
    let twice = plan(
        "burst",
        &[
            "--loss",
            "ge(1e-5,12%)",
            "--burst",
            "8",
            "--rtt",
            "40ms",
            "--bandwidth",
            "10Gbps",
            "--size",
            "64MiB",
        ],
    );
    let text = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(!twice.status.success() && text.contains("--burst"), "{text}");
}

#[test]
fn a_group_has_a_recommendation_of_its_own() {
    let link = ["--bandwidth", "10Gbps", "--rtt", "40ms", "--loss", "1e-3", "--size", "16MiB"];
    let plan = json("group", &[&link[..], &["--receivers", "64"]].concat());
    let group = &plan["receivers"];
    let rows = group["schemes"].as_array().unwrap();
    let time = |row: &Value| row["group_mean_s"].as_f64().unwrap();
    let best = rows.iter().map(time).fold(f64::INFINITY, f64::min);
    let chosen = rows.iter().find(|row| row["name"] == group["recommended"]).unwrap();
    assert!(time(chosen) <= best * 1.0101, "{group}");
}

#[test]
fn the_explorer_is_a_file() {
    let output = plan("page", &["--page", "explorer.html", "--loss", "0.1%", "--rtt", "40ms"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(scratch("page").join("explorer.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("data-state=\"rtt=40ms\nloss=1e-3\n\""));
    assert!(page.contains("bowline plan --page explorer.html --loss 0.1% --rtt 40ms"));
    assert!(!page.contains("src=") && !page.contains("{{"));
    let both = plan("page", &["--page", "explorer.html", "--serve"]);
    assert!(!both.status.success());
}

#[test]
fn the_explorer_is_served_until_it_is_interrupted() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowline"));
    let mut server = command.args(["plan", "--serve", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let at = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("<!doctype html>"));
    let asked = Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap();
    assert!(asked.success());
    assert!(server.wait().unwrap().success());
}

#[test]
fn nonsense_is_told_by_its_name_with_something_right() {
    let wrong: [(&str, &str, &str); 14] = [
        ("--chunk-loss", "2", "1e-4"),
        ("--chunk-loss", "-1e-3", "1e-4"),
        ("--size", "-128MiB", "128MiB"),
        ("--size", "0", "128MiB"),
        ("--size", "400Gbps", "128MiB"),
        ("--bandwidth", "25ms", "Gbps"),
        ("--bandwidth", "0bps", "Gbps"),
        ("--rtt", "400Gbps", "10ms"),
        ("--rtt", "-1ms", "10ms"),
        ("--ec", "250,20", "32,8"),
        ("--ec", "32", "32,8"),
        ("--ec", "0,8", "32,8"),
        ("--chunk", "5000", "64KiB"),
        ("--beta", "-1", "0.5"),
    ];
    for (option, value, right) in wrong {
        let mut arguments: Vec<&str> = LINK.to_vec();
        match arguments.iter().position(|a| *a == option) {
            Some(at) => arguments[at + 1] = value,
            None => arguments.extend([option, value]),
        }
        let output = plan("wrong", &arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{option} {value}");
        assert!(text.contains(option) && text.contains(right), "{option} {value}: {text}");
    }
}
