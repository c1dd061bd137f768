//! `bowline collective` as users run it: ranks are processes on loopback.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BOWLINE: &str = env!("CARGO_BIN_EXE_bowline");

/// An address for each rank that nobody else is likely to use, and a directory to meet in.
struct Place {
    net: [u8; 2],
    dir: PathBuf,
}

impl Place {
    fn new() -> Place {
        use std::hash::{BuildHasher, RandomState};
        let [a, b, id @ ..] = RandomState::new().hash_one(0).to_le_bytes();
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let dir = std::env::temp_dir().join(format!("bowline-cli-{id}"));
        Place { net: [a.max(1), b], dir }
    }

    fn rank(&self, rank: u32, ranks: u32, args: &[&str]) -> Command {
        let [a, b] = self.net;
        let mut command = Command::new(BOWLINE);
        command.arg("collective").args(args);
        command.args(["--device", &format!("127.{a}.{b}.{}", rank + 1)]);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        let url = format!("file://{}", self.dir.display());
        command.env("BOWLINE_STORE", url).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(BOWLINE);
    for variable in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"] {
        command.env_remove(variable);
    }
    command.arg("collective").args(args).output().unwrap()
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    serde_json::from_str(&text).expect("JSON, and nothing else")
}

#[test]
fn collectives_over_xp_are_right_and_say_what_they_lose() {
    let bounds = ["--transport", "xp", "--deadline", "adaptive", "--max-loss", "1%"];
    for test in ["allreduce", "reduce-scatter", "allgather", "all-to-all", "broadcast", "sendrecv"]
    {
        let sizes = ["-b", "96", "-e", "96K", "-f", "32", "-n", "5", "-w", "2", "--json"];
        let args = [&[test, "--ranks", "3"], &bounds[..], &sizes[..]].concat();
        let report = report(&run(&args));
        assert_eq!(report["transport"], "xp", "{test}");
        for row in report["rows"].as_array().unwrap() {
            let half = &row["out_of_place"];
            assert_eq!(half["wrong"], 0, "{test}");
            assert!(half["loss"].as_f64().unwrap() <= 0.01, "{test}: {half}");
        }
    }
    let output = run(&["allreduce", "--max-loss", "1%"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--transport xp"), "{text}");
}

/// Runs them one after the other, because each starts ranks on the same addresses.
#[test]
fn every_collective_is_measured_and_right() {
    let sizes = ["-b", "96", "-e", "96K", "-f", "32", "-n", "2", "-w", "1", "--json"];
    for test in [
        "allreduce",
        "reduce-scatter",
        "allgather",
        "all-to-all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "sendrecv",
        "barrier",
    ] {
        let args = [&[test, "--ranks", "3"], &sizes[..]].concat();
        let report = report(&run(&args));
        assert_eq!(report["ranks"], 3);
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), if test == "barrier" { 1 } else { 3 }, "{test}");
        for row in rows {
            assert_eq!(row["out_of_place"]["wrong"], 0, "{test}: {row}");
            assert!(row["out_of_place"]["time_us"].as_f64().unwrap() > 0.0);
            if let Some(in_place) = row.get("in_place") {
                assert_eq!(in_place["wrong"], 0, "{test}: {row}");
            }
        }
    }
    for algorithm in ["exchange", "direct", "ring", "halving", "tree"] {
        let args = ["allreduce", "--ranks", "3", "--algorithm", algorithm, "--type", "bf16"];
        let report = report(&run(&[&args[..], &sizes[..], &["--op", "max"]].concat()));
        assert_eq!(report["rows"][0]["algorithm"], algorithm);
        assert_eq!(report["rows"][2]["in_place"]["wrong"], 0, "{algorithm}");
    }
}

/// Ranks that authenticate each other seal what they send, over every transport.
#[test]
fn ranks_prove_who_they_are_and_seal() {
    let place = Place::new();
    let sizes = ["-b", "4K", "-e", "64K", "-f", "16", "-n", "2", "-w", "1", "--json"];
    for transport in ["rc", "xp", "sr-nack"] {
        let mut command = Command::new(BOWLINE);
        command.args([
            "collective",
            "allreduce",
            "--ranks",
            "3",
            "--seal",
            "--transport",
            transport,
        ]);
        command.args(sizes).env("XDG_CONFIG_HOME", &place.dir);
        let report = report(&command.output().unwrap());
        assert_eq!((&report["sealed"], &report["version"]), (&true.into(), &1.into()));
        for row in report["rows"].as_array().unwrap() {
            assert_eq!(row["out_of_place"]["wrong"], 0, "{transport}: {row}");
        }
    }
}

/// A rank whose key nobody trusts is rejected. The others do not wait for it.
#[test]
fn a_stranger_is_no_rank() {
    let place = Place::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: u32, config: &str| {
        let mut command = place.rank(rank, 2, &["allreduce", "-e", "8", "--seal"]);
        command.env_remove("BOWLINE_STORE").env("MASTER_ADDR", "127.0.0.1");
        command.env("BOWLINE_PORT", port.to_string());
        command.env("XDG_CONFIG_HOME", place.dir.join(config));
        command.spawn().unwrap()
    };
    let mut host = rank(0, "a");
    let stranger = rank(1, "b").wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&stranger.stderr);
    assert_eq!(stranger.status.code(), Some(1), "{text}");
    assert!(text.contains("is not known"), "{text}");
    // The right rank can still join.
    let right = rank(1, "a").wait_with_output().unwrap();
    assert!(right.status.success(), "{}", String::from_utf8_lossy(&right.stderr));
    assert!(host.wait().unwrap().success());
}

/// Outside loopback, a store proves nothing about who writes to it.
#[test]
fn ranks_off_loopback_are_authenticated_or_say_so() {
    let place = Place::new();
    let mut command = place.rank(0, 2, &["allreduce"]);
    command.args(["--timeout", "1s"]);
    // The last --device counts; this address belongs to nobody.
    let args: Vec<_> = command.get_args().map(|arg| arg.to_owned()).collect();
    let at = args.iter().position(|arg| arg == "--device").unwrap();
    let mut command = Command::new(BOWLINE);
    command.args(&args[..at]).args(&args[at + 2..]).args(["--device", "192.0.2.77"]);
    command.env("RANK", "0").env("WORLD_SIZE", "2").env("XDG_CONFIG_HOME", &place.dir);
    command.env("BOWLINE_STORE", format!("file://{}", place.dir.display()));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("MASTER_ADDR") && text.contains("--insecure"), "{text}");
}

#[test]
fn wrong_options_say_what_is_right() {
    let text = |args: &[&str]| {
        let output = run(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let sizes = text(&["allreduce", "-b", "1M", "-e", "1K"]);
    assert!(sizes.contains("give -b below -e"), "{sizes}");
    let algorithm = text(&["allreduce", "--algorithm", "star"]);
    assert!(algorithm.contains("exchange, direct, ring"), "{algorithm}");
    let dtype = text(&["allreduce", "--type", "f8"]);
    assert!(dtype.contains("bf16"), "{dtype}");
}

/// Under a launcher, each process is a rank. If one is killed, the others name it and exit.
#[test]
fn a_killed_rank_ends_the_others_with_its_name() {
    let place = Place::new();
    let args = ["allreduce", "-b", "1M", "-e", "1M", "-n", "1000000", "-w", "0", "-c", "0"];
    let mut ranks: Vec<Child> =
        (0..3).map(|rank| place.rank(rank, 3, &args).spawn().unwrap()).collect();
    // Rank 0 prints its header when all ranks have met.
    let mut line = String::new();
    let mut stdout = BufReader::new(ranks[0].stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("3 ranks"), "{line}");
    std::thread::sleep(Duration::from_millis(300));
    let killed = Instant::now();
    ranks[1].kill().unwrap();
    ranks[1].wait().unwrap();
    for rank in [0, 2] {
        let output = std::mem::replace(&mut ranks[rank], Command::new("true").spawn().unwrap());
        let output = output.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("rank 1 does not answer"), "rank {rank} says: {errors}");
    }
    // 0.5 s, 2.2 s, up to 3 s of farewell, and a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
    for mut child in ranks {
        let _ = child.wait();
    }
}
