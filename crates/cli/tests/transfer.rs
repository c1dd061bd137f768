//! `bowline send` and `bowline recv` as users run them: two processes on loopback.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{BOWLINE, MIB, Recv, Scratch, failed, left_out, noise, random_addr};
use serde_json::Value;

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
    assert_eq!(fs::read_link(out.join("tree/link")).unwrap(), Path::new("/etc/passwd"));
    for i in 0..2_500 {
        let name = format!("tree/small/{}/{i}", i % 7);
        assert_eq!(fs::read(out.join(name)).unwrap(), noise(i % 300, i as u64));
    }
    let (ours, theirs) = (scratch.path("tree/big"), out.join("tree/big"));
    let (ours, theirs) = (fs::metadata(ours).unwrap(), fs::metadata(theirs).unwrap());
    assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
    assert_eq!(theirs.permissions().mode() & 0o777, 0o751);
    let leftovers = fs::read_dir(out.join("tree")).unwrap().count();
    assert_eq!(leftovers, 5, "big, empty, link, nothing, small");
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

/// Waits until a part of a file has been recorded as written.
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
            // The receiver accepts the next transfer.
            let sent = recv.send_ok(&[&file], &[]);
            check_resumed(&sent, &bytes, &out);
            fs::remove_file(out.join("file")).unwrap();
            sender.wait().unwrap();
        } else {
            let output = sender.wait_with_output().unwrap();
            failed(&output, "lost the connection to the receiver");
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
    left_out(&recv.send(&[&dir], &[]), "d/file exists there and differs");
    drop(recv);
    // A leftover of an attempt with another, longer version.
    fs::write(out.join("d/file.bowline-part"), noise(20 * MIB, 6)).unwrap();
    let recv = Recv::start(&out, &["--overwrite"]);
    let sent = recv.send_ok(&[&dir], &[]);
    assert_eq!(sent["moved_bytes"], 16 * MIB as u64, "what both have stays");
    assert!(fs::read(out.join("d/file")).unwrap() == bytes);

    // A link in the place of a directory is not followed.
    let elsewhere = scratch.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::remove_dir_all(out.join("d")).unwrap();
    symlink(&elsewhere, out.join("d")).unwrap();
    left_out(&recv.send(&[&dir], &[]), "cannot make the directory");
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
    // If the receiver served the first client first, this would take ten seconds.
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
    left_out(&output, r"evil\u{1b}[2J\u{9b}31m\u{d}\u{202e}name exists there and differs");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.chars().all(|c| c == '\n' || !c.is_control()), "{stderr:?}");
}

#[test]
fn errors_say_what_to_do() {
    let scratch = Scratch::new();
    let file = scratch.write("file", b"x");
    let nobody = Command::new(BOWLINE)
        .args(["send", file.to_str().unwrap(), &format!("{}:9", random_addr())])
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

/// A file system of 64 MiB that another process fills after the first bytes have arrived.
#[test]
fn a_disk_that_fills_up_meanwhile_is_said_and_the_next_try_goes_on() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    let script = "mount -t tmpfs -o size=64m none $OUT || exit 77\n\
        (until ls $OUT/*.bowline-part; do sleep 0.02; done\n\
         dd if=/dev/zero of=$OUT/filler bs=1M count=64\n\
         until [ -e $OUT/../again ]; do sleep 0.05; done\n\
         rm $OUT/filler; touch $OUT/../freed) > /dev/null 2>&1 &\n\
        exec \"$@\"";
    let addr = common::random_addr();
    let mut child = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", common::BOWLINE])
        .args(["recv", out.to_str().unwrap(), "-d", &addr, "-p", "0", "--json"])
        .env("OUT", &out)
        .env("XDG_CONFIG_HOME", scratch.path("config"))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stderr.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    let Some((_, port)) = line.trim().rsplit_once(&format!("{addr}:")) else {
        eprintln!("SKIPPED: no mount namespace here: {line}");
        let _ = child.wait();
        return;
    };
    let file = scratch.write("file", &noise(40 * MIB, 3));
    let send = |args: &[&str]| {
        common::bowline(&scratch.path("config"))
            .arg("send")
            .arg(&file)
            .args(["--to", &addr, "-p", port, "-d", &common::random_addr(), "--json"])
            .args(args)
            .output()
            .unwrap()
    };
    let full = send(&["--bwlimit", "160Mbps"]);
    let stderr = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(matches!(full.status.code(), Some(1 | 3)), "{stderr}");
    assert!(stderr.contains("No space left"), "{stderr}");
    scratch.write("again", b"");
    while !scratch.path("freed").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let again = send(&[]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(common::report(&again)["bytes"], 40 * MIB as u64);
    let _ = child.kill();
    let _ = child.wait();
}

/// Every row of the table names tests that exist.
#[test]
fn the_table_of_options_names_its_tests() {
    let tests = [include_str!("options.rs"), include_str!("transfer.rs")].concat();
    let document = include_str!("../../../docs/send.md");
    let rows = document.lines().skip_while(|line| !line.starts_with("| rsync |")).skip(2);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 22, "{}", rows.len());
    for row in rows {
        let named = row.trim_end_matches(" |").rsplit('|').next().unwrap();
        for name in named.split(',') {
            let name = name.trim().trim_matches('`');
            assert!(!name.is_empty() && tests.contains(&format!("fn {name}(")), "{row}");
        }
    }
}
